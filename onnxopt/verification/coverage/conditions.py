"""Conditions of parts of a model, and bodies of a node of A with their counterparts in B."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, ValueInfoProto

from onnxopt.verification.model.nodes import deciding_of, domain_of, first_of, int_of
from onnxopt.verification.model.ranges import ANY
from onnxopt.verification.pieces.outcome import Enclosing, depth
from onnxopt.verification.pieces.pairs import Sameness
from onnxopt.verification.pieces.walk import Walk
from onnxopt.verification.programs.program import Program, bodies
from onnxopt.verification.programs.runner import Runner, Values
from onnxopt.verification.run import Failed

BRANCHES: Final = ("then_branch", "else_branch")
_BOOL: Final = 9  # of TensorProto.DataType
_STRING: Final = 8


# -- in the cases ----------------------------------------------------------------------------------------


def is_open(program: Program, node: NodeProto) -> bool:
    """Return whether inputs may change which parts of a node run."""
    return program.changing is None or first_of(node) in program.changing.open


def is_never(program: Program, node: NodeProto, body: str) -> bool:
    """Return whether no input runs a branch of an If, according to the file."""
    if program.changing is None or body not in BRANCHES:
        return False
    possible = program.changing.possible(first_of(node))
    return bool(possible) and (body == BRANCHES[0]) not in possible


def running(walk: Walk, node: NodeProto, body: str) -> list[int]:
    """Return the cases in which a body of A's node runs; in no case if its condition was released.

    Inside a body, A's values are those of the first iteration.
    """
    every = range(len(walk.original.values))
    if node.op_type == "If":
        return [k for k in every if holds(walk, node.input[0], k) is (body == BRANCHES[0])]
    return [k for k in every if all(holds(walk, r, k) for r in filter(None, deciding_of(node)))]


def holds(walk: Walk, condition: str, case: int) -> bool | None:
    """Return whether a condition of A is true, or a trip count positive, in a case; None if released."""
    value = value_of(walk, condition, case)
    return None if value is None else bool(np.all(np.asarray(value) > 0))


def value_of(walk: Walk, name: str, case: int) -> Any:
    """Return a value of A in a case; None if released."""
    return walk.a.constant(name) if walk.a.is_constant(name) else walk.original.values[case].get(name)


# -- in the file -----------------------------------------------------------------------------------------


def asked(program: Program, name: str) -> tuple[str, bool]:
    """Return (root of a condition, whether equal to the root and not its negation)."""
    *_, (found, is_so) = said(program, name, True).items()
    return found, is_so


def said(program: Program, name: str, truth: bool) -> dict[str, bool]:
    """Return {value: truth} implied by a condition, along negations and casts back to the root."""
    found = {name: truth}
    while name in program.maker:
        node = program.nodes[program.maker[name]]
        if domain_of(node.domain) or not (node.op_type in ("Not", "Identity") or _keeps_truth(program, node)):
            break
        name, truth = node.input[0], truth is (node.op_type != "Not")
        found[name] = truth
    return found


def _keeps_truth(program: Program, node: NodeProto) -> bool:
    """Return whether a node casts to booleans, or booleans to zeros and ones, as some exporters do."""
    if node.op_type != "Cast":
        return False
    to, operand = int_of(node, "to"), program.ranges.get(node.input[0], ANY)
    return to == _BOOL or (to != _STRING and operand.integer and operand.low >= 0 and operand.high <= 1)


# -- in both models --------------------------------------------------------------------------------------


def asks_alike(walk: Walk, mine: str, theirs: str) -> bool | None:
    """Return whether B's condition equals A's (True) or its negation (False) for all inputs, else None."""
    straight = True
    while True:
        (mine, is_so), (theirs, is_theirs_so) = asked(walk.a, mine), asked(walk.b, theirs)
        straight = straight is (is_so is is_theirs_so)
        if _is_one(walk, mine, theirs):
            return straight
        if walk.enclosing is None or not (_is_captured(walk.a, mine) and _is_captured(walk.b, theirs)):
            return None
        walk = walk.enclosing.outer


def agree(walk: Walk, mine: str, theirs: str) -> bool | None:
    """Return whether B's condition equals A's (True) or its negation (False) in all cases.

    None if neither, or unknown.
    """
    if theirs not in walk.agreed or theirs not in walk.pairs.of:
        return None
    names, cases = (mine, walk.pairs.of[theirs]), range(len(walk.original.values))
    truths = ([holds(walk, name, k) for name in names] for k in cases)
    found = {None if None in (x, y) else x is y for x, y in truths}
    return found.pop() if len(found) == 1 else None


def _is_captured(program: Program, name: str) -> bool:
    """Return whether a body reads a value from outside."""
    return name in program.given.difference(i.name for i in program.graph.input)


def _is_one(walk: Walk, mine: str, theirs: str) -> bool:
    """Return whether a value of A equals a value of B according to the files."""
    given = [name not in p.maker and not p.is_constant(name) for p, name in ((walk.a, mine), (walk.b, theirs))]
    if any(given):
        return all(given) and _are_one_input(walk, mine, theirs)
    if walk.sameness.are_made_alike(mine, theirs):
        return True
    folded = _folded(walk.runner, mine, walk.fed_of_a), _folded(walk.replay.runner, theirs, walk.fed)
    return any(folded) and Sameness(walk.pairs, walk.agreed, walk.replay.views, folded).are_made_alike(mine, theirs)


def _folded(runner: Runner, value: str, fed: Collection[str]) -> Values:
    """Return the constant values read by nodes between `fed` and a value, computed by a run; {} if it fails."""
    program = runner.program
    nodes = [i for i in program.cone([value], fed) if program.fixed.isdisjoint(program.nodes[i].output)]
    read = [*dict.fromkeys(r for i in nodes for r in program.reads[i] if r in program.fixed)]
    with contextlib.suppress(Failed):
        return runner.open(program.cone(read, ()), {}, read).run({}) if read else {}
    return {}


def _are_one_input(walk: Walk, mine: str, theirs: str) -> bool:
    """Return whether two names are the same input of the models, or of bodies with equal operands."""
    if walk.enclosing is None:
        return mine == theirs
    inputs, others = ([i.name for i in p.graph.input] for p in (walk.a, walk.b))
    if len(inputs) != len(others) or dict(zip(inputs, others)).get(mine) != theirs:
        return False
    k, (x, y) = inputs.index(mine), walk.enclosing.nodes
    if x.op_type == "Loop" and k < 2:
        return True
    is_given = min(len(x.input), len(y.input)) > k
    return is_given and asks_alike(walk.enclosing.outer, x.input[k], y.input[k]) is True


# -- counterparts -----------------------------------------------------------------------------------------
# A branch corresponds to the same branch if B's condition is equal, and to the opposite branch if negated. If B's
# condition is different or missing (known by B), the branch corresponds to the nodes of B that make the If's results,
# in the cases that take the branch.

_MAX_ASSUMED: Final = 4  # nested parts in which untaken branches are run on assumed conditions too
Nodes = tuple["NodeProto", "NodeProto"]  # of A and B


def counterparts(outer: Walk, i: int, j: int) -> Iterator[Enclosing]:
    """Yield the bodies of A's node `i` with counterparts in B's node `j`, or in B's nodes in place of an If."""
    x, y = nodes = outer.a.nodes[i], outer.b.nodes[j]
    if x.op_type == "If":
        yield from _of_branches(outer, nodes)
    elif x.op_type == y.op_type and x.domain == y.domain:
        mine, theirs, cases = held(outer.a, x), held(outer.b, y), range(len(outer.original.values))
        for name in (name for name in mine if name in theirs):
            yield Enclosing(outer, nodes, (name, name), (mine[name], theirs[name]), cases)


