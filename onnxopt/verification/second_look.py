"""Second look: comparison in pieces if whole outputs are inconclusive, and rounding noise."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from onnxopt.errors import OnnxOptError
from onnxopt.verification import DIFFERENT, IN_PIECES, VerifyOptions
from onnxopt.verification.case_runner import CaseRunner
from onnxopt.verification.inputs.values import Case
from onnxopt.verification.inputs.windows import has_few_rows
from onnxopt.verification.job import LOOK, UNSHOWN, Answer
from onnxopt.verification.judge import FAILURES
from onnxopt.verification.loaded import UNSEEN
from onnxopt.verification.model.dataflow import Changing
from onnxopt.verification.model.shapes import NOTHING
from onnxopt.verification.records import CaseRecord, Pieces, Place, Verification
from onnxopt.verification.run import is_starved, reason
from onnxopt.verification.runtime import CPU
from onnxopt.verification.verdict import Proof, could_jump, largest, largest_noise, settle, together
from onnxopt.worker.serving import Died, Refused

_CASES_TOGETHER: Final = 4  # cases compared in pieces together: those of most models
_HELD: Final = 12  # cases compared with taken branches in place of Ifs
_CONSPICUOUS: Final = 1e-4  # relative; a larger difference is reported with the noise
_LOSS: Final = 10.0  # times the noise of the whole: loss of digits in float16
_MAX_NOISE_FACTOR: Final = 100.0  # times the noise of the whole: more than noise of single elements
_OVERFLOWING_CASE: Final = "extremes"  # the case in which narrow floats overflow first
_STARVED: Final = "takes more memory than it may (--memory)"
_WORTH_READING: Final = 1 << 26  # multiplications in a run
_CRUDE: Final = 1e-2  # relative; a smaller difference may be amplified rounding


Seen = tuple[Pieces, list[Place], dict[str, dict[str, float]]]  # pieces, places, and the noise by case
Groups = Sequence[tuple[list[str], bool]]  # names of cases compared together, and whether the cases prove anything


def _wrong(verdict: Verification, failed: CaseRecord | None = None) -> set[str]:
    """Return the names of cases that failed, or with a differing output, or a differing channel of an output."""
    found = {c.name for c in verdict.cases if any(not o.ok or o.uneven for o in c.outputs)}
    return found | ({failed.name} if failed else set())


def _settle(verdict: Verification, seen: Seen, *, is_asked: bool) -> None:
    """Set the verdict from the pieces; if nobody asked for pieces, agreement of all pieces changes no status."""
    (pieces, places, noise), status = seen, verdict.status
    settle(verdict, pieces, places, noise)
    if pieces.complete:
        pieces.branches = [c for why, c in pieces.untaken.items() if why not in pieces.unseen]
    if not (is_asked or pieces.untaken) and verdict.status == IN_PIECES:
        verdict.status = status


def _new_groups(pieces: Pieces | None, answers: Sequence[Answer], wrong: Collection[str], *, all_: bool) -> Groups:
    """Return the groups of cases not compared in pieces yet (see `together`)."""
    new = [a for a in answers if pieces is None or a.case.name not in pieces.cases]
    return together(new, wrong, _CASES_TOGETHER, all_=all_)


class SecondLook(CaseRunner):
    """Comparison of a result in pieces, after the comparison of outputs."""

    is_alike = False  # equal operators on equal constants compute the outputs
    cut_short = ""  # why the comparison in pieces ended early, or ""

    @property
    def options(self) -> VerifyOptions:
        """Of the current result."""
        return self._submission.options

    def look(self, verdict: Verification, answers: Sequence[Answer], failed: CaseRecord | None, found: Proof) -> bool:
        """Compare in pieces if outputs are inconclusive, and update the verdict. Returns False if nothing was compared.

        Cases compared before are not compared again.
        """
        self.is_alike, self.cut_short = False, ""
        if self.job.steps:
            return False
        try:
            self.begin(LOOK)
            is_rough = verdict.status == DIFFERENT or failed is not None
            is_due = is_rough or bool(self.options.pieces or self.options.dtype) or not self.is_steady
            wrong = _wrong(verdict, failed)
            is_asked = is_due or self._is_open(verdict, found) or bool(wrong)  # outputs are inconclusive
            seen = self._seen(verdict, answers, wrong, is_asked=is_asked, is_due=is_due, is_rough=is_rough)
        except (Refused, OnnxOptError):
            raise
        except Exception as e:
            self._cut_short(verdict, e)
            return False
        if seen is None:
            return False
        if self.options.by_tolerance or failed is not None:
            verdict.pieces, verdict.places, verdict.noise = *seen[:2], largest_noise(seen[2])
        else:
            _settle(verdict, seen, is_asked=is_asked)
        return True

    def _is_open(self, verdict: Verification, found: Proof) -> bool:
        """Return whether equal outputs leave a doubt."""
        return (self.plan.decides and not verdict.exact) or bool(found.weak or found.none)

    def _cut_short(self, verdict: Verification, error: Exception) -> None:
        """Record why the comparison in pieces ended early: time, memory, or an internal error.

        Raises Refused if outputs differ by no more than amplified rounding may explain.
        """
        is_fault = not isinstance(error, Died) and not is_starved(error)
        if is_fault and os.environ.get("ONNXOPT_DEBUG"):
            raise error
        why = str(error) if isinstance(error, Died) else _STARVED
        if is_fault:
            command = f"ONNXOPT_DEBUG=1 onnxopt verify {self.job.original} RESULT"
            why = f"ended in an internal error ({type(error).__name__}: {reason(error)}), which `{command}` shows"
        if verdict.worst_rel < _CRUDE and verdict.status == DIFFERENT:
            raise Refused(f"the outputs differ by {verdict.worst_rel:.1e}, and looking into pieces {why}") from None
        self.cut_short = "" if isinstance(error, Died) and not error.late else why

    def _alike(self) -> bool:
        """Return whether equal operators on equal constants compute all outputs, according to the files.

        Asked only if comparing in pieces is expensive, as pieces say more.
        """
        with contextlib.suppress(*UNSEEN):
            return self.judge.work > _WORTH_READING and self.judge.looked().is_alike()
        return False

    def _seen(
        self,
        verdict: Verification,
        answers: Sequence[Answer],
        wrong: Collection[str],
        *,
        is_asked: bool,
        is_due: bool,
        is_rough: bool,
    ) -> Seen | None:
        """Return the pieces, places and noise (if rounding may explain a difference).

        None if not needed, or no case can be compared.
        """
        is_deep = self._hides()
        all_ = verdict.pieces is not None or is_deep or self._may_decide(answers)
        groups = _new_groups(verdict.pieces, answers, wrong, all_=all_ or not wrong)
        if not (is_asked or (all_ and answers)) or not (groups or verdict.pieces):
            return None
        self.is_alike = not is_due and verdict.pieces is None and self._alike()
        return None if self.is_alike else self._by_pieces(verdict, answers, groups, is_deep=is_deep, is_rough=is_rough)

    def _by_pieces(
        self, verdict: Verification, answers: Sequence[Answer], groups: Groups, *, is_deep: bool, is_rough: bool
    ) -> Seen:
        """Compare groups of cases in pieces, find gaps unless a place is wrong, and measure noise if asked for."""
        pieces, places = self._in_groups(verdict.pieces, groups)
        if not places:
            pieces = self._with_gaps(pieces, answers, is_deep=is_deep)
        if _CONSPICUOUS < verdict.worst_rel < math.inf or (is_rough and not pieces.complete):
            names = chain(pieces.cases, *(group for group, _ in groups))
            return self._with_noise(verdict, pieces, places, [*dict.fromkeys(names)])
        return pieces, places, {}

    def _with_noise(self, verdict: Verification, pieces: Pieces, places: list[Place], names: list[str]) -> Seen:
        """Return the same with the noise. If the whole differs far beyond, agreeing pieces are compared closer."""
        noise = self._noise(verdict, names, decides=not pieces.complete)
        if noise and not places and self._is_far(verdict, max(largest_noise(noise).values(), default=math.inf)):
            closer, places = self._closer(verdict, digits=bool(self.options.dtype))
            pieces = closer if places else pieces
        return pieces, places, noise

    def _with_gaps(self, pieces: Pieces, answers: Sequence[Answer], *, is_deep: bool) -> Pieces:
        """Return agreeing pieces with the gaps in parts that no case ran."""
        if is_deep and not pieces.complete:
            pieces.unseen = [f"parts that may not have run were not compared ({pieces.note})"]
        if pieces.complete and pieces.unseen and self.plan.hides:
            taken = self._as_taken(answers)
            return pieces if taken is None else replace(taken, untaken=pieces.untaken)
        return pieces

    def _is_far(self, verdict: Verification, noise: float) -> bool:
        """Return whether the whole differs far beyond noise."""
        if not self.options.dtype:  # a flipped decision, or a wrong channel negligible beside a larger channel
            return verdict.worst_rel > _MAX_NOISE_FACTOR * noise
        # Digits lost in float16, while all pieces agree in float16; unknown noise never shows a loss.
        is_lossy = verdict.worst_rel > _LOSS * (noise or math.inf) and not could_jump(self.plan)
        return is_lossy and self.options.dtype == "float16"

    def _in_groups(self, pieces: Pieces | None, groups: Groups) -> tuple[Pieces, list[Place]]:
        """Compare groups of cases in pieces until a fault is found; join with the known pieces."""
        places: list[Place] = []
        for group, proves in groups:
            self.hold(group)
            other, places = self.judge.pieces(group)
            pieces = other if pieces is None else pieces.joined(other, proves=proves)
            if places:
                break
        assert pieces is not None
        return pieces, places

    def _closer(self, verdict: Verification, *, digits: bool) -> tuple[Pieces, list[Place]]:
        """Compare again, each channel relative to its own range, on the cases with most elements.

        digits: look for values with too few digits in the narrower type instead, in the case with the largest
        difference.
        """
        cases = verdict.compared
        if digits:
            names = [max(cases, key=lambda c: max(o.max_rel for o in c.outputs)).name]
        else:
            cases.sort(key=lambda c: -sum(math.prod(o.shape) for o in c.outputs))
            names = [c.name for c in cases[:_CASES_TOGETHER]]
        self.hold(names)
        return self.judge.pieces(names, digits, not digits)

    def _as_taken(self, answers: Sequence[Answer]) -> Pieces | None:
        """Compare with taken branches in place of Ifs. Returns None if gaps remain."""
        names = [a.case.name for a in answers if a.proves][:_HELD]
        with contextlib.suppress(*FAILURES):
            return self.judge.looked().as_taken(self._cases(names), _CASES_TOGETHER) if names else None
        return None

    def _cases(self, names: Sequence[str]) -> list[Case]:
        self.hold(names)
        return [self.judge.kept[name][0] for name in names]

    def _hides(self) -> bool:
        """Return whether inputs decide which parts of a model run; asked of a foreign result as well."""
        with contextlib.suppress(OSError, ValueError):  # reported when run
            if self.job.foreign and not self.plan.hides:
                proto = self.judge.side(1).skeleton.proto
                return Changing(proto.graph, proto.functions).hides
        return self.plan.hides

    def _may_decide(self, answers: Sequence[Answer]) -> bool:
        """Return whether decisions, or values changed for rare numbers or few rows, may hide a difference."""
        rare, muted = self.plan.rare, self.plan.muted
        if self.plan.decides or not (rare or muted):
            return self.plan.decides
        sizes = [a.case.dims for a in answers if a.proves]
        with contextlib.suppress(OSError, ValueError):
            pairs = self.judge.looked().pairs
            changed = [pairs.of[v] for v in pairs.by_name.made_differently(pairs.made_from([*rare, *muted]))]
            shapes = self.judge.side(0).shapes if changed else {}
            return any(n in rare or has_few_rows(shapes.get(n, NOTHING).shape or (), sizes) for n in changed)
        return False

    def _noise(self, verdict: Verification, names: list[str], *, decides: bool) -> dict[str, dict[str, float]]:
        """Return the rounding noise by case and output.

        decides: whether the verdict depends on noise. Otherwise measuring stops once the worst output's difference is
        explained, and the result may be measured in place of the original.
        """
        differ, told = largest((o.name, o.max_rel) for o in verdict.outputs), verdict.worst
        most = [c.name for c in verdict.cases for o in c.outputs if o.name == told and o.max_rel == differ[told]]
        names = sorted(names, key=lambda name: name not in most)[:_CASES_TOGETHER]
        self.hold(names)
        of_result = not decides and could_jump(self.plan) and not self.options.dtype
        return self.judge.noise(names, differ, told if not decides and names[0] in most else "", of_result)

    def unshown(self, verdict: Verification, answers: Sequence[Answer]) -> list[str]:
        """Return, in words, differences that no case shows in a foreign result.

        Such differences lie beyond bounds not reached by the first case, or in float16 rounding omitted by this
        runtime.
        """
        judge, options = self.judge, self.options
        is_asked = answers and self.job.foreign and verdict.agrees and not (options.by_tolerance or options.dtype)
        if is_asked and not (judge.streamed or self.plan.random):
            names = [a.case.name for i, a in enumerate(answers) if not i or a.case.name == _OVERFLOWING_CASE]
            with contextlib.suppress(Died, *FAILURES):  # unknown then
                self.begin(UNSHOWN)
                cases, look = self._cases(names), judge.looked()
                judge.rest()
                return [*look.unreached(cases[0]), *(look.rounded(cases) if judge.runtime.provider == CPU else ())]
        return []
