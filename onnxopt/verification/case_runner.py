"""Worker side of a verification: runs the original and the result on all cases.

The worker announces each step beforehand. After a crash, a new worker receives the deaths and compared cases, and
raises `Died` instead of repeating a fatal step.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from onnxopt.verification import DIFFERENT, UNVERIFIED, VerifyOptions
from onnxopt.verification.inputs.cases import Recipe, is_bold
from onnxopt.verification.inputs.feeding import Data, Read
from onnxopt.verification.job import (
    AHEAD,
    COMPARE,
    JUST_LOAD,
    LOAD,
    OPEN,
    OPTIMIZED,
    ORIGINAL,
    Answer,
    Begun,
    Death,
    Job,
    Opened,
    Submission,
)
from onnxopt.verification.judge import Judge
from onnxopt.verification.records import LEFT_OUT, CaseRecord
from onnxopt.worker.serving import Died, Refused, Tell

_OTHER_STEPS: Final = 5  # steps besides those of the cases
_BRIEF: Final = 0.5  # seconds; shorter runs of the original are repeated before a result needs it
_UNFINISHED: Final = "not run: an earlier case did not finish"


class CaseRunner:
    """Runs the original, and each result, on the cases of a job."""

    def __init__(self, judge: Judge, tell: Tell, is_asked: Callable[[], bool] = lambda: False) -> None:
        """is_asked: returns whether a request waits."""
        self.judge, self._is_asked = judge, is_asked
        self.opened = Opened()
        self.is_steady = True  # the original's outputs repeat
        self.left_out = 0  # cases not run for lack of time
        self.has_loaded = False  # the result is known to load
        self._tell = tell
        self._failure: Exception | None = None  # raised by loading or running the original; prevents any comparison
        self._requests: dict[str, tuple[Recipe, Read]] = {}  # of the job, by name
        self._more: dict[str, tuple[Recipe, Read]] = {}  # added for the current result
        self._answers: dict[str, Answer] = {}  # of the original on `_requests`
        self._submission = Submission("", VerifyOptions())
        self._deaths: Sequence[Death] = ()  # of earlier workers
        self._count = 0  # steps begun

    # -- original -------------------------------------------------------------------------------------------

    def open(self, job: Job) -> None:
        """Load the original, and run it unless cases run stepwise or are known. Errors are left to `verify`."""
        self.job, self._deaths = job, job.deaths
        self._tell(Begun(OPEN))
        try:
            self._refuse_dead(OPEN)
            self._open(job)
        except Exception as e:
            self._failure = e

    def _open(self, job: Job) -> None:
        self.judge.open(job)
        self.plan, requests = (job.plan, job.requests) if job.plan is not None else self.judge.own_cases()
        self._requests = {recipe.name: (recipe, read) for recipe, read in requests}
        if job.ended:
            return
        self.opened = self.judge.plan(self.plan)
        self._tell(self.opened)
        if not job.stepwise and job.eager:  # do work that any result needs
            began = time.monotonic()
            self._run_original()
            # Folded normalizations mostly ask, and loading the original again takes longer; others rarely ask.
            if time.monotonic() - began < _BRIEF and (self.plan.normalizes or not self._is_asked()):
                self.judge.shake_ahead()
            self.judge.rest()  # a result is compared with kept outputs
            if not (self._is_asked() or self._deaths):
                self._tell(Begun(AHEAD, self._done))  # a death here says nothing
                self.judge.read_ahead(self._is_asked)

    def _run_original(self) -> None:
        """Run the original on all requests. Raises Refused if no case runs."""
        found = [self._answer(*request) for request in self._requests.values()]
        for answer, (recipe, _) in zip(found, self._requests.values()):
            if not answer.ran and recipe.override:
                raise Refused(f"the original fails with other values for its initializers: {answer.case.note}")
        self._tell(Begun(LOAD, self._done))
        if not any(answer.ran for answer in found):
            is_lengthened = self.plan.least and self._deaths  # for this result
            raise died_of(self._deaths[-1]) if is_lengthened else Refused(self._why_none(found))

    def _why_none(self, found: Sequence[Answer]) -> str:
        """Return why the original runs on no case."""
        why = found[0].case.note if found else "there is no input to try"
        runs, refused = "the original", self.opened.refused
        if refused:
            runs = f"onnxruntime cannot load the original ({refused}), and in the reference evaluator it"
        return why.replace("the original does not take it: ", f"{runs} fails on every input tried: ")

    # -- cases ----------------------------------------------------------------------------------------------

    def _answer(self, recipe: Recipe, read: Read, data: Data | None = None) -> Answer:
        """Run the original on a case, unless done. Raises Died for a fatal case, unless cases run stepwise."""
        name = recipe.name
        if name in self._answers:
            return self._answers[name]
        recipe, answer = self._after_deaths(recipe, ORIGINAL)
        if answer is None:
            self.begin(ORIGINAL + name)
            answer = self.judge.original(recipe, data or read())
            if answer.ran and self.plan.random and len(self.judge.kept) == 1:
                self.is_steady = self.judge.deterministic()
        if name in self._requests:
            self._requests[name], self._answers[name] = (recipe, read), answer
        else:
            self._more[name] = recipe, read
        return answer

    def _compared(self, recipe: Recipe, read: Read) -> Answer:
        """Run both models on a case, and return the comparison, unless known.

        For a nondeterministic original, the original's case is returned unchanged.
        """
        name = recipe.name
        if name in self._submission.known:
            return self._submission.known[name]
        recipe, dead = self._after_deaths(recipe, COMPARE)
        if dead is not None:
            return dead
        data = read()  # once: files may be as large as memory
        answer = self._answer(recipe, read, data)
        if not answer.ran or not self.is_steady:
            return answer
        self.begin(COMPARE + name)
        self.hold([name])
        found = self.judge.compare(name, data.expected)
        if found.status != DIFFERENT and any(not o.ok for o in found.outputs):
            found.status = DIFFERENT
        answer = replace(answer, case=found)
        self._tell(answer)
        return answer

    def hold(self, names: Sequence[str]) -> None:
        """Run the original again on the named cases, unless still in memory."""
        for name, (recipe, read) in {**self._requests, **self._more}.items():
            if name in names and name not in self.judge.kept:
                self.judge.original(recipe, read())

    def _further(self, recipes: Sequence[Recipe]) -> list[Answer]:
        """Compare on more cases for the current result. A case rejected by, or fatal to, the original is left out."""
        found: list[Answer] = []
        for recipe in recipes if self._requests else ():
            _, read = next(iter(self._requests.values()))
            with contextlib.suppress(Died):
                found.append(self._compared(recipe, read))
        return [answer for answer in found if answer.ran]

    def _load(self) -> str:
        """Load the result. Returns the reason for a refusal, or "" (also after the time limit).

        Raises Died if an earlier worker died of the load, or, unless cases run stepwise, in a comparison of outputs.
        """
        self._refuse_dead(LOAD, *([] if self.job.stepwise else [COMPARE]))
        if self.job.ended:
            return ""
        self.begin(LOAD)
        why = self.judge.result(self._submission.path, self._submission.options)
        self.has_loaded = not why
        return why

    def _all_compared(self) -> list[Answer]:
        """Compare on all cases of the job; after a death in a later step, on the known cases.

        Stepwise, no case begins after the timeout is used up.
        """
        alone, known, found = self.job.stepwise, self._submission.known, list[Answer]()
        end = time.monotonic() + self._submission.options.timeout - self._submission.spent if alone else math.inf
        names = [name for name in self._requests if name in known and not alone] or [*self._requests]
        self.left_out = 0
        for i, name in enumerate(names):
            if time.monotonic() > end and any(answer.ran for answer in found):
                self.left_out = len(names) - i
                return [*found, *_all_skipped(names[i:], LEFT_OUT)]
            found.append(self._compared(*self._requests[name]))
            if self.job.ended and name not in known:
                return [*found, *_all_skipped(names[i + 1 :], _UNFINISHED)]
        return [answer for answer in found if answer.ran or alone]

    # -- deaths ---------------------------------------------------------------------------------------------

    def begin(self, step: str) -> None:
        """Announce a step. Raises Died if an earlier worker died of the same step, or time is over."""
        if not step.startswith((ORIGINAL, COMPARE)):  # see `_after_deaths`
            self._refuse_dead(step)
        if not step.startswith((JUST_LOAD, OPTIMIZED)):
            self._refuse_dead("", is_late=True)
        self._count += 1
        self._tell(Begun(step, self._done))

    def _refuse_dead(self, *steps: str, is_late: bool = False) -> None:
        """Raise Died if an earlier worker died in a step that begins so. `is_late`: of the time limit."""
        for death in self._deaths:
            if death.step.startswith(steps) and (death.late or not is_late):
                raise died_of(death)

    @property
    def _done(self) -> float:
        """Return the share of steps finished, below 1."""
        steps = 2 * len(self._requests) + _OTHER_STEPS
        return min(self._count, steps - 1) / steps

    def _after_deaths(self, recipe: Recipe, step: str) -> tuple[Recipe, Answer | None]:
        """Return the recipe after deaths of workers in a step, or the answer of a case that is not run.

        A bold case is tamed once. Raises Died for a fatal case, unless cases run stepwise, or the case is optional.
        """
        name, alone = recipe.name, self.job.stepwise
        for death in self._deaths:
            if death.step != step + name:
                continue
            died = died_of(death)
            status = self._status_of(recipe, step, died)
            if status == UNVERIFIED and not death.late and is_bold(self.plan, recipe, self.judge.base):
                recipe = recipe._replace(tame=True)
            elif status != UNVERIFIED or not self._lengthen(death):
                if status != "skipped" and not alone:
                    raise died
                return recipe, _skipped(name, str(died), status)
        return recipe, None

    def _status_of(self, recipe: Recipe, step: str, died: Died) -> str:
        """Return the status of a case after a death in a step."""
        if step == COMPARE and died.is_about(self.job.labels[1]):
            return DIFFERENT
        is_optional = recipe.wide or (not self.job.stepwise and (recipe.single or recipe.flags > 0))
        return "skipped" if is_optional else UNVERIFIED

    def _lengthen(self, death: Death) -> bool:
        """Lengthen the inputs, as the original may have died of short ones.

        Returns False if already done or others were accepted, or if the death was a timeout, an out-of-memory kill, or
        not in the original.
        """
        is_running = death.state == f"running {self.job.labels[0]}" and self.judge.base is None
        return is_running and not death.late and "SIGKILL" not in death.how and self.plan.lengthen()


def _skipped(name: str, note: str, status: str = "skipped") -> Answer:
    """Return a case that did not run."""
    return Answer(CaseRecord(name, {}, status=status, note=note), ran=False)


def _all_skipped(names: Sequence[str], note: str) -> list[Answer]:
    return [_skipped(name, note) for name in names]


def died_of(death: Death) -> Died:
    return Died(death.state, death.how, death.late)