def _of_branches(outer: Walk, nodes: Nodes) -> Iterator[Enclosing]:
    x, y = nodes
    mine, theirs = held(outer.a, x), held(outer.b, y) if y.op_type == "If" else {}
    asks, is_sure = _asks(outer, nodes) if theirs else (None, False)
    for name, other in zip(BRANCHES, BRANCHES if asks else reversed(BRANCHES)):
        if name not in mine:
            continue
        cases = running(outer, x, name)
        if not is_sure and cases:
            yield from _in_place(outer, nodes, name, cases)
        if other not in theirs or asks is None:
            continue
        some = cases or range(len(outer.original.values))
        found = Enclosing(outer, nodes, (name, other), (mine[name], theirs[other]), some, is_sure)
        yield found
        if not cases and depth(outer) < _MAX_ASSUMED:
            told = said(outer.b, y.input[0], other == BRANCHES[0]) | said(outer.a, x.input[0], name == BRANCHES[0])
            yield replace(found, assumed=told)


def _asks(outer: Walk, nodes: Nodes) -> tuple[bool | None, bool]:
    """Return (as `asks_alike`, for the conditions of two Ifs; whether for all inputs)."""
    mine, theirs = (node.input[0] for node in nodes)
    asks = asks_alike(outer, mine, theirs)
    if asks is not None:
        return asks, True
    (x, is_so), (y, is_theirs_so) = asked(outer.a, mine), asked(outer.b, theirs)
    if y in outer.agreed and outer.pairs.of.get(y, y) == x:
        return is_so is is_theirs_so, False
    is_single = outer.pairs.by_original.keys().isdisjoint(nodes[0].output)  # a single If of B replaces several
    return agree(outer, mine, theirs) if is_single else None, False


