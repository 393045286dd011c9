"""Strength of the cases, independent of any result: variation of the original's outputs, and branches taken."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from onnxopt.verification import DIFFERENT
from onnxopt.verification.inputs.cases import SINGLE
from onnxopt.verification.inputs.plan import Plan
from onnxopt.verification.job import Answer
from onnxopt.verification.model.decisions import always_empty, open_conditions
from onnxopt.verification.records import JudgedCase
from onnxopt.verification.verdict import untaken_branches, weak_outputs

_PROVES_NOTHING: Final = "zeros, ones and a batch of one agree with too much to prove anything"


class Proof(NamedTuple):
    """Why the cases prove little."""

    weak: dict[str, str]  # reason, by output
    untaken: dict[str, str]  # reason, by condition
    taken: list[str]  # conditions with both branches taken
    none: str = ""  # why no case proves anything, or ""


def proof(
    files: Sequence[Path], plan: Plan, answers: Sequence[Answer], *, fixed: bool, called: Mapping[str, str]
) -> Proof:
    """Return the proof of the cases, counting only those that prove something (`Recipe.proves`).

    files: original and result; fixed: inputs are the same in all cases; called: {result output: original output} if
    renamed.
    """
    ran = [a for a in answers if a.evidence]
    found = [a for a in ran if a.proves]
    if not plan.inputs or not ran:
        return Proof({}, {}, [])
    if not found:
        return Proof({}, {}, [], _PROVES_NOTHING)
    answers = [a for a in answers if a.proves]
    # An output fed in some case (a default given out) is an input.
    names = [name for name in found[0].evidence if all(name in a.evidence for a in found)]
    outputs = {name: [a.evidence[name] for a in found] for name in names}
    branches: dict[str, set[bool]] = {}
    for answer in answers:
        for name, taken in answer.branches.items():
            branches.setdefault(name, set()).add(taken)
    untaken = untaken_branches(branches)
    both = [name for name in branches if name not in untaken]
    if untaken:
        with contextlib.suppress(Exception):  # inference is no source of verdicts
            still_open = open_conditions(files[0])
            untaken = {name: why for name, why in untaken.items() if name in still_open}
    return Proof(_unless_empty(weak_outputs(outputs, fixed), files, called), untaken, both)


def _unless_empty(weak: Mapping[str, str], files: Sequence[Path], called: Mapping[str, str]) -> dict[str, str]:
    """Return `weak` without outputs always empty in both files: no inputs could show more."""
    found = dict(weak)
    for name in _always_empty(files[0]) if weak else ():
        if name not in {called.get(other, other) for other in _always_empty(files[1])}:
            continue
        found.pop(name, None)
    return found


def _always_empty(file: Path) -> set[str]:
    with contextlib.suppress(Exception):  # inference is no source of verdicts
        return always_empty(file)
    return set()


def together(
    answers: Sequence[Answer], wrong: Collection[str], most: int, *, all_: bool
) -> list[tuple[list[str], bool]]:
    """Return groups of at most `most` cases to compare in pieces, each with whether its cases prove anything.

    Only cases in `wrong` are used, unless `all_` is set or no case is wrong. Groups are not mixed, as a mixed group
    would claim the coverage of a case without proof.
    """
    asked = [a for a in answers if all_ or a.case.name in wrong] or answers
    found = []
    for proves in (True, False):
        names = sorted((a.case.name for a in asked if a.proves is proves), key=lambda name: name not in wrong)
        found += [(names[i : i + most], proves) for i in range(0, len(names), most)]
    return found


def telling(answers: Sequence[Answer], cases: Sequence[JudgedCase]) -> tuple[list[Answer], list[JudgedCase]]:
    """Return answers and cases without the batch of one, if nothing differs there."""
    told = [(a, c) for a, c in zip(answers, cases, strict=True) if a.case.name != SINGLE.name or _differs(c)]
    return [a for a, _ in told], [c for _, c in told]


def _differs(case: JudgedCase) -> bool:
    return case.status == DIFFERENT or any(not o.ok for o in case.outputs)
