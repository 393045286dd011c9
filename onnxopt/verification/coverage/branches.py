"""What of B stands for a body of a node of A.

For a branch of an If that is the same branch where B asks the same, and the other where it asks the opposite. Where B
asks something else, or nothing, since it knows the answer, it is whatever makes in B what the If makes: in the cases
that take the branch, for of others it says nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from onnxopt.verification.coverage.parts import BRANCHES, held, holds, taken
from onnxopt.verification.model.functions import domain_of
from onnxopt.verification.pieces.enclosing import Enclosing
from onnxopt.verification.pieces.sameness import Sameness
from onnxopt.verification.programs.runner import Failed

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

    from onnxopt.verification.pieces.walk import Walk
    from onnxopt.verification.programs.program import Program
    from onnxopt.verification.programs.runner import Runner

Nodes = tuple["NodeProto", "NodeProto"]  # of A and B
Assumed = tuple[Mapping[str, bool], Mapping[str, bool]]  # conditions of A and B
_NOTHING: Final[Assumed] = ({}, {})
_BOOL: Final = 9  # of TensorProto.DataType
_STRING: Final = 8
# Operators that make booleans; of a Cast that depends on what it casts to.
_BOOLEAN: Final = frozenset((
    "Not", "And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "IsNaN", "IsInf",
))  # fmt: skip


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
    if _is_if(x):
        yield from _of_branches(outer, nodes)
    elif x.op_type == y.op_type and x.domain == y.domain:
        theirs, cases = held(outer.b, y), range(len(outer.original.values))
        for name, graph in held(outer.a, x).items():
            if name in theirs:
                yield Counterpart(Enclosing(outer, nodes, name, name, cases), graph, theirs[name])


def known_here(walk: Walk, name: str) -> bool | None:
    """What the branches around a body of A say of a condition; None if they say nothing."""
    straight = True
    while True:
        name, is_so = asked(walk.a, name)
        straight = straight is is_so
        enclosing = walk.enclosing
        if enclosing is None or not _is_captured(walk.a, name):
            return None
        x, walk = enclosing.nodes[0], enclosing.outer
        if _is_if(x):
            known = _said(walk.a, x.input[0], enclosing.name == BRANCHES[0])
            name, is_so = asked(walk.a, name)
            straight = straight is is_so
            if name in known:
                return known[name] is straight


def _is_if(node: NodeProto) -> bool:
    return node.op_type == "If" and not domain_of(node.domain)


def _of_branches(outer: Walk, nodes: Nodes) -> Iterator[Counterpart]:
    (x, y), every = nodes, range(len(outer.original.values))
    mine, theirs = held(outer.a, x), held(outer.b, y) if _is_if(y) else {}
    asks = _asks_alike(outer, x.input[0], y.input[0]) if theirs else None
    is_sure = asks is not None
    if theirs and not is_sure:
        asks = _asks_alike(outer, x.input[0], y.input[0], by_name=True)
        if asks is None and outer.pairs.by_original.keys().isdisjoint(x.output):  # B has one in the place of several
            asks = _agree(outer, x.input[0], y.input[0])
    branches = [taken(outer, x, k) for k in every]
    for name, other in zip(BRANCHES, BRANCHES if asks else reversed(BRANCHES)):
        cases = [k for k in every if branches[k] == name]
        if name in mine and cases and not is_sure:
            yield from _in_place(outer, nodes, name, cases)
        if name in mine and other in theirs and asks is not None:
            enclosing = Enclosing(outer, nodes, name, other, cases or every, is_sure)
            yield Counterpart(enclosing, mine[name], theirs[other], assumed=_NOTHING if cases else _assumed(enclosing))


def _assumed(enclosing: Enclosing) -> Assumed:
    """What the conditions of A and B would be, and what they are the opposite of."""
    (x, y), outer = enclosing.nodes, enclosing.outer
    mine = _said(outer.a, x.input[0], enclosing.name == BRANCHES[0])
    return mine, _said(outer.b, y.input[0], enclosing.theirs == BRANCHES[0])


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


# -- conditions ------------------------------------------------------------------------------------------


def asked(program: Program, name: str) -> tuple[str, bool]:
    """What a condition asks, and whether it asks so, or the opposite."""
    *_, (found, is_so) = _said(program, name, True).items()
    return found, is_so


def _said(program: Program, name: str, truth: bool) -> dict[str, bool]:
    """What a condition says, and what it is the opposite of, and so on."""
    found = {name: truth}
    while name in program.maker:
        node = program.nodes[program.maker[name]]
        if domain_of(node.domain) or not (node.op_type in ("Not", "Identity") or _keeps_truth(program, node)):
            break
        name, truth = node.input[0], truth is (node.op_type != "Not")
        found[name] = truth
    return found


def _keeps_truth(program: Program, node: NodeProto) -> bool:
    """Is it a Cast to booleans, or one of them to zeros and ones, which some exporter casts back?"""
    to = next((a.i for a in node.attribute if a.name == "to"), 0) if node.op_type == "Cast" else 0
    return to == _BOOL or (to not in (0, _STRING) and _is_boolean(program, node.input[0]))


def _is_boolean(program: Program, name: str) -> bool:
    node = program.nodes[program.maker[name]] if name in program.maker else None
    if node is None or domain_of(node.domain):
        return False
    return node.op_type in _BOOLEAN or any(a.name == "to" and a.i == _BOOL for a in node.attribute)


def _asks_alike(walk: Walk, mine: str, theirs: str, *, by_name: bool = False) -> bool | None:
    """Does B's condition ask the same as A's, or the opposite (False), whatever the inputs are; or, `by_name`, do those
    that are called so agree? None: neither."""
    straight = True
    while True:
        if _is_one(walk, mine, theirs, by_name=by_name):
            return straight
        (mine, is_so), (theirs, is_theirs_so) = asked(walk.a, mine), asked(walk.b, theirs)
        straight = straight is (is_so is is_theirs_so)
        if walk.enclosing is None or not (_is_captured(walk.a, mine) and _is_captured(walk.b, theirs)):
            return straight if _is_one(walk, mine, theirs, by_name=by_name) else None
        walk = walk.enclosing.outer


def _agree(walk: Walk, mine: str, theirs: str) -> bool | None:
    """Is B's condition in all cases what A's is, or the opposite (False)? None: neither, or that is not known."""
    if theirs not in walk.agreed or theirs not in walk.pairs.of:
        return None
    every = range(len(walk.original.values))
    both = [(holds(walk, mine, k), holds(walk, walk.pairs.of[theirs], k)) for k in every]
    found = {a is b for a, b in both}
    return found.pop() if len(found) == 1 and not any(None in pair for pair in both) else None


def _are_alike_folded(walk: Walk, mine: str, theirs: str) -> bool:
    """Are they made alike of what constants make, which one of the two may have folded?"""
    if (known := walk.folded.get((mine, theirs))) is not None:
        return known
    held = (
        _made_of_constants(walk.runner, mine, walk.fed_of_a),
        _made_of_constants(walk.replay.runner, theirs, walk.fed),
    )
    found = any(held) and Sameness(walk.pairs, walk.agreed, walk.replay.views, held).are_made_alike(mine, theirs)
    walk.folded[mine, theirs] = found
    return found


def _made_of_constants(runner: Runner, value: str, fed: Collection[str]) -> dict[str, Any]:
    """What nodes on the way from what is fed to this value make of constants only, and others read."""
    program = runner.program
    found = [i for i in program.cone([value], fed) if program.fixed.isdisjoint(program.nodes[i].output)]
    read = [r for r in dict.fromkeys(r for i in found for r in program.reads[i]) if r in program.fixed]
    if not read:
        return {}
    try:
        return dict(runner.open(program.cone(read, ()), {}, read).run({}))
    except Failed:
        return {}


def _is_captured(program: Program, name: str) -> bool:
    """Does a body read it from outside?"""
    is_own = name in program.maker or any(name == i.name for i in program.graph.input)
    return program.is_body and not is_own and not program.is_constant(name)


def _is_one(walk: Walk, mine: str, theirs: str, *, by_name: bool) -> bool:
    """Is a value of A that one of B, by what stands in the files; or does it agree, and is called so?"""
    a, b = walk.a, walk.b
    if a.is_constant(mine) or b.is_constant(theirs):
        both = mine in a.constants and theirs in b.constants
        return both and np.array_equal(a.constant(mine), b.constant(theirs))
    if mine in a.maker and theirs in b.maker:
        if by_name:
            return theirs in walk.agreed and walk.pairs.of.get(theirs) == mine
        return walk.sameness.are_made_alike(mine, theirs) or _are_alike_folded(walk, mine, theirs)
    if mine in a.maker or theirs in b.maker:
        return False
    enclosing, places = walk.enclosing, [[i.name for i in p.graph.input] for p in (a, b)]
    if enclosing is None:
        return mine == theirs
    if len(places[0]) != len(places[1]) or mine not in places[0] or theirs not in places[1]:
        return False
    k, (x, y) = places[0].index(mine), enclosing.nodes
    if k != places[1].index(theirs):
        return False
    if x.op_type == "Loop" and k < 2:
        return True
    is_given = min(len(x.input), len(y.input)) > k
    return is_given and _asks_alike(enclosing.outer, x.input[k], y.input[k], by_name=by_name) is True
