"""The second look: pieces, where outputs leave something open, and what rounding alone does."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from onnxopt.verification.inputs.muted import are_few, have_few_rows
from onnxopt.verification.options import DIFFERENT, IN_PIECES, VerifyOptions
from onnxopt.verification.proof import together
from onnxopt.verification.records import JudgedCase, Pieces, Place, Verification
from onnxopt.verification.session import Session
from onnxopt.verification.verdict import could_jump, differences, largest, settle
from onnxopt.worker.service import Died
from onnxopt.worker.serving import Refused

if TYPE_CHECKING:
    from onnxopt.verification.inputs.plan import Plan
    from onnxopt.verification.protocol import Answer

_AT_ONCE: Final = 3  # cases looked at in pieces together
_HELD: Final = 12  # held against each other with branches in place
_CONSPICUOUS: Final = 1e-4  # of its range: by so much an output may not differ without a word on rounding
_LOSS: Final = 10.0  # times the noise of the whole, which float16 has of roundings
_FAR: Final = 100.0  # times the noise of the whole: hardly all of it is that of single numbers
_LARGE: Final = "extremes"  # a case in which narrow floats overflow first
_STARVED: Final = "takes more memory than it may (--memory)"
_CRUDE: Final = 1e-2  # of its range: less may be rounding that a network amplifies


class SecondLook:
    """At one result."""

    def __init__(self, session: Session, options: VerifyOptions, *, foreign: bool) -> None:
        """`foreign`: the result was made elsewhere, and may have parts that the original has not."""
        assert session.plan is not None
        self._session = session
        self._plan: Plan = session.plan
        self._options = options
        self._foreign = foreign
        self.is_alike = False  # do both make outputs by the same operators, of the same constants?
        self.cut_short = ""  # why pieces were not looked into to the end, if they took too long, or too much

    def look(
        self,
        verdict: Verification,
        answers: Sequence[Answer],
        failed: JudgedCase | None,
        untaken: Mapping[str, str],
        taken: Sequence[str],
        *,
        weak: bool,
    ) -> bool:
        """Look into pieces where outputs leave something open; False where they do not, or nothing is to be seen. What
        was looked into before is not again, but for what others add to it."""
        rough = verdict.status == DIFFERENT or failed is not None
        hidden = self._plan.decides and not verdict.exact
        asked = self._options.pieces or self._options.dtype
        if not rough and not asked and self._session.alive and self._session.is_steady:
            is_open = hidden or weak or bool(untaken) or self._asks_files(answers)
            self.is_alike = is_open and bool(self._session.call("alike"))
            if self.is_alike:
                return False
        wrong = {c.name for c in verdict.cases if any(not o.ok or o.uneven for o in c.outputs)}
        open_ = asked or rough or hidden or weak or untaken or wrong or not self._session.is_steady
        deep = bool(answers) and self._hides(taken, untaken)
        pieces, places, status = verdict.pieces, [], verdict.status
        all_ = pieces is not None or deep or self._redecides(answers)
        if not open_ and not all_:
            return False
        wrong |= {failed.name} if failed else set()
        new = [a for a in answers if pieces is None or a.case.name not in pieces.cases]
        groups = together(new, wrong, _AT_ONCE, all_=all_ or not wrong)
        try:
            with self._session.limited():
                for group, proves in groups:
                    self._session.hold(group)
                    found, places = self._session.call("pieces", group, taken)
                    pieces = found if pieces is None else pieces.joined(found, proves=proves)
                    if places:
                        break
                if pieces is None:
                    return False
                if deep and not pieces.complete and not places:
                    why = f"parts that may not have run were not compared ({pieces.note})"
                    pieces.unseen = [*untaken.values(), why]
                if pieces.complete and pieces.unseen and not places and (self._plan.conditions or self._plan.hides):
                    pieces = self._as_taken(answers) or pieces
                told = verdict.worst_rel > _CONSPICUOUS and verdict.worst_rel < float("inf")
                noise = {}
                if told or (rough and not pieces.complete):
                    names = list(dict.fromkeys([*pieces.cases, *(name for group, _ in groups for name in group)]))
                    noise = self._noise(verdict, names, decides=not pieces.complete)
                if noise and not places and self._has_lost_digits(verdict, largest(noise)):
                    lost, places = self._closer(verdict, taken, digits=True)
                    pieces = lost if places else pieces
                elif noise and not places and self._is_far(verdict, largest(noise)):
                    near, places = self._closer(verdict, taken)
                    pieces = near if places else pieces
        except (Died, MemoryError) as e:
            why = str(e) if isinstance(e, Died) else _STARVED
            if verdict.worst_rel < _CRUDE and verdict.status == DIFFERENT:  # it may be rounding: nobody is accused
                raise Refused(f"the outputs differ by {verdict.worst_rel:.1e}, and looking into pieces {why}") from None
            self.cut_short = why if isinstance(e, MemoryError) or e.late else ""
            return False
        if self._options.by_tolerance or failed is not None:
            verdict.pieces, verdict.places, verdict.noise = pieces, places, largest(noise)
        else:
            settle(verdict, pieces, places, noise)
            if not open_ and verdict.status == IN_PIECES:
                verdict.status = status
        return True

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
        self._session.hold(names)
        found: tuple[Pieces, list[Place]] = self._session.call("pieces", names, taken, digits, not digits)
        return found

    def _as_taken(self, answers: Sequence[Answer]) -> Pieces | None:
        """What pieces say with branches in place of Ifs; None unless that leaves nothing open."""
        names = [a.case.name for a in answers if a.proves][:_HELD]
        if not names:
            return None
        self._session.hold(names)
        found: Pieces | None = self._session.call("as_taken", names, _AT_ONCE)
        return found

    def _asks_files(self, answers: Sequence[Answer]) -> bool:
        """Would files be asked for parts that differ and that no case shows?"""
        p = self._plan
        return bool(answers and (p.hides or p.conditions or p.decisions or p.steps or p.within or p.muted))

    def _hides(self, taken: Sequence[str], untaken: Mapping[str, str]) -> bool:
        """May there be parts that differ and that no case ran, but for branches of which that is known?"""
        is_seen = not self._plan.hides and {*taken, *untaken}.issuperset(self._plan.conditions)
        if is_seen and not self._foreign:
            return False
        return bool(self._session.alive and self._session.call("hides"))

    def _redecides(self, answers: Sequence[Answer]) -> bool:
        """May there be decisions that agree, and say nothing of what they were made of, or what few rows hide?"""
        plan, sizes = self._plan, [a.case.dims for a in answers if a.proves]
        hides = bool(plan.muted) and are_few(max((d.get(s, 0) for s in plan.rows), default=0) for d in sizes)
        if not (answers and (plan.decisions or plan.steps or plan.within or hides) and self._session.alive):
            return False
        found: bool | list[str] = self._session.call("redecides")
        return found if isinstance(found, bool) else have_few_rows(self._session.original, found, sizes)

    def _noise(self, verdict: Verification, names: list[str], *, decides: bool) -> dict[str, dict[str, float]]:
        """What rounding alone does to the outputs, by case. Where it `decides` nothing and is only told, what it does
        to the one that differs most, where that does, is enough, and the result may stand for the original."""
        differ, told = differences(verdict.cases), verdict.worst
        most = [c.name for c in verdict.cases for o in c.outputs if o.name == told and o.max_rel == differ[told]]
        names = sorted(names, key=lambda name: name not in most)[:_AT_ONCE]
        self._session.hold(names)
        of_result = not decides and could_jump(self._plan) and not self._options.dtype
        found: dict[str, dict[str, float]] = self._session.call(
            "noise", names, differ, told if not decides and names[0] in most else "", of_result
        )
        return found

    def unshown(self, verdict: Verification, answers: Sequence[Answer]) -> dict[str, str]:
        """Of a result that agrees and was made elsewhere: what bounds would tell that no case reaches, and roundings
        that this runtime leaves out."""
        found: list[str] = []
        if self._foreign and verdict.agrees and answers and self._session.alive and not self._options.by_tolerance:
            names = [a.case.name for i, a in enumerate(answers) if not i or a.case.name == _LARGE]
            with contextlib.suppress(Died, MemoryError), self._session.limited():  # nothing is known of it then
                self._session.hold(names)
                found = self._session.call("unshown", names)
        return {why: why for why in found}
