"""Worker side of a verification: runs cases, compares in pieces, and returns the verdict.

The worker announces each step beforehand. After a crash, a new worker receives the deaths and known cases, and raises
`Died` instead of repeating a fatal step.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onnxopt.errors import OnnxOptError
from onnxopt.verification.batches import NAME as BATCHES
from onnxopt.verification.inputs.cases import FURTHER, LONGER, OWN, RECIPES, ROWS, Recipe, missing
from onnxopt.verification.inputs.datasets import Data
from onnxopt.verification.job import (
    COMPARE,
    JUST_LOAD,
    LOAD,
    OPEN,
    OPTIMIZED,
    ORIGINAL,
    RELEASE,
    Answer,
    Begun,
    Compared,
    Concluded,
    Death,
    Opened,
    Opening,
    Preparation,
    Read,
    Request,
    Submission,
)
from onnxopt.verification.missing import UNREGISTERED_HINT
from onnxopt.verification.options import DIFFERENT, IN_PIECES, INCONCLUSIVE, UNLOADED, UNVERIFIED, VerifyOptions
from onnxopt.verification.proof import Proof, proof, telling
from onnxopt.verification.records import LEFT_OUT, JudgedCase, Verification
from onnxopt.verification.run import is_starved, reason
from onnxopt.verification.runtime import UNREGISTERED
from onnxopt.verification.second_look import SecondLook
from onnxopt.verification.verdict import conclude, is_unexplained, told_optimized, word, worst_of
from onnxopt.worker.serving import Died, Refused, Tell

if TYPE_CHECKING:
    from onnxopt.verification.judge import Judge

_OF_A_CHANNEL: Final = 16  # elements of a channel; with fewer, last bits may explain the difference
_REPORT: Final = "please report it, with both models: `ONNXOPT_DEBUG=1 onnxopt verify {} {}` shows where"
_REAL: Final = "give real data with --input NAME=FILE.npy"
_TIED: Final = "an operator ties the samples of a batch to one another"
_PLAN: Final = "raise --verify-memory"
_OTHER_STEPS: Final = 5  # steps besides those of the cases
_UNFINISHED: Final = "not run: an earlier case did not finish"


class JobRunner:
    """Verifies results against one original, case by case, with a `judge`."""

    def __init__(self, judge: Judge, tell: Tell) -> None:
        self.judge = judge
        self.opened = Opened()
        self.is_steady = True  # the original's outputs repeat
        self.left_out = 0  # cases not run for lack of time
        self._tell = tell
        self._failure: Exception | None = None  # raised by loading or running the original; prevents any comparison
        self._answers: list[Answer] | None = None
        self._requests: list[tuple[Recipe, Read]] = []
        self._more: list[tuple[Recipe, Read]] = []  # cases added for the current result
        self._last: Death | None = None  # the last death caused by the original
        self._submission = Submission("", VerifyOptions())
        self._count = 0  # steps begun
        self.has_loaded = False  # the result is known to load
        self._has_asked = False  # further cases were requested
        self._was_told = False  # the failure of the original was reported

    # -- requests -------------------------------------------------------------------------------------------

    def open(self, opening: Opening) -> None:
        """Load the original, unless the plan must be known first. Errors are raised later, by `verify`."""
        self.opening = opening
        self._tell(Begun(OPEN))
        if opening.ended:
            return
        try:
            self.judge.open(opening.original, opening.options, opening.labels, opening.stepwise)
        except Exception as e:
            self._failure = e

    def prepare(self, preparation: Preparation) -> None:
        """Take the plan and cases, and run the original unless cases run stepwise or are known."""
        if self._failure is not None:
            return
        try:
            self._prepare(preparation)
        except Exception as e:
            self._failure = e

    def _prepare(self, preparation: Preparation) -> None:
        self.plan, self._requests = preparation.plan, list(preparation.requests)
        self.judge.refer(preparation.references)
        for death in preparation.deaths:
            if death.step == OPEN or (not self.opening.stepwise and self._is_of_all(death.step)):
                self._recover(death)
        if self.opening.ended:
            return
        self.opened = self.judge.plan(self.plan)
        self._tell(self.opened)
        if not self.opening.stepwise and preparation.eager:
            try:
                self._answers = self._originals()
                self.judge.read_ahead()
            except Refused:
                if self._last is None or not self.plan.least:
                    raise
                raise _died(self._last) from None  # `_recover` cannot lengthen the inputs any further

    # -- verdict --------------------------------------------------------------------------------------------

    def verify(self, submission: Submission) -> Verification:
        """Return the verdict on a result. Raises errors in files and data named by the user."""
        self._submission = submission
        verdict = submission.verdict or Verification(UNVERIFIED, "")
        a, b = self.opening.labels
        try:
            self._verify(verdict)
        except Refused as e:
            _stop(verdict, UNVERIFIED, str(e), f"{b} was not compared with {a}")
        except Died as e:
            self._explain_death(verdict, e)
        except (OnnxOptError, FileNotFoundError):  # a file removed meanwhile is reported to the user
            raise
        except Exception as e:  # out of memory or an internal error; neither shows a fault of the result
            starved = is_starved(e)
            if not starved and os.environ.get("ONNXOPT_DEBUG"):
                raise
            what = reason(e) if starved else f"internal error: {type(e).__name__}: {reason(e)}"
            report = _REPORT.format(self.opening.original, submission.path)
            hint = "raise --memory, or leave it out" if starved else report
            if e is self._failure:
                hint = f"{b} was not compared with {a}" if self._was_told else hint
                self._was_told = True
            _stop(verdict, UNVERIFIED, f"comparing {b} with {a}: {what}", hint)
        if verdict.status == UNVERIFIED:
            self._refuse_unloaded(verdict)
        return verdict

    def _verify(self, verdict: Verification) -> None:
        if self._failure is not None:
            raise self._failure
        self._more, self._has_asked, self.has_loaded = [], False, False
        is_used = self._submission.verdict is not None or (self._conclude(verdict) and self._holds_in_batches(verdict))
        if is_used:
            self._tell(Concluded(verdict))
            why, original = self._optimized()
            told_optimized(verdict, why, self.opening.labels, original=original)
        with contextlib.suppress(Died):
            self.begin(RELEASE)
            self.judge.release()

    def _holds_in_batches(self, verdict: Verification) -> bool:
        """Return whether samples are independent at twice the size of each freed dim."""
        if not (verdict.agrees and self._submission.options.freed):
            return True
        step = COMPARE + BATCHES
        try:
            self.begin(step)
            cases = self.judge.batches()
        except (Refused, Died) as e:
            if isinstance(e, Died) and any(death.step == step for death in self._submission.deaths):
                raise
            verdict.status = INCONCLUSIVE
            verdict.message += f"; but another size was not compared: {e}"
            return True
        verdict.cases += [replace(case, outputs=case.outputs if case.status == DIFFERENT else []) for case in cases]
        for case in cases:
            if case.status == DIFFERENT:
                _stop(verdict, DIFFERENT, case.note, _TIED)
                return False
            verdict.message += f"; the same for each part at {', '.join(f'{n}={d}' for n, d in case.dims.items())}"
        return True

    def _conclude(self, verdict: Verification) -> bool:
        """Compare without onnxruntime's optimizations. Returns False if the verdict is final."""
        for death in self._submission.deaths:
            if death.step == LOAD or (death.step.startswith(COMPARE) and not self.opening.stepwise):
                raise _died(death)
        if why := self._load():
            _stop(verdict, DIFFERENT, why, UNREGISTERED_HINT if UNREGISTERED in why else "")
            return False
        if self.opening.stepwise:
            answers, cases = self._step_by_step()
            found = self._proof(answers)
        else:
            if self._answers is None:
                known = [k.answer for name, k in self._known.items() if name in self._names]
                self._answers = known or self._originals()
            cases = [self._compare(answer) for answer in self._answers]
            answers, cases = telling(self._answers, cases)
            found = self._proof(answers)
            for recipe in self._others(found, cases):
                if more := self._further([recipe]) if self.is_steady and not _differ(cases) else []:
                    answers, cases = [*answers, *more], [*cases, *map(self._compare, more)]
                    found = self._proof(answers)
        verdict.engine = self.opened.engine
        return self._judge(verdict, answers, cases, found)

    def _judge(
        self, verdict: Verification, answers: Sequence[Answer], cases: Sequence[JudgedCase], found: Proof
    ) -> bool:
        """Compute the verdict from these cases, and from further cases for coverage gaps."""
        verdict.cases = [replace(c, outputs=[replace(o) for o in c.outputs]) for c in cases]
        compared = [c for c in verdict.cases if c.outputs]
        failed = next((c for s in (DIFFERENT, UNVERIFIED) for c in cases if c.status == s and not c.outputs), None)
        conclude(verdict, compared)
        second = SecondLook(self, self._submission.options)
        is_looked = second.look(verdict, answers, failed, found)
        if failed is None and not self._has_asked and (more := self._for_gaps(verdict)):
            # Further cases do not enter the proof.
            return self._judge(verdict, [*answers, *more], [*cases, *map(self._compare, more)], found)
        if failed is not None:
            name = f"case {failed.name}: " if self.opening.stepwise else ""
            where = f"; it goes wrong at `{verdict.places[0].value}`" if verdict.places else ""
            _stop(verdict, failed.status, f"{name}{failed.note.removesuffix('.')}{where}")
        elif not compared and not (is_looked and (verdict.agrees or verdict.places)):
            self._refuse(verdict, cases)
        else:
            self._word(verdict, second, self._little(verdict, second, found, answers))
            return verdict.status != DIFFERENT
        return False

    def _refuse(self, verdict: Verification, cases: Sequence[JudgedCase]) -> None:
        """Set UNVERIFIED, as no case could be compared. Raises Refused for a nondeterministic model."""
        if not self.is_steady:
            why = "the model is not deterministic: two runs of the original differ"
            note = verdict.pieces.note if verdict.pieces is not None else ""
            raise Refused(f"{why}, and {note or 'not everything could be compared in pieces'}")
        notes = [c.note for c in cases if c.note]
        _stop(verdict, UNVERIFIED, f"no case could be compared: {notes[0] if notes else 'there is none'}")
        verdict.hint = _PLAN if "(--verify-memory)" in verdict.message else _REAL

    def _little(self, verdict: Verification, second: SecondLook, found: Proof, answers: Sequence[Answer]) -> list[str]:
        """Return the reasons, in words, why the cases prove little."""
        weak, untaken, _, none = found
        pieces = verdict.pieces
        if second.is_alike:
            weak, untaken, none = {}, {}, ""
        if verdict.status == IN_PIECES and pieces is not None and pieces.says_something:
            # Inner values are covered by pieces.
            weak = {name: why for name, why in weak.items() if name in pieces.dead}
        if pieces is not None and (pieces.complete or pieces.unseen):
            pieces.branches = [name for name, why in untaken.items() if why not in pieces.unseen]
            untaken = {why: why for why in pieces.unseen}
        little = [*filter(None, [none]), *weak.values()]
        if verdict.status == IN_PIECES and is_unexplained(
            verdict, self.plan, narrow=bool(self._submission.options.dtype)
        ):
            little.append("each piece agrees, but the whole differs by far more than rounding explains")
        little += dict.fromkeys([*untaken.values(), *second.unshown(verdict, answers)])
        if second.cut_short:
            little.append(f"looking into pieces {second.cut_short}")
        if self.left_out:
            little.append(f"{self.left_out} more could not be run, for these took all of --timeout")
        return little

    def _word(self, verdict: Verification, second: SecondLook, little: Sequence[str]) -> None:
        if self.opened.around and not self.opening.ended:
            self.opened = self.opened._replace(around=self.judge.around())
        word(verdict, little, opened=self.opened, declared=self._submission.declared)
        verdict.message += self.judge.with_references((self.opening.original, self._submission.path))
        compared = [c for c in verdict.cases if c.outputs]
        if verdict.status == DIFFERENT:
            worst = worst_of(compared)
            if self.opening.stepwise and worst is not None:
                verdict.message = f"case {worst[0].name}: {verdict.message}"
            return
        if verdict.status == INCONCLUSIVE:
            verdict.hint = _REAL
        reached = max((n for c in compared for n in c.dims.values()), default=0)
        if self.plan.symbols and (beyond := [n for n in self.plan.other_sizes if n > reached]):
            verdict.message += f"; only one of the two has {beyond[0] - 1} as a size, which no case exceeds"

    def _proof(self, answers: Sequence[Answer]) -> Proof:
        files = Path(self.opening.original), Path(self._submission.path)
        options = self._submission.options
        fixed = self.plan.gives_all(options.inputs)
        return proof(files, self.plan, answers, fixed=fixed, called=options.original_names)

    # -- cases ----------------------------------------------------------------------------------------------

    @property
    def _known(self) -> dict[str, Compared]:
        return self._submission.known

    @property
    def _names(self) -> list[str]:
        return [recipe.name for recipe, _ in self._requests]

    def _originals(self) -> list[Answer]:
        """Run the original on all requests. Raises Refused if no case runs."""
        found = [self._original(recipe, read()) for recipe, read in self._requests]
        for answer, (recipe, _) in zip(found, self._requests):
            if answer.case.status == "skipped" and recipe.override:
                raise Refused(f"the original fails with other values for its initializers: {answer.case.note}")
        if self.plan.random:
            self.is_steady = self.judge.deterministic()
        self._tell(Begun(LOAD, self._done))
        taken = [a for a in found if a.case.status != "skipped"]
        if not taken:
            why = found[0].case.note if found else "there is no input to try"
            runs, refused = "the original", self.opened.refused
            if refused:
                runs = f"onnxruntime cannot load the original ({refused}), and in the reference evaluator it"
            raise Refused(why.replace("the original does not take it: ", f"{runs} fails on every input tried: "))
        return taken

    def _original(self, recipe: Recipe, data: Data) -> Answer:
        self.begin(ORIGINAL + recipe.name)
        return self.judge.original(Request(recipe, data, self._base))

    @property
    def _base(self) -> dict[str, int] | None:
        """Return the dims of the first known case run by an earlier worker, else None."""
        known = (k.answer.case.dims for name, k in self._known.items() if name in RECIPES or name == OWN[0].name)
        return next(known, None)

    def _load(self) -> str:
        """Load the result. Returns the reason for a refusal, or "" (also after the time limit)."""
        if self.opening.ended:
            return ""
        self.begin(LOAD)
        why = self.judge.result(self._submission.path, self._submission.options)
        self.has_loaded = not why
        return why

    def _compare(self, answer: Answer, data: Data | None = None) -> JudgedCase:
        """Run the result on a case and return the comparison.

        For a nondeterministic original, the original's case is returned unchanged.
        """
        name = answer.case.name
        if name in self._known:
            return self._known[name].case
        if not self.is_steady:
            return answer.case
        self.begin(COMPARE + name)
        if data is None:
            self.hold([name])
        found = self.judge.compare(name, data.expected if data is not None else {})
        if found.status != DIFFERENT and any(not o.ok for o in found.outputs):
            found.status = DIFFERENT
        self._tell(Compared(answer, found))
        return found

    def hold(self, names: Sequence[str]) -> None:
        """Run the original again on the named cases, unless still in memory."""
        for recipe, read in [*self._requests, *self._more]:
            if recipe.name in names:
                self.judge.hold(Request(recipe, read(), self._base))

    def _others(self, found: Proof, cases: Sequence[JudgedCase]) -> Iterator[Recipe]:
        """Yield recipes of further cases, as needed.

        Longer inputs if outputs prove nothing; more rows if a channel of few elements differs by much of its range, as
        rounding may explain; cases for numbers of only one model (`Judge.of_both`).
        """
        if found.weak:
            yield LONGER
        uneven = [o.shape for c in cases for o in c.outputs if o.uneven]
        if any(math.prod(shape) < _OF_A_CHANNEL * max(shape) for shape in uneven):
            yield ROWS
        if not _differ(cases) and not self.opening.ended:
            yield from self.judge.of_both([*self._submission.options.inputs])

    def _for_gaps(self, verdict: Verification) -> list[Answer]:
        """Run the original on further cases, once, if the result agrees but coverage has gaps."""
        is_seen = verdict.pieces is None or not verdict.pieces.unseen or not verdict.agrees
        if is_seen or self.opening.stepwise or not self.is_steady:
            return []
        self._has_asked = True
        return self._further([r for r in FURTHER if not missing(r, self.plan, self._submission.options.inputs)])

    def _further(self, recipes: Sequence[Recipe]) -> list[Answer]:
        """Run the original on more cases for the current result. A case fatal to the original is left out."""
        found: list[Answer] = []
        for recipe in recipes if self._requests else ():
            if recipe.name in self._known:
                found.append(self._known[recipe.name].answer)
                continue
            try:
                answer = self._original(recipe, self._requests[0][1]())
            except Died:
                continue
            if answer.case.status != "skipped":
                found.append(answer)
                self._more.append((recipe, self._requests[0][1]))
        return found

    def _step_by_step(self) -> tuple[list[Answer], list[JudgedCase]]:
        """Run each case separately: a death is the verdict of its case.

        No case begins after the timeout is used up.
        """
        answers: list[Answer] = []
        cases: list[JudgedCase] = []
        end = time.monotonic() + self._submission.options.timeout - self._submission.spent
        self.left_out = 0
        for i, (recipe, read) in enumerate(self._requests):
            if answers and time.monotonic() > end:
                self.left_out = len(self._requests) - i
                return answers, [*cases, *self._skipped(i, LEFT_OUT)]
            answer, case = self._alone(recipe, read, bool(answers))
            cases.append(case)
            answers += [answer] if answer is not None else []
            if self.opening.ended and recipe.name not in self._known:
                return answers, [*cases, *self._skipped(i + 1, _UNFINISHED)]
        return answers, cases

    def _skipped(self, first: int, note: str) -> list[JudgedCase]:
        return [JudgedCase(name, {}, status="skipped", note=note) for name in self._names[first:]]

    def _alone(self, recipe: Recipe, read: Read, has_others: bool) -> tuple[Answer | None, JudgedCase]:
        if (known := self._known.get(recipe.name)) is not None:
            return known.answer, known.case
        for death in self._submission.deaths:
            if death.step not in (ORIGINAL + recipe.name, COMPARE + recipe.name):
                continue
            died = _died(death)
            status = DIFFERENT if died.is_about(self.opening.labels[1]) else "skipped" if recipe.wide else UNVERIFIED
            if status == UNVERIFIED and not death.late and not recipe.tame and recipe.is_bold(self.plan):
                recipe = replace(recipe, tame=True)
            elif status != UNVERIFIED or has_others or not self._lengthen(death):
                return None, JudgedCase(recipe.name, {}, status=status, note=str(died))
        data = read()
        answer = self._original(recipe, data)
        if answer.case.status == "skipped":
            return None, answer.case
        if not has_others and self.plan.random:
            self.is_steady = self.judge.deterministic()
        return answer, self._compare(answer, data)

    # -- deaths ---------------------------------------------------------------------------------------------

    def begin(self, step: str) -> None:
        """Announce a step. Raises Died if an earlier worker died of the same step, or time is over."""
        for death in self._submission.deaths:
            is_tried_again = self.opening.stepwise and step.startswith((ORIGINAL, COMPARE))
            is_tried_again |= self._is_of_all(step)
            if (death.step == step and not is_tried_again) or (death.late and not step.startswith(JUST_LOAD)):
                raise _died(death)
        self._count += 1
        self._tell(Begun(step, self._done))

    @property
    def _done(self) -> float:
        """Return the share of steps finished, below 1."""
        steps = 2 * len(self._requests) + _OTHER_STEPS
        return min(self._count, steps - 1) / steps

    def _is_of_all(self, step: str) -> bool:
        """Return whether a step runs the original on a case common to all results."""
        return step.startswith(ORIGINAL) and step.removeprefix(ORIGINAL) in self._names

    def _recover(self, death: Death) -> None:
        """Leave out optional cases, else lengthen inputs, after the original died. Raises Died if neither is left."""
        died = _died(death)
        is_final = death.step == OPEN or death.late or died.is_about(self.opening.labels[1])
        if is_final or not (self._tame() or self._lengthen(death)):
            raise died
        self._last = death

    def _tame(self) -> bool:
        """Leave out optional cases and optional parts of cases. Returns False if none were left."""
        is_tried = {recipe.name: recipe.wide or recipe.single or recipe.flags > 0 for recipe, _ in self._requests}
        bold = any(is_tried[recipe.name] or recipe.is_bold(self.plan) for recipe, _ in self._requests)
        self._requests = [
            (replace(recipe, tame=True), read) for recipe, read in self._requests if not is_tried[recipe.name]
        ]
        return bold

    def _lengthen(self, death: Death) -> bool:
        """Lengthen the inputs, as the original may have died of short ones.

        Returns False if already done, or if the death was a timeout, an out-of-memory kill, or not in the original.
        """
        is_running = death.state == f"running {self.opening.labels[0]}"
        return is_running and not death.late and "SIGKILL" not in death.how and self.plan.lengthen()

    def _explain_death(self, verdict: Verification, died: Died) -> None:
        if died.late and self._submission.is_rushed:
            _stop(verdict, UNVERIFIED, str(died), f"{self.opening.labels[0]} took most of that: raise --timeout")
        elif died.is_about(self.opening.labels[1]):
            _stop(verdict, DIFFERENT, str(died), "it ran with the original; report it")
        else:
            _stop(verdict, UNVERIFIED, str(died), "give it data that the model is made for")

    # -- loads ----------------------------------------------------------------------------------------------

    def _optimized(self) -> tuple[str, bool]:
        """Return (why the result does not load with onnxruntime's optimizations, or ""; whether the original loads).

        onnxruntime's optimizer crashes on some float16 originals.
        """
        death = next((d for d in self._submission.deaths if d.step == OPTIMIZED), None)
        if death is None and self.opening.ended:
            return "", True
        if death is None:
            self.begin(OPTIMIZED)
            return self.judge.optimized()
        died = _died(death)
        return str(died), died.is_about(self.opening.labels[1]) and not self._unloaded(0, optimize=True)

    def _refuse_unloaded(self, verdict: Verification) -> None:
        """Set DIFFERENT if onnxruntime loads the original but not the uncompared result."""
        options = self._submission.options
        # The CPU provider has no bfloat16 kernels.
        if self.has_loaded or options.without or options.dtype == "bfloat16":
            return
        if self.opening.ended and options.custom_op_libraries:  # not loaded any more
            return
        if (why := self._unloaded(1)) and not self._unloaded(0):
            verdict.cases = []
            _stop(verdict, DIFFERENT, f"{self.opening.labels[1]}{UNLOADED}: {why}")

    def _unloaded(self, which: int, *, optimize: bool = False) -> str:
        """Return why onnxruntime does not load a file (0: original, 1: result); "" if loaded or unknown."""
        label = self.opening.labels[which]
        try:
            self.begin(f"{JUST_LOAD}{label}")
            path = (self.opening.original, self._submission.path)[which]
            return self.judge.unloaded(path, label, optimize)
        except Refused:
            return ""
        except Died as e:
            return str(e) if which == 0 or not e.late else ""


def _differ(cases: Sequence[JudgedCase]) -> bool:
    return any(c.status == DIFFERENT for c in cases)


def _died(death: Death) -> Died:
    return Died(death.state, death.how, death.late)


def _stop(verdict: Verification, status: str, message: str, hint: str = "") -> None:
    verdict.status, verdict.message, verdict.hint = status, message, hint
