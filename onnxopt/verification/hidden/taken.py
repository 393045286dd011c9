"""Ifs that only one of two models has, or that they do not have alike, with the branch that cases take in their place.

Whoever takes a branch for granted leaves nothing that the If could be compared with, nor those inside it. So both are
compared once more as these cases run them, and what is left to say is which branches none of them takes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.verification.hidden.impossible import cannot_be_taken
from onnxopt.verification.hidden.parts import BRANCHES
from onnxopt.verification.hidden.unseen import changed
from onnxopt.verification.model.decisions import can_change
from onnxopt.verification.model.order import first_of
from onnxopt.verification.pieces.pairs import Pairs
from onnxopt.verification.pieces.sameness import Sameness
from onnxopt.verification.programs.runner import Runner
from onnxopt.verification.programs.spliced import with_branches

if TYPE_CHECKING:
    from onnxopt.verification.programs.program import Program

_DEEP: Final = 8  # Ifs in Ifs


Branch = tuple[str, str]  # the first value of an If, and the attribute


@dataclass
class Taken:
    """What runs the two as some `cases` do. `ran`: the branches that these take, of A's Ifs and of B's; `left`: those
    that they do not, with what decides upon them."""

    a: Runner
    b: Runner
    cases: list[int]
    ran: tuple[set[Branch], set[Branch]]
    left: tuple[dict[Branch, str], dict[Branch, str]]


def as_taken(a: Runner, b: Runner, feeds: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> list[Taken]:
    """The two with branches in place, for cases that take the same; none where nothing can be put in place. Raises
    Failed."""
    found: list[Taken] = []
    left = [Taken(a, b, list(range(len(feeds))), (set(), set()), ({}, {}))]
    for _ in range(_DEEP):
        following: list[Taken] = []
        for one in left:
            parts = _parts(one, feeds, types)
            following += parts
            found += [] if parts or one.a is a else [one]
        left = following
    return found + left


def all_are_taken(groups: Sequence[Taken]) -> bool:
    """Is each branch that some cases do not take one that others do, or that nothing can take?

    What decides upon an If that only the second has decides upon one of the first, or cannot change either.
    """
    for side in (0, 1):
        ran = set[Branch]().union(*(one.ran[side] for one in groups))
        for one in groups:
            open_ = {name for branch, name in one.left[side].items() if branch not in ran}
            if open_ and not open_.isdisjoint(_changing((one.a, one.b)[side].program)):
                return False
    return True


def _parts(one: Taken, feeds: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> list[Taken]:
    """The same with the next Ifs opened, by what cases take."""
    pairs = Pairs(one.a.program, one.b.program)
    apart = changed(pairs, Sameness.of_files(pairs))
    sides = [_conditions(r, nodes, feeds, types, one.cases) for r, nodes in zip((one.a, one.b), apart)]
    if not any(sides):
        return []
    impossible = {
        (i, name)
        for i, truths in sides[0].items()
        for name, truth in zip(BRANCHES, (True, False))
        if truth not in truths.values() and cannot_be_taken(one.a.program, i, name)
    }
    found = []
    for cases in _alike(sides, one.cases):
        runners, ran, left = [], [], []
        for r, side, conditions in zip((one.a, one.b), (0, 1), sides):
            truths = {i: known[cases[0]] for i, known in conditions.items()}
            program = with_branches(r.program, {i: BRANCHES[not t] for i, t in truths.items()}) if truths else r.program
            if program is None:
                return []
            runners.append(r.inside(program))
            nodes = r.program.nodes
            ran.append(one.ran[side] | {(first_of(nodes[i]), BRANCHES[not t]) for i, t in truths.items()})
            left.append(dict(one.left[side]))
            for i, t in truths.items():
                if side or (i, BRANCHES[t]) not in impossible:
                    left[side][first_of(nodes[i]), BRANCHES[t]] = nodes[i].input[0]
        found.append(Taken(runners[0], runners[1], cases, (ran[0], ran[1]), (left[0], left[1])))
    return found


def _changing(program: Program) -> Collection[str]:
    """The values that data, or sizes, can change; all where that is not known."""
    proto = type(program.skeleton.proto)()
    proto.CopyFrom(program.skeleton.proto)
    with contextlib.suppress(Exception):  # of inference, which is no source of verdicts
        return can_change(proto).values
    return {*program.maker, *program.given}


def _conditions(
    runner: Runner,
    nodes: Sequence[int],
    feeds: Sequence[Mapping[str, Any]],
    types: Mapping[str, str],
    cases: Sequence[int],
) -> dict[int, dict[int, bool]]:
    """Of each of these nodes that is an If: whether its condition is true, by case."""
    program = runner.program
    ifs = [i for i in nodes if program.nodes[i].op_type == "If"]
    names = list(dict.fromkeys(program.nodes[i].input[0] for i in ifs))
    made = [n for n in names if n in program.maker]
    opened = runner.open(program.cone(made, ()), types, made) if made else None
    truths: dict[str, dict[int, bool]] = {name: {} for name in names}
    for case in cases:
        values = dict(opened.run(feeds[case])) if opened is not None else {}
        for name in names:
            value = values.get(name, feeds[case].get(name))
            value = program.constant(name) if value is None and name in program.constants else value
            if value is None:
                return {}
            truths[name][case] = bool(np.all(value))
    return {i: truths[program.nodes[i].input[0]] for i in ifs}


def _alike(sides: Sequence[Mapping[int, Mapping[int, bool]]], cases: Sequence[int]) -> list[list[int]]:
    """The cases in which all conditions are the same."""
    found: dict[tuple[bool, ...], list[int]] = {}
    for case in cases:
        found.setdefault(tuple(t[case] for side in sides for t in side.values()), []).append(case)
    return list(found.values())
