"""Verdict of a job in the worker: whole outputs, the second look, further cases, and loads."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from onnxopt.errors import OnnxOptError
from onnxopt.verification import DIFFERENT, IN_PIECES, INCONCLUSIVE, UNLOADED, UNVERIFIED
from onnxopt.verification.inputs.cases import FURTHER, LONGER, OWN, RECIPES, ROWS, SINGLE, Recipe, missing
from onnxopt.verification.job import BATCHES, COMPARE, JUST_LOAD, OPTIMIZED, RELEASE, Answer, Submission
from onnxopt.verification.records import CaseRecord, Verification
from onnxopt.verification.run import is_starved, reason
from onnxopt.verification.runtime import UNREGISTERED, UNREGISTERED_HINT
from onnxopt.verification.second_look import SecondLook
from onnxopt.verification.verdict import Proof, conclude, is_unexplained, proof, told_optimized, word, worst_of
from onnxopt.worker.serving import Died, Refused

_OF_A_CHANNEL: Final = 16  # elements of a channel; with fewer, last bits may explain the difference
_REPORT: Final = "please report it, with both models: `ONNXOPT_DEBUG=1 onnxopt verify {} {}` shows where"
_REAL: Final = "give real data with --input NAME=FILE.npy"
_TIED: Final = "an operator ties the samples of a batch to one another"
_PLAN: Final = "raise --verify-memory"


def _first_sizes(submission: Submission) -> dict[str, int] | None:
    """Return the sizes of the first known case of a recipe."""
    known = submission.known.items()
    return next((answer.case.dims for name, answer in known if name in RECIPES or name == OWN[0].name), None)


class JobRunner(SecondLook):
    """Verifies results against one original."""

    _was_told = False  # the failure of the original was reported

    def verify(self, submission: Submission) -> Verification:
        """Return the verdict on a result. Raises errors in files and data named by the user."""
        if isinstance(self._failure, Died) and not submission.deaths and not self.job.ended:
            self._failure, self.job.deaths = None, ()  # a worker died of the original for an earlier result
            self.open(self.job)
        self._submission, self._deaths = submission, submission.deaths
        self.judge.base = self.judge.base or _first_sizes(submission)
        verdict = submission.verdict or Verification(UNVERIFIED, "")
        a, b = self.job.labels
        try:
            self._verify(verdict)
        except Refused as e:
            _stop(verdict, UNVERIFIED, str(e), f"{b} was not compared with {a}")
        except Died as e:
            self._explain_death(verdict, e)
        except (OnnxOptError, FileNotFoundError):  # a file removed meanwhile is reported to the user
            raise
        except Exception as e:  # out of memory or an internal error; neither shows a fault of the result
            if not is_starved(e) and os.environ.get("ONNXOPT_DEBUG"):
                raise
            self._explain_error(verdict, e)
        if verdict.status == UNVERIFIED:
            self._refuse_unloaded(verdict)
        return verdict

    def _explain_error(self, verdict: Verification, error: Exception) -> None:
        a, b = self.job.labels
        what, hint = reason(error), "raise --memory, or leave it out"
        if not is_starved(error):
            what = f"internal error: {type(error).__name__}: {what}"
            hint = _REPORT.format(self.job.original, self._submission.path)
        if error is self._failure:
            hint = f"{b} was not compared with {a}" if self._was_told else hint
            self._was_told = True
        _stop(verdict, UNVERIFIED, f"comparing {b} with {a}: {what}", hint)

    def _verify(self, verdict: Verification) -> None:
        if self._failure is not None:
            raise self._failure
        self._more, self.has_loaded = {}, False
        is_used = self._submission.verdict is not None or (self._conclude(verdict) and self._holds_in_batches(verdict))
        if is_used:
            self._tell(verdict)
            why, original = self._optimized()
            told_optimized(verdict, why, self.job.labels, original=original)
        if sys.platform == "win32":  # a mapped file cannot be renamed: the writer waits for the release
            with contextlib.suppress(Died):
                self.begin(RELEASE)
                self.judge.release()

    def _holds_in_batches(self, verdict: Verification) -> bool:
        """Return whether samples are independent at twice the size of each freed dim."""
        if not (verdict.agrees and self.options.freed):
            return True
        self._refuse_dead(COMPARE + BATCHES)
        try:
            self.begin(COMPARE + BATCHES)
            cases = self.judge.batches()
        except (Refused, Died) as e:
            verdict.status, verdict.reasons = INCONCLUSIVE, [f"another size was not compared: {e}"]
            verdict.message += f"; but {verdict.reasons[0]}"
            return True
        verdict.cases += [c if c.status == DIFFERENT else replace(c, outputs=[]) for c in cases]
        for case in cases:
            if case.status == DIFFERENT:
                _stop(verdict, DIFFERENT, case.note, _TIED)
                return False
            verdict.message += f"; the same for each part at {', '.join(f'{n}={d}' for n, d in case.dims.items())}"
        return True

    def _conclude(self, verdict: Verification) -> bool:
        """Compare without onnxruntime's optimizations. Returns False if the verdict is final."""
        if why := self._load():
            _stop(verdict, DIFFERENT, why, UNREGISTERED_HINT if UNREGISTERED in why else "")
            return False
        every = self._all_compared()  # a batch of one proves nothing
        cases = [c for c in every if c.case.name != SINGLE.name or c.case.status == DIFFERENT]
        found = self._proof(cases)
        for recipe in self._others(found, cases) if not self.job.stepwise else ():
            if more := self._further([recipe]) if self.is_steady and not _differ(cases) else []:
                cases = [*cases, *more]
                found = self._proof(cases)
        verdict.engine = self.opened.engine
        return self._judge(verdict, cases, found)

    def _judge(self, verdict: Verification, cases: Sequence[Answer], found: Proof, *, is_last: bool = False) -> bool:
        """Compute the verdict from these cases, and, unless `is_last`, from further cases for coverage gaps."""
        verdict.cases = [c.case.copied() for c in cases]
        answers = [c for c in cases if c.ran]
        failed = _failed([c for c in verdict.cases if not c.outputs])
        conclude(verdict)
        is_looked = self.look(verdict, answers, failed, found)
        if failed is None and not is_last and (more := self._for_gaps(verdict)):
            # Further cases do not enter the proof.
            return self._judge(verdict, [*cases, *more], found, is_last=True)
        if failed is not None:
            self._fail(verdict, failed)
        elif not verdict.compared and not (is_looked and (verdict.agrees or verdict.places)):
            self._refuse(verdict)
        else:
            self._word(verdict, self._little(verdict, found, answers))
        return verdict.status not in (DIFFERENT, UNVERIFIED)

    def _fail(self, verdict: Verification, failed: CaseRecord) -> None:
        """Set the verdict of a case that did not run."""
        name = f"case {failed.name}: " if self.job.stepwise else ""
        where = f"; it goes wrong at `{verdict.places[0].value}`" if verdict.places else ""
        _stop(verdict, failed.status, f"{name}{failed.note.removesuffix('.')}{where}")

    def _refuse(self, verdict: Verification) -> None:
        """Set UNVERIFIED, as no case could be compared. Raises Refused for a nondeterministic model."""
        if not self.is_steady:
            why = "the model is not deterministic: two runs of the original differ"
            note = verdict.pieces.note if verdict.pieces is not None else ""
            raise Refused(f"{why}, and {note or 'not everything could be compared in pieces'}")
        notes = [c.note for c in verdict.cases if c.note]
        _stop(verdict, UNVERIFIED, f"no case could be compared: {notes[0] if notes else 'there is none'}")
        verdict.hint = _PLAN if "(--verify-memory)" in verdict.message else _REAL

    def _little(self, verdict: Verification, found: Proof, answers: Sequence[Answer]) -> list[str]:
        """Return the reasons, in words, why the cases prove little."""
        pieces = verdict.pieces
        little = _unproven(verdict, found) if not self.is_alike else []
        if verdict.status == IN_PIECES and is_unexplained(verdict, self.plan, narrow=bool(self.options.dtype)):
            little.append("each piece agrees, but the whole differs by far more than rounding explains")
        little += dict.fromkeys([*(pieces.unseen if pieces is not None else ()), *self.unshown(verdict, answers)])
        if self.job.steps and self.plan.hides:
            little.append("which parts ran is unknown for several files in place of a model")
        if self.cut_short:
            little.append(f"looking into pieces {self.cut_short}")
        if self.left_out:
            little.append(f"{self.left_out} more did not run, as these took all of --timeout")
        return little

    def _word(self, verdict: Verification, little: Sequence[str]) -> None:
        if self.opened.around and not self.job.ended:
            self.opened = self.opened._replace(around=self.judge.around())
        word(verdict, little, self.opened, self._submission.declared)
        files = [str(step.file) for step in self.job.steps] or [self._submission.path]
        verdict.message += self.judge.with_references((self.job.original, *files))
        if verdict.status == DIFFERENT:
            worst = worst_of(verdict.compared)
            if self.job.stepwise and worst is not None:
                verdict.message = f"case {worst[0].name}: {verdict.message}"
            return
        if verdict.status == INCONCLUSIVE:
            verdict.hint = _REAL
        verdict.message += self._beyond_all(verdict.compared)

    def _beyond_all(self, compared: Sequence[CaseRecord]) -> str:
        """Return, in words, a size of one of the two models that no case exceeds; else ""."""
        plan = self.plan if self.job.ended else self.judge.planned
        if beyond := [n for n in plan.other_sizes if not any(plan.reaches(c.dims, n) for c in compared)]:
            return f"; only one of the two has {beyond[0] - 1} as a size, which no case exceeds"
        return ""

    def _proof(self, answers: Sequence[Answer]) -> Proof:
        files = Path(self.job.original), Path(self._submission.path)
        options = self.options
        fixed = self.plan.gives_all(options.inputs)
        return proof(files, self.plan, answers, fixed=fixed, called=options.original_names)

    # -- further cases --------------------------------------------------------------------------------------

    def _others(self, found: Proof, cases: Sequence[Answer]) -> Iterator[Recipe]:
        """Yield recipes of further cases, as needed.

        Longer inputs if outputs prove nothing; more rows if a channel of few elements differs by much of its range, as
        rounding may explain; cases for numbers of only one model (`Judge.of_both`).
        """
        if found.weak:
            yield LONGER
        uneven = [o.shape for c in cases for o in c.case.outputs if o.uneven]
        if any(math.prod(shape) < _OF_A_CHANNEL * max(shape) for shape in uneven):
            yield ROWS
        if not _differ(cases) and not self.job.ended:
            yield from self.judge.of_both([*self.options.inputs])

    def _for_gaps(self, verdict: Verification) -> list[Answer]:
        """Compare on further cases if the result agrees but coverage has gaps."""
        is_seen = verdict.pieces is None or not verdict.pieces.unseen or not verdict.agrees
        if is_seen or self.job.stepwise or not self.is_steady:
            return []
        return self._further([r for r in FURTHER if not missing(r, self.plan, self.options.inputs)])

    def _explain_death(self, verdict: Verification, died: Died) -> None:
        if died.late and (self._submission.is_rushed or self.job.steps):
            _stop(verdict, UNVERIFIED, str(died), f"{self.job.labels[0]} took most of that: raise --timeout")
        elif died.is_about(self.job.labels[1]):
            _stop(verdict, DIFFERENT, str(died), "it ran with the original; report it")
        else:
            _stop(verdict, UNVERIFIED, str(died), "give it data that the model is made for")

    # -- loads ----------------------------------------------------------------------------------------------

    def _optimized(self) -> tuple[str, bool]:
        """Return (why the result does not load with onnxruntime's optimizations, or ""; whether the original loads).

        onnxruntime's optimizer crashes on some float16 originals.
        """
        died_of_it = any(death.step == OPTIMIZED + self.job.labels[1] for death in self._deaths)
        is_asked = died_of_it or (not (self.job.ended or self.job.steps) and self.judge.finish())
        why = self._unloaded(1, optimize=True) if is_asked else ""
        return why, not why or not self._unloaded(0, optimize=True)

    def _refuse_unloaded(self, verdict: Verification) -> None:
        """Set DIFFERENT if onnxruntime loads the original but not the uncompared result."""
        options = self.options
        # The CPU provider has no bfloat16 kernels.
        if self.has_loaded or options.without or options.dtype == "bfloat16":
            return
        if self.job.ended and options.custom_op_libraries:  # not loaded any more
            return
        if (why := self._unloaded(1)) and not self._unloaded(0):
            verdict.cases = []
            _stop(verdict, DIFFERENT, f"{self.job.labels[1]}{UNLOADED}: {why}")

    def _unloaded(self, which: int, *, optimize: bool = False) -> str:
        """Return why onnxruntime does not load a file (0: original, 1: result); "" if loaded or unknown."""
        label = self.job.labels[which]
        try:
            self.begin((OPTIMIZED if optimize else JUST_LOAD) + label)
            return self.judge.unloaded((self.job.original, self._submission.path)[which], label, optimize)
        except Refused:
            if optimize:
                raise
            return ""
        except Died as e:
            return str(e) if which == 0 or optimize or not e.late else ""


def _unproven(verdict: Verification, found: Proof) -> list[str]:
    """Return why the cases prove little, without inner values that pieces cover."""
    (weak, none), pieces = found, verdict.pieces
    if verdict.status == IN_PIECES and pieces is not None and pieces.says_something:
        weak = {name: why for name, why in weak.items() if name in pieces.dead}
    return [*filter(None, [none]), *weak.values()]


def _failed(dead: Sequence[CaseRecord]) -> CaseRecord | None:
    """Return the first case without outputs that shows a fault; if none, the first unverified case."""
    return next((c for s in (DIFFERENT, UNVERIFIED) for c in dead if c.status == s), None)


def _differ(cases: Sequence[Answer]) -> bool:
    return any(c.case.status == DIFFERENT for c in cases)


def _stop(verdict: Verification, status: str, message: str, hint: str = "") -> None:
    verdict.status, verdict.message, verdict.hint = status, message, hint
