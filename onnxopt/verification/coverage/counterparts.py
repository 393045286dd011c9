"""Bodies of a node of A and their counterparts in B.

A branch corresponds to the same branch if B's condition is equal, and to the opposite branch if negated. If B's
condition is different or missing (known by B), the branch corresponds to the nodes of B that make the If's results, in
the cases that take the branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from onnxopt.verification.coverage.conditions import BRANCHES, agree, asks_alike, is_if, said, taken
from onnxopt.verification.model.functions import domain_of
from onnxopt.verification.pieces.enclosing import Enclosing
from onnxopt.verification.programs.program import bodies

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, NodeProto

    from onnxopt.verification.pieces.walk import Walk
    from onnxopt.verification.programs.program import Program

Nodes = tuple["NodeProto", "NodeProto"]  # of A and B
Assumed = tuple[Mapping[str, bool], Mapping[str, bool]]  # conditions of A and B
_NOTHING: Final[Assumed] = ({}, {})


class Counterpart(NamedTuple):
    """A body of A and its counterpart in B."""

    enclosing: Enclosing
    mine: GraphProto
    theirs: GraphProto
    outputs: list[tuple[str, str]] | None = None  # corresponding outputs, if not the bodies'
    assumed: Assumed = _NOTHING  # values of conditions, for a branch that no case takes


def counterparts(outer: Walk, i: int, j: int) -> Iterator[Counterpart]:
    """Yield the counterparts of bodies of A's node `i` in B's node `j`, or in B's nodes in place of an If."""
    x, y = nodes = outer.a.nodes[i], outer.b.nodes[j]
    if is_if(x):
        yield from _of_branches(outer, nodes)
    elif x.op_type == y.op_type and x.domain == y.domain:
        theirs, cases = held(outer.b, y), range(len(outer.original.values))
        for name, graph in held(outer.a, x).items():
            if name in theirs:
                yield Counterpart(Enclosing(outer, nodes, name, name, cases), graph, theirs[name])


def _of_branches(outer: Walk, nodes: Nodes) -> Iterator[Counterpart]:
    (x, y), every = nodes, range(len(outer.original.values))
    mine, theirs = held(outer.a, x), held(outer.b, y) if is_if(y) else {}
    asks, is_sure = _asks(outer, nodes) if theirs else (None, False)
    branches = [taken(outer, x, k) for k in every]
    for name, other in zip(BRANCHES, BRANCHES if asks else reversed(BRANCHES)):
        if name not in mine:
            continue
        cases = [k for k in every if branches[k] == name]
        if cases and not is_sure:
            yield from _in_place(outer, nodes, name, cases)
        if other in theirs and asks is not None:
            enclosing = Enclosing(outer, nodes, name, other, cases or every, is_sure)
            yield Counterpart(enclosing, mine[name], theirs[other], assumed=_NOTHING if cases else _assumed(enclosing))


def _asks(outer: Walk, nodes: Nodes) -> tuple[bool | None, bool]:
    """Return (as `asks_alike`, for the conditions of two Ifs; whether for all inputs)."""
    mine, theirs = (node.input[0] for node in nodes)
    asks = asks_alike(outer, mine, theirs)
    if asks is not None:
        return asks, True
    asks = asks_alike(outer, mine, theirs, by_name=True)
    if asks is None and outer.pairs.by_original.keys().isdisjoint(nodes[0].output):  # a single If of B replaces several
        asks = agree(outer, mine, theirs)
    return asks, False


def _assumed(enclosing: Enclosing) -> Assumed:
    """Return the conditions of A and B as required by an untaken branch, and their negations."""
    (x, y), outer = enclosing.nodes, enclosing.outer
    mine = said(outer.a, x.input[0], enclosing.name == BRANCHES[0])
    return mine, said(outer.b, y.input[0], enclosing.theirs == BRANCHES[0])


def _in_place(outer: Walk, nodes: Nodes, name: str, cases: Sequence[int]) -> Iterator[Counterpart]:
    """Yield the nodes of B that make the results of A's node from cutpoints, as a counterpart of its branch."""
    mine, of = held(outer.a, nodes[0])[name], outer.pairs.by_original
    made = [(inner.name, of[o]) for inner, o in zip(mine.output, nodes[0].output) if o in of]
    if not made:
        return
    found = outer.b.cone([value for _, value in made], outer.fed)
    graph = type(mine)(name="in place")
    graph.node.extend(outer.b.nodes[n] for n in found)
    for _, value in made:
        graph.output.add(name=value)
    yield Counterpart(Enclosing(outer, nodes, name, "", cases, in_place=frozenset(found)), mine, graph, made)


# -- parts -----------------------------------------------------------------------------------------------


def held(program: Program, node: NodeProto) -> dict[str, GraphProto]:
    """Return a node's bodies by name; for a call, the function with the model's opsets, as a graph."""
    model = program.skeleton.proto
    function = program.skeleton.functions.of(node)
    if function is None:
        return bodies(node)
    versions = program.skeleton.versions
    if any(versions.get(domain_of(o.domain)) != o.version for o in function.opset_import):
        return {}
    graph = type(model.graph)(name=function.name)
    for name in function.input:
        graph.input.add(name=name)
    for name in function.output:
        graph.output.add(name=name)
    given = {a.name: a for a in (*function.attribute_proto, *node.attribute)}
    for n in function.node:
        graph.node.append(_told(n, given))
    return {function.name: graph}


def _told(node: NodeProto, given: Mapping[str, AttributeProto]) -> NodeProto:
    """Return a copy of a node with references to attributes of the call resolved."""
    found = type(node)()
    found.CopyFrom(node)
    del found.attribute[:]
    for a in node.attribute:
        if a.ref_attr_name and a.ref_attr_name not in given:
            continue
        added = found.attribute.add()
        added.CopyFrom(given[a.ref_attr_name] if a.ref_attr_name else a)
        added.name = a.name
        if a.HasField("g"):
            inner = [_told(n, given) for n in a.g.node]
            del added.g.node[:]
            added.g.node.extend(inner)
    return found


def opened(node: NodeProto, branch: str) -> list[NodeProto]:
    """Return the nodes of a branch, and Identities from its results to the If's."""
    from onnx import NodeProto

    body = bodies(node)[branch]
    given = zip((o.name for o in body.output), node.output)
    return [*body.node, *(NodeProto(op_type="Identity", input=[o], output=[to]) for o, to in given if to)]
