"""Conditions: what decides upon a part of a model, whether cases make it true, and whether B asks the same as A."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.verification.model.functions import domain_of
from onnxopt.verification.model.operators import OPERATORS
from onnxopt.verification.pieces.sameness import Sameness
from onnxopt.verification.programs.runner import Failed

if TYPE_CHECKING:
    from onnx import NodeProto

    from onnxopt.verification.pieces.walk import Walk
    from onnxopt.verification.programs.program import Program
    from onnxopt.verification.programs.runner import Runner

BRANCHES: Final = ("then_branch", "else_branch")
_BOOL: Final = 9  # of TensorProto.DataType
_STRING: Final = 8
# Operators that make booleans; of a Cast that depends on what it casts to.
_BOOLEAN: Final = frozenset(k for k, row in OPERATORS.items() if "forgets" in row.traits and row.high == 1)


def is_if(node: NodeProto) -> bool:
    return node.op_type == "If" and not domain_of(node.domain)


# -- in the cases ----------------------------------------------------------------------------------------


def is_decided(program: Program, node: NodeProto) -> bool:
    """Do constants say what of it runs?"""
    deciding = [n for n in node.input[: {"If": 1, "Loop": 2}.get(node.op_type, 0)] if n]
    return bool(deciding) and all(name in program.fixed or program.is_constant(name) for name in deciding)


def runs(walk: Walk, node: NodeProto, body: str) -> bool:
    """Does this body of a node of A run in any case? What is given is A's own, so that in a body it is what its first
    turn has."""
    kind, reads = node.op_type, [*node.input, "", ""]
    every = range(len(walk.original.values))
    if kind == "If":
        return any(taken(walk, node, k) == body for k in every)
    return kind != "Loop" or any(all(not r or holds(walk, r, k) for r in reads[:2]) for k in every)


def taken(walk: Walk, node: NodeProto, case: int) -> str:
    """The branch that an If of A takes in this case; empty where that is not known any more."""
    truth = holds(walk, node.input[0], case)
    return "" if truth is None else BRANCHES[not truth]


def holds(walk: Walk, condition: str, case: int) -> bool | None:
    """Is a condition of A true, or a number of turns no zero, in this case? None where that is not known any more."""
    a = walk.a
    value = a.constant(condition) if a.is_constant(condition) else walk.original.values[case].get(condition)
    return None if value is None else bool(np.all(np.asarray(value) > 0))


# -- in the file -----------------------------------------------------------------------------------------


def asked(program: Program, name: str) -> tuple[str, bool]:
    """What a condition asks, and whether it asks so, or the opposite."""
    *_, (found, is_so) = said(program, name, True).items()
    return found, is_so


def said(program: Program, name: str, truth: bool) -> dict[str, bool]:
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
        if is_if(x):
            known = said(walk.a, x.input[0], enclosing.name == BRANCHES[0])
            name, is_so = asked(walk.a, name)
            straight = straight is is_so
            if name in known:
                return known[name] is straight


# -- in both models --------------------------------------------------------------------------------------


def asks_alike(walk: Walk, mine: str, theirs: str, *, by_name: bool = False) -> bool | None:
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


def agree(walk: Walk, mine: str, theirs: str) -> bool | None:
    """Is B's condition in all cases what A's is, or the opposite (False)? None: neither, or that is not known."""
    if theirs not in walk.agreed or theirs not in walk.pairs.of:
        return None
    every = range(len(walk.original.values))
    a, b = ([holds(walk, name, k) for k in every] for name in (mine, walk.pairs.of[theirs]))
    if None in a or None in b:
        return None
    return True if a == b else False if a == [not truth for truth in b] else None


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
    if (mine in a.maker) is not (theirs in b.maker):
        return False
    if mine not in a.maker:
        return _are_one_input(walk, mine, theirs, by_name=by_name)
    if by_name:
        return theirs in walk.agreed and walk.pairs.of.get(theirs) == mine
    return walk.sameness.are_made_alike(mine, theirs) or _are_alike_folded(walk, mine, theirs)


def _are_one_input(walk: Walk, mine: str, theirs: str, *, by_name: bool) -> bool:
    """Are they one input of the models, or what is handed alike to bodies at one place?"""
    if walk.enclosing is None:
        return mine == theirs
    places = [[i.name for i in p.graph.input] for p in (walk.a, walk.b)]
    k = _place(mine, places[0])
    if len(places[0]) != len(places[1]) or k is None or k != _place(theirs, places[1]):
        return False
    x, y = walk.enclosing.nodes
    if x.op_type == "Loop" and k < 2:
        return True
    is_given = min(len(x.input), len(y.input)) > k
    return is_given and asks_alike(walk.enclosing.outer, x.input[k], y.input[k], by_name=by_name) is True


def _place(name: str, names: list[str]) -> int | None:
    return names.index(name) if name in names else None


def _are_alike_folded(walk: Walk, mine: str, theirs: str) -> bool:
    """Are they made alike of what constants make, which one of the two may have folded?"""
    if (known := walk.folded.get((mine, theirs))) is not None:
        return known
    sides = (walk.runner, mine, walk.fed_of_a), (walk.replay.runner, theirs, walk.fed)
    held = _made_of_constants(*sides[0]), _made_of_constants(*sides[1])
    found = any(held) and Sameness(walk.pairs, walk.agreed, walk.replay.views, held).are_made_alike(mine, theirs)
    walk.folded[mine, theirs] = found
    return found


def _made_of_constants(runner: Runner, value: str, fed: Collection[str]) -> dict[str, Any]:
    """What nodes on the way from what is fed to this value make of constants only, and others read."""
    program = runner.program
    read = [*dict.fromkeys(_fixed_reads(program, program.cone([value], fed)))]
    if not read:
        return {}
    try:
        return dict(runner.open(program.cone(read, ()), {}, read).run({}))
    except Failed:
        return {}


def _fixed_reads(program: Program, nodes: Collection[int]) -> Iterator[str]:
    for i in nodes:
        if program.fixed.isdisjoint(program.nodes[i].output):
            yield from (r for r in program.reads[i] if r in program.fixed)