def _in_place(outer: Walk, nodes: Nodes, name: str, cases: Sequence[int]) -> Iterator[Enclosing]:
    """Yield the nodes of B that make the results of A's node from cutpoints, as a counterpart of its branch.

    cases: those that take the branch.
    """
    mine, of = held(outer.a, nodes[0])[name], outer.pairs.by_original
    made = [(inner.name, of[o]) for inner, o in zip(mine.output, nodes[0].output) if o in of]
    if made:
        found = outer.b.cone([value for _, value in made], outer.fed)
        graph = GraphProto(name="in place", node=[outer.b.nodes[n] for n in found])
        graph.output.extend(ValueInfoProto(name=value) for _, value in made)
        graphs = mine, graph
        yield Enclosing(outer, nodes, (name, ""), graphs, cases, outputs=made, in_place=frozenset(found))


# -- parts -----------------------------------------------------------------------------------------------


def held(program: Program, node: NodeProto) -> dict[str, GraphProto]:
    """Return a node's bodies by name; for a call, the function with the model's opsets, as a graph."""
    function = program.skeleton.functions.of(node)
    if function is None:
        return bodies(node)
    versions = program.skeleton.versions
    if any(versions.get(domain_of(o.domain)) != o.version for o in function.opset_import):
        return {}
    graph = GraphProto(name=function.name, node=function.node)
    graph.input.extend(ValueInfoProto(name=name) for name in function.input)
    graph.output.extend(ValueInfoProto(name=name) for name in function.output)
    _resolve(graph, {a.name: a for a in (*function.attribute_proto, *node.attribute)})
    return {function.name: graph}


def _resolve(graph: GraphProto, given: Mapping[str, AttributeProto]) -> None:
    """Resolve references to attributes of a call, in place."""
    for node in graph.node:
        told = NodeProto()
        for a in node.attribute:
            if found := given.get(a.ref_attr_name) if a.ref_attr_name else a:
                told.attribute.add().CopyFrom(found)
                told.attribute[-1].name = a.name
        del node.attribute[:]
        node.attribute.extend(told.attribute)
        for body in bodies(node).values():
            _resolve(body, given)


def opened(node: NodeProto, branch: str) -> list[NodeProto]:
    """Return the nodes of a branch, and Identities from its results to the If's."""
    body = bodies(node)[branch]
    given = zip((o.name for o in body.output), node.output)
    return [*body.node, *(NodeProto(op_type="Identity", input=[o], output=[to]) for o, to in given if to)]
