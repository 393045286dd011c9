"""Worker side of a verification: runs the original and the result on all cases.

The worker announces each step beforehand. After a crash, a new worker receives the deaths and known cases, and raises
`Died` instead of repeating a fatal step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from onnxopt.verification import DIFFERENT, UNVERIFIED, VerifyOptions
from onnxopt.verification.inputs.cases import Recipe
from onnxopt.verification.inputs.feeding import Data, Read
from onnxopt.verification.job import (
    COMPARE,
    JUST_LOAD,
    LOAD,
    OPEN,
    ORIGINAL,
    Answer,
    Begun,
    Compared,
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

    # -- original -------------------------------------------------------------------------------------------

    def open(self, job: Job) -> None:
        """Load the original, and run it unless cases run stepwise or are known. Errors are left to `verify`."""
        self.job = job
        self._tell(Begun(OPEN))
        try:
            self._open(job)
        except Exception as e:
            self._failure = e

    def _open(self, job: Job) -> None:
        for death in job.deaths:
            if death.step == OPEN:
                raise died_of(death)
        self.judge.open(job)
        self.plan, self._requests = (job.plan, [*job.requests]) if job.plan is not None else self.judge.own_cases()
        for death in job.deaths:
            if not job.stepwise and self._is_of_all(death.step):
                self._recover(death)
        if job.ended:
            return
        self.opened = self.judge.plan(self.plan)
        self._tell(self.opened)
        if not job.stepwise and job.eager:
            self._work_ahead()

    def _work_ahead(self) -> None:
        """Run the original, and do work on it that any result needs."""
        began = time.monotonic()
        try:
            self._answers = self._originals()
            if time.monotonic() - began < _BRIEF:
                self.judge.shake_ahead()
            self.judge.read_ahead()
        except Refused:
            if self._last is None or not self.plan.least:
                raise
            raise died_of(self._last) from None  # `_recover` cannot lengthen the inputs any further

    # -- cases ----------------------------------------------------------------------------------------------

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
            raise Refused(self._why_none(found))
        return taken

    def _why_none(self, found: Sequence[Answer]) -> str:
        """Return why the original runs on no case."""
        why = found[0].case.note if found else "there is no input to try"
        runs, refused = "the original", self.opened.refused
        if refused:
            runs = f"onnxruntime cannot load the original ({refused}), and in the reference evaluator it"
        return why.replace("the original does not take it: ", f"{runs} fails on every input tried: ")

    def _original(self, recipe: Recipe, data: Data) -> Answer:
        self.begin(ORIGINAL + recipe.name)
        return self.judge.original(recipe, data)

    @property
    def _known(self) -> dict[str, Compared]:
        return self._submission.known

    @property
    def _names(self) -> list[str]:
        return [recipe.name for recipe, _ in self._requests]

    def _load(self) -> str:
        """Load the result. Returns the reason for a refusal, or "" (also after the time limit)."""
        if self.job.ended:
            return ""
        self.begin(LOAD)
        why = self.judge.result(self._submission.path, self._submission.options)
        self.has_loaded = not why
        return why

    def _compare(self, answer: Answer, data: Data | None = None) -> CaseRecord:
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
            if recipe.name in names and recipe.name not in self.judge.kept:
                self.judge.original(recipe, read())

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

    def _step_by_step(self) -> tuple[list[Answer], list[CaseRecord]]:
        """Run each case separately: a death is the verdict of its case.

        No case begins after the timeout is used up.
        """
        answers: list[Answer] = []
        cases: list[CaseRecord] = []
        end = time.monotonic() + self._submission.options.timeout - self._submission.spent
        self.left_out = 0
        for i, (recipe, read) in enumerate(self._requests):
            if answers and time.monotonic() > end:
                self.left_out = len(self._requests) - i
                return answers, [*cases, *self._skipped(i, LEFT_OUT)]
            answer, case = self._alone(recipe, read, bool(answers))
            cases.append(case)
            answers += [answer] if answer is not None else []
            if self.job.ended and recipe.name not in self._known:
                return answers, [*cases, *self._skipped(i + 1, _UNFINISHED)]
        return answers, cases

    def _skipped(self, first: int, note: str) -> list[CaseRecord]:
        return [CaseRecord(name, {}, status="skipped", note=note) for name in self._names[first:]]

    def _alone(self, recipe: Recipe, read: Read, has_others: bool) -> tuple[Answer | None, CaseRecord]:
        if (known := self._known.get(recipe.name)) is not None:
            return known.answer, known.case
        recipe, dead = self._after_deaths(recipe, has_others)
        if dead is not None:
            return None, dead
        data = read()
        answer = self._original(recipe, data)
        if answer.case.status == "skipped":
            return None, answer.case
        if not has_others and self.plan.random:
            self.is_steady = self.judge.deterministic()
        return answer, self._compare(answer, data)

    def _status_after(self, died: Died, recipe: Recipe) -> str:
        return DIFFERENT if died.is_about(self.job.labels[1]) else "skipped" if recipe.wide else UNVERIFIED

    def _after_deaths(self, recipe: Recipe, has_others: bool) -> tuple[Recipe, CaseRecord | None]:
        """Return the recipe to run after deaths of workers, tamed if bold, and the case if no run is left."""
        for death in self._submission.deaths:
            if death.step not in (ORIGINAL + recipe.name, COMPARE + recipe.name):
                continue
            died = died_of(death)
            status = self._status_after(died, recipe)
            if status == UNVERIFIED and not death.late and not recipe.tame and recipe.is_bold(self.plan):
                recipe = recipe._replace(tame=True)
            elif status != UNVERIFIED or has_others or not self._lengthen(death):
                return recipe, CaseRecord(recipe.name, {}, status=status, note=str(died))
        return recipe, None

    # -- deaths ---------------------------------------------------------------------------------------------

    def begin(self, step: str) -> None:
        """Announce a step. Raises Died if an earlier worker died of the same step, or time is over."""
        for death in self._submission.deaths:
            is_tried_again = self.job.stepwise and step.startswith((ORIGINAL, COMPARE))
            is_tried_again |= self._is_of_all(step)
            if (death.step == step and not is_tried_again) or (death.late and not step.startswith(JUST_LOAD)):
                raise died_of(death)
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
        died = died_of(death)
        is_final = death.late or died.is_about(self.job.labels[1])
        if is_final or not (self._tame() or self._lengthen(death)):
            raise died
        self._last = death

    def _tame(self) -> bool:
        """Leave out optional cases and optional parts of cases. Returns False if none were left."""
        is_tried = {recipe.name: recipe.wide or recipe.single or recipe.flags > 0 for recipe, _ in self._requests}
        bold = any(is_tried[recipe.name] or recipe.is_bold(self.plan) for recipe, _ in self._requests)
        self._requests = [
            (recipe._replace(tame=True), read) for recipe, read in self._requests if not is_tried[recipe.name]
        ]
        return bold

    def _lengthen(self, death: Death) -> bool:
        """Lengthen the inputs, as the original may have died of short ones.

        Returns False if already done, or if the death was a timeout, an out-of-memory kill, or not in the original.
        """
        is_running = death.state == f"running {self.job.labels[0]}"
        return is_running and not death.late and "SIGKILL" not in death.how and self.plan.lengthen()


def died_of(death: Death) -> Died:
    return Died(death.state, death.how, death.late)
