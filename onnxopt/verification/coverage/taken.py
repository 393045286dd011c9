"""Ifs that only one of two models has, or that they do not have alike, with the branch that cases take in their place.

Whoever takes a branch for granted leaves nothing that the If could be compared with, nor those inside it. So both are
compared once more as these cases run them, if they take all branches that data may take, and all together that may be
taken together: of two Ifs that always take the same one may have been taken for the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.verification.coverage.branches import asked
from onnxopt.verification.coverage.changes import changed
from onnxopt.verification.coverage.impossible import cannot_be_taken
from onnxopt.verification.coverage.parts import BRANCHES
from onnxopt.verification.model.decisions import can_change
from onnxopt.verification.pieces.pairs import Pairs
from onnxopt.verification.pieces.sameness import Sameness
from onnxopt.verification.programs.runner import Runner
from onnxopt.verification.programs.spliced import with_branches

if TYPE_CHECKING:
    from onnxopt.verification.programs.program import Program

_DEEP: Final = 8  # Ifs in Ifs


@dataclass
class Taken:
    """What runs the two as some `cases` do. `unanswered`: what decides upon Ifs of A, or of B only, and has one answer
    in all of them, though nothing says that A fails with the other."""

    a: Runner
    b: Runner
    cases: list[int]
    unanswered: tuple[set[str], set[str]]


@dataclass
class _Question:
    """What decides upon Ifs of A, and of B, which calls it `theirs`: whether it is so, by case. `ifs`: those of A, and
    whether they ask so or the opposite."""

    mine: str = ""
    theirs: str = ""
    truths: dict[int, bool] = field(default_factory=dict)
    ifs: list[tuple[int, bool]] = field(default_factory=list)


def as_taken(a: Runner, b: Runner, feeds: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> list[Taken]:
    """The two with branches in place, for cases that take the same; none where nothing can be put in place, or the
    cases do not take all that others may. Raises Failed."""
    found: list[Taken] = []
    left = [Taken(a, b, list(range(len(feeds))), (set(), set()))]
    for _ in range(_DEEP):
        following: list[Taken] = []
        for one in left:
            parts = _parts(one, feeds, types)
            if parts is None:
                return []
            following += parts
            found += [] if parts or one.a is a else [one]
        left = following
    found += left
    return [] if any(map(_may_be_otherwise, found)) else found


def _parts(one: Taken, feeds: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> list[Taken] | None:
    """The same with the next Ifs opened, by what cases take; None if other data may take what none of them does."""
    pairs = Pairs(one.a.program, one.b.program)
    apart = changed(pairs, Sameness.of_files(pairs))
    sides = [_conditions(r, nodes, feeds, types, one.cases) for r, nodes in zip((one.a, one.b), apart)]
    if not any(sides):
        return []
    questions = _questions(pairs, sides)
    if not _all_are_answered(one, questions):
        return None
    unanswered = _unanswered(one, questions)
    both = [q for q in questions if q.mine in pairs.a.maker and q.theirs in pairs.b.maker]
    found = []
    for cases in _alike(sides, one.cases):
        runners = []
        for r, conditions, kept in zip((one.a, one.b), sides, ([q.mine for q in both], [q.theirs for q in both])):
            branches = {i: BRANCHES[not known[cases[0]]] for i, known in conditions.items()}
            program = with_branches(r.program, branches, kept) if branches or kept else r.program
            if program is None:
                return []
            runners.append(r.inside(program))
        found.append(Taken(runners[0], runners[1], cases, unanswered))
    return found


def _questions(pairs: Pairs, sides: Sequence[Mapping[int, Mapping[int, bool]]]) -> list[_Question]:
    """What decides upon these Ifs of A, and of B: the same where what they ask is called so, and is the same in all
    cases."""
    found: dict[str, _Question] = {}
    for i, truths in sides[0].items():
        name, is_so = asked(pairs.a, pairs.a.nodes[i].input[0])
        question = found.setdefault(name, _Question(name, truths={k: t is is_so for k, t in truths.items()}))
        question.ifs.append((i, is_so))
    only: dict[str, _Question] = {}
    for j, truths in sides[1].items():
        name, is_so = asked(pairs.b, pairs.b.nodes[j].input[0])
        known = {k: t is is_so for k, t in truths.items()}
        same = found.get(pairs.of.get(name, name if name in pairs.a.given else ""))
        if same is not None and same.truths == known:
            same.theirs = name
        else:
            only.setdefault(name, _Question(theirs=name, truths=known))
    return [*found.values(), *only.values()]


def _all_are_answered(one: Taken, questions: Sequence[_Question]) -> bool:
    """Do the cases answer those that they do not all answer alike in each way in which they may be answered
    together?"""
    open_ = [q for q in questions if len({*q.truths.values()}) > 1]
    answers = {tuple(q.truths[k] for q in open_) for k in one.cases}
    return len(answers) == 1 << len(open_)


def _unanswered(one: Taken, questions: Sequence[_Question]) -> tuple[set[str], set[str]]:
    """What has one answer in all cases, of A and of B only, but where A cannot come to an end with the other."""
    found = set(one.unanswered[0]), set(one.unanswered[1])
    for q in questions:
        if len({*q.truths.values()}) == 1:
            answer = next(iter(q.truths.values()))
            others = [(i, BRANCHES[is_so is answer]) for i, is_so in q.ifs]
            if not any(cannot_be_taken(one.a.program, i, other) for i, other in others):
                found[not q.mine].add(q.mine or q.theirs)
    return found


def _may_be_otherwise(group: Taken) -> bool:
    """May callers give what has another answer, where all else is as these cases have it? Asked when all branches are
    in place: before, less is known of sizes."""
    sides = zip(group.unanswered, (group.a, group.b))
    return any(names and not names.isdisjoint(_changing(r.program)) for names, r in sides)


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
