"""The second look: pieces, where outputs leave something open, and what rounding alone does."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from onnxopt.errors import OnnxOptError
from onnxopt.verification.inputs.muted import are_few, have_few_rows
from onnxopt.verification.job import LOOK, UNSHOWN
from onnxopt.verification.options import DIFFERENT, IN_PIECES, VerifyOptions
from onnxopt.verification.proof import Proof, together
from onnxopt.verification.records import JudgedCase, Pieces, Place, Verification
from onnxopt.verification.run import is_starved, reason
from onnxopt.verification.verdict import could_jump, differences, largest, settle
from onnxopt.worker.serving import Died, Refused

if TYPE_CHECKING:
    from onnxopt.verification.job import Answer
    from onnxopt.verification.job_runner import JobRunner

_AT_ONCE: Final = 3  # cases looked at in pieces together
_HELD: Final = 12  # held against each other with branches in place
_CONSPICUOUS: Final = 1e-4  # of its range: by so much an output may not differ without a word on rounding
_LOSS: Final = 10.0  # times the noise of the whole, which float16 has of roundings
_FAR: Final = 100.0  # times the noise of the whole: hardly all of it is that of single numbers
_LARGE: Final = "extremes"  # a case in which narrow floats overflow first
_STARVED: Final = "takes more memory than it may (--memory)"
_CRUDE: Final = 1e-2  # of its range: less may be rounding that a network amplifies


class _Seen(NamedTuple):
    pieces: Pieces
    places: list[Place]
    noise: dict[str, dict[str, float]]  # by case


def _wrong(verdict: Verification) -> set[str]:
    """The cases in which an output differs, or a channel of one."""
    return {c.name for c in verdict.cases if any(not o.ok or o.uneven for o in c.outputs)}


class SecondLook:
    """At one result."""

    def __init__(self, runner: JobRunner, options: VerifyOptions) -> None:
        self._runner, self._judge, self._plan, self._options = runner, runner.judge, runner.plan, options
        self._may_be_alike = False  # is that to be asked before pieces are looked into?
        self.is_alike = False  # do both make outputs by the same operators, of the same constants?
        self.cut_short = ""  # why pieces were not looked into to the end, if they took too long, or too much

    def look(self, verdict: Verification, answers: Sequence[Answer], failed: JudgedCase | None, found: Proof) -> bool:
        """Look into pieces where outputs leave something open; False where they do not, or nothing is to be seen. What
        was looked into before is not again, but for what others add to it."""
        try:
            self._runner.begin(LOOK)
            is_rough = verdict.status == DIFFERENT or failed is not None
            is_asked = self._is_asked(verdict, answers, found, is_rough=is_rough)
            seen = self._seen(verdict, answers, failed, found, is_asked=is_asked) if not self.is_alike else None
        except (Refused, OnnxOptError):
            raise
        except Exception as e:
            self._cut_short(verdict, e)
            return False
        if seen is None:
            return False
        if self._options.by_tolerance or failed is not None:
            verdict.pieces, verdict.places, verdict.noise = seen.pieces, seen.places, largest(seen.noise)
            return True
        status = verdict.status
        settle(verdict, seen.pieces, seen.places, seen.noise)
        if not is_asked and verdict.status == IN_PIECES:
            verdict.status = status
        return True

    def _cut_short(self, verdict: Verification, error: Exception) -> None:
        """Note why pieces were not looked into to the end: for want of time or memory, or for a fault of the judge.
        Raises Refused where outputs differ by what may be rounding: nobody is accused."""
        is_fault = not isinstance(error, Died) and not is_starved(error)
        if is_fault and os.environ.get("ONNXOPT_DEBUG"):
            raise error
        why = str(error) if isinstance(error, Died) else _STARVED
        if is_fault:
            command = f"ONNXOPT_DEBUG=1 onnxopt verify {self._runner.opening.original} RESULT"
            why = f"ended in an internal error ({type(error).__name__}: {reason(error)}), which `{command}` shows"
        if verdict.worst_rel < _CRUDE and verdict.status == DIFFERENT:
            raise Refused(f"the outputs differ by {verdict.worst_rel:.1e}, and looking into pieces {why}") from None
        self.cut_short = "" if isinstance(error, Died) and not error.late else why

    def _is_asked(self, verdict: Verification, answers: Sequence[Answer], found: Proof, *, is_rough: bool) -> bool:
        """Do outputs leave something open? Before much work, files are asked whether both are alike."""
        by_caller = bool(self._options.pieces or self._options.dtype)
        is_open = (self._plan.decides and not verdict.exact) or bool(found.weak or found.none or found.untaken)
        is_sound = not is_rough and not by_caller and self._runner.is_steady
        self.is_alike = is_sound and is_open and self._judge.alike()
        self._may_be_alike = is_sound and not is_open
        return by_caller or is_rough or is_open or bool(_wrong(verdict)) or not self._runner.is_steady

    def _seen(
        self,
        verdict: Verification,
        answers: Sequence[Answer],
        failed: JudgedCase | None,
        found: Proof,
        *,
        is_asked: bool,
    ) -> _Seen | None:
        """What pieces and noise say; None where nothing asks for that, or no case can be looked into."""
        is_deep = bool(answers) and self._hides(found)
        all_ = verdict.pieces is not None or is_deep or self._redecides(answers)
        wrong = _wrong(verdict) | ({failed.name} if failed else set())
        known = verdict.pieces.cases if verdict.pieces is not None else ()
        new = [a for a in answers if a.case.name not in known]
        groups = together(new, wrong, _AT_ONCE, all_=all_ or not wrong)
        if not (is_asked or all_) or not (groups or verdict.pieces):
            return None
        if self._may_be_alike and verdict.pieces is None and self._judge.alike():
            self.is_alike = True
            return None
        pieces, places = self._in_groups(verdict.pieces, groups, found)
        if is_deep and not pieces.complete and not places:
            why = f"parts that may not have run were not compared ({pieces.note})"
            pieces.unseen = [*found.untaken.values(), why]
        if pieces.complete and pieces.unseen and not places and (self._plan.conditions or self._plan.hides):
            pieces = self._as_taken(answers) or pieces
        is_rough = verdict.status == DIFFERENT or failed is not None
        noise = {}
        if _CONSPICUOUS < verdict.worst_rel < math.inf or (is_rough and not pieces.complete):
            names = list(dict.fromkeys([*pieces.cases, *(name for group, _ in groups for name in group)]))
            noise = self._noise(verdict, names, decides=not pieces.complete)
        seen = _Seen(pieces, places, noise)
        return self._beside(verdict, seen, found) if noise and not places else seen

    def _beside(self, verdict: Verification, seen: _Seen, found: Proof) -> _Seen:
        """The same, or what a closer look says, where the whole differs by far more than its noise and pieces agree."""
        noise = largest(seen.noise)
        has_lost = self._has_lost_digits(verdict, noise)
        if has_lost or self._is_far(verdict, noise):
            pieces, places = self._closer(verdict, found.taken, digits=has_lost)
            return _Seen(pieces, places, seen.noise) if places else seen
        return seen

    def _in_groups(
        self, pieces: Pieces | None, groups: Sequence[tuple[list[str], bool]], found: Proof
    ) -> tuple[Pieces, list[Place]]:
        """What pieces of these cases say beside what is known, until something differs."""
        places: list[Place] = []
        for group, proves in groups:
            self._runner.hold(group)
            other, places = self._judge.pieces(group, found.taken)
            pieces = other if pieces is None else pieces.joined(other, proves=proves)
            if places:
                break
        assert pieces is not None
        return pieces, places

    def _has_lost_digits(self, verdict: Verification, noise: Mapping[str, float]) -> bool:
        """Does the whole differ by more than roundings of a narrower type do, whose pieces agree as it holds them? No
        noise says nothing."""
        explained = _LOSS * (max(noise.values(), default=0.0) or float("inf"))
        return self._options.dtype == "float16" and not could_jump(self._plan) and verdict.worst_rel > explained

    def _is_far(self, verdict: Verification, noise: Mapping[str, float]) -> bool:
        """Does the whole differ by much more than roundings do, though its pieces agree? A decision may have jumped;
        or a channel is wrong that is next to nothing beside another."""
        return not self._options.dtype and verdict.worst_rel > _FAR * max(noise.values(), default=float("inf"))

    def _closer(
        self, verdict: Verification, taken: Sequence[str], *, digits: bool = False
    ) -> tuple[Pieces, list[Place]]:
        """Pieces once more, each channel beside its own range: of the cases that have most numbers. Or, if it is
        `digits` that are asked for, values for which the type has too few, in the case that differs most."""
        cases = [c for c in verdict.cases if c.outputs]
        if digits:
            names = [max(cases, key=lambda c: max(o.max_rel for o in c.outputs)).name]
        else:
            names = [c.name for c in sorted(cases, key=lambda c: -sum(math.prod(o.shape) for o in c.outputs))][
                :_AT_ONCE
            ]
        self._runner.hold(names)
        return self._judge.pieces(names, taken, digits, not digits)

    def _as_taken(self, answers: Sequence[Answer]) -> Pieces | None:
        """What pieces say with branches in place of Ifs; None unless that leaves nothing open."""
        names = [a.case.name for a in answers if a.proves][:_HELD]
        if not names:
            return None
        self._runner.hold(names)
        return self._judge.as_taken(names, _AT_ONCE)

    def _hides(self, found: Proof) -> bool:
        """May there be parts that differ and that no case ran, but for branches of which that is known?"""
        is_seen = not self._plan.hides and {*found.taken, *found.untaken}.issuperset(self._plan.conditions)
        return (not is_seen or self._runner.opening.foreign) and self._judge.hides()

    def _redecides(self, answers: Sequence[Answer]) -> bool:
        """May there be decisions that agree, and say nothing of what they were made of, or what few rows hide?"""
        plan, sizes = self._plan, [a.case.dims for a in answers if a.proves]
        hides = bool(plan.muted) and are_few(max((d.get(s, 0) for s in plan.rows), default=0) for d in sizes)
        if not (answers and (plan.decisions or plan.steps or plan.within or hides)):
            return False
        found = self._judge.redecides()
        return found if isinstance(found, bool) else have_few_rows(Path(self._runner.opening.original), found, sizes)

    def _noise(self, verdict: Verification, names: list[str], *, decides: bool) -> dict[str, dict[str, float]]:
        """What rounding alone does to the outputs, by case. Where it `decides` nothing and is only told, what it does
        to the one that differs most, where that does, is enough, and the result may stand for the original."""
        differ, told = differences(verdict.cases), verdict.worst
        most = [c.name for c in verdict.cases for o in c.outputs if o.name == told and o.max_rel == differ[told]]
        names = sorted(names, key=lambda name: name not in most)[:_AT_ONCE]
        self._runner.hold(names)
        of_result = not decides and could_jump(self._plan) and not self._options.dtype
        return self._judge.noise(names, differ, told if not decides and names[0] in most else "", of_result)

    def unshown(self, verdict: Verification, answers: Sequence[Answer]) -> list[str]:
        """Of a result that agrees and was made elsewhere: what bounds would tell that no case reaches, and roundings
        that this runtime leaves out."""
        if self._runner.opening.foreign and verdict.agrees and answers and not self._options.by_tolerance:
            names = [a.case.name for i, a in enumerate(answers) if not i or a.case.name == _LARGE]
            with contextlib.suppress(Died, MemoryError):  # nothing is known of it then
                self._runner.begin(UNSHOWN)
                self._runner.hold(names)
                return self._judge.unshown(names)
        return []
