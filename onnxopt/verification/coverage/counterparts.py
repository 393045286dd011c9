"""Bodies of a node of A, and what stands for each in B.

For a branch of an If that is the same branch where B asks the same, and the other where it asks the opposite. Where B
asks something else, or nothing, since it knows the answer, it is whatever makes in B what the If makes: in the cases
that take the branch, for of others it says nothing.
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
    """A body of A, and what stands for it in B. `outputs` of both, where these are not the bodies'. `assumed`: what
    conditions of A and B would be, if no case takes the branch."""

    enclosing: Enclosing
    mine: GraphProto
    theirs: GraphProto
    outputs: list[tuple[str, str]] | None = None
    assumed: Assumed = _NOTHING


def counterparts(outer: Walk, i: int, j: int) -> Iterator[Counterpart]:
    """Of the bodies of node i of A, in node j of B; for a branch of an If also in whatever makes the same in B."""
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
    """(does the If of B ask the same as that of A, or the opposite (False), or neither; is that so for any inputs?)."""
    mine, theirs = (node.input[0] for node in nodes)
    asks = asks_alike(outer, mine, theirs)
    if asks is not None:
        return asks, True
    asks = asks_alike(outer, mine, theirs, by_name=True)
    if asks is None and outer.pairs.by_original.keys().isdisjoint(nodes[0].output):  # B has one in place of several
        asks = agree(outer, mine, theirs)
    return asks, False


def _assumed(enclosing: Enclosing) -> Assumed:
    """What the conditions of A and B would be, and what they are the opposite of."""
    (x, y), outer = enclosing.nodes, enclosing.outer
    mine = said(outer.a, x.input[0], enclosing.name == BRANCHES[0])
    return mine, said(outer.b, y.input[0], enclosing.theirs == BRANCHES[0])


def _in_place(outer: Walk, nodes: Nodes, name: str, cases: Sequence[int]) -> Iterator[Counterpart]:
    """What makes in B, of what it is fed, the values that stand for those that the node of A makes."""
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
    """The bodies of a node; of a call, what the function does, as far as it has the operators of the model."""
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
    """The node with the attributes that the call gives."""
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
    """The nodes of a branch, and Identities that hand its results on as those of the If."""
    from onnx import NodeProto

    body = bodies(node)[branch]
    given = zip((o.name for o in body.output), node.output)
    return [*body.node, *(NodeProto(op_type="Identity", input=[o], output=[to]) for o, to in given if to)]
