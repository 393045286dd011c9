"""The parent's side: a worker verifies results, and where it dies another goes on without what killed it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from onnxopt.errors import UsageError, file_path, unreadable
from onnxopt.references import declared_references
from onnxopt.verification.job import (
    JUST_LOAD,
    LOAD,
    LOOK,
    OPEN,
    ORIGINAL,
    UNSHOWN,
    Begun,
    Compared,
    Concluded,
    Death,
    Opened,
    Opening,
    Preparation,
    Read,
    Submission,
)
from onnxopt.verification.options import UNVERIFIED, VerifyOptions
from onnxopt.verification.records import Verification
from onnxopt.worker.limits import Limits
from onnxopt.worker.service import Service, Spare
from onnxopt.worker.serving import Died

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

    from onnxopt.verification.inputs.cases import Recipe
    from onnxopt.verification.inputs.plan import Plan

# What imports numpy is imported where it is used: whoever starts a worker early has not done so yet.
START: Final = "from onnxopt.verification.judge import main; main()"
_SMALL: Final = 1 << 20  # bytes that are loaded sooner than somebody is told to
_LOADING: Final = 60.0  # seconds for a load that is all that is asked for,
_CONCLUDING: Final = 60.0  # and for a verdict for which nothing is run
_MOST_DEATHS: Final = 100


class Verifier:
    """Compares results with one original, in a process of its own.

    `start` returns at once; the worker loads and runs the original while the caller optimizes. `submit` hands over the
    result, `finish` waits for the verdict; others may follow. Close it, or use it as a context manager: no worker
    outlives its parent.
    """

    def __init__(
        self,
        original: str | Path,
        options: VerifyOptions | None = None,
        *,
        labels: tuple[str, str] = ("the original", "the result"),
        stepwise: bool = False,
        foreign: bool = False,
        start: str = START,
        spare: Spare | None = None,
    ) -> None:
        """`labels`: what messages call the two. `stepwise`: the timeout is for each step, and what dies in one case is
        started again for the next. `foreign`: results are made elsewhere, and may have parts that the original has not.
        `spare`: where a worker comes from and goes to, that serves others too."""
        self.original = file_path(original)
        asked = options or VerifyOptions()
        # The memory of a device is mapped into the process.
        self._memory = 0 if asked.provider else Limits(asked.limit).bytes
        self.options = self._given = asked.share(self._memory)
        self.declared: dict[str, float] = {}  # what passes allow themselves, where that decides
        self._opening = Opening(str(self.original.absolute()), self.options, labels, stepwise, foreign)
        self._preparation: Preparation | None = None
        self._submission: Submission | None = None
        self.progress: Callable[[float], None] = lambda done: None  # is told the share that is done
        self._start, self._spare = start, spare
        self._service: Service | None = None
        self._waits = False  # for a result, before anything is opened
        self._opened = Opened()
        self._step = OPEN  # that the worker is busy with
        self._has_run = False  # the original, for a result before this one
        self._began = 0.0

    # -- what it is told ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the worker, unless it runs already or there is nothing to open. Of many small models most do not
        change: nothing is opened before there is a result."""
        if self._service is not None or self._waits or not self.original.is_file():
            return
        if self._spare is not None and self.original.stat().st_size <= _SMALL:
            self._waits = True
            self._spare.prepare(self._start, self.options.timeout, self._memory)
        else:
            self._open()

    def describe(
        self, original: ModelProto, array: Callable[[TensorProto], Any] | None = None, *, override: bool = True
    ) -> None:
        """Tell the worker what the original expects; it runs it then. `submit` does this if nobody did before.

        `array` reads initializers whose data are not in the proto.
        `override`: initializers that are also inputs may be given other values (False: nobody does so). Raises
        UsageError for inputs and dims that the options give and the model does not have.
        """
        from onnxopt.verification.inputs.cases import OWN, missing
        from onnxopt.verification.inputs.datasets import Data, read_array
        from onnxopt.verification.inputs.planning import make_plan
        from onnxopt.verification.interface import fix_dims
        from onnxopt.verification.model.views import views

        if (view := views(self.options)[0]) is not None:  # the worker reads the original so
            original = type(original).FromString(original.SerializeToString())
            view(original)
        plan = make_plan(original, array)
        if not override:
            plan.overridable = {}
        given = {name: read_array(name, Path(file), plan) for name, file in self.options.inputs.items()}
        fix_dims(plan, self.options.dims)
        is_long = self._opening.stepwise or 2 * plan.bytes > self.options.memory  # each run reads all weights
        recipes = [r for r in OWN if not missing(r, plan, given) and not (r.single and is_long)]
        self.prepare(plan, [(r, partial(Data, given)) for r in recipes])

    def prepare(self, plan: Plan, requests: Sequence[tuple[Recipe, Read]]) -> None:
        """The same with a plan and the cases, and how to read their data."""
        self.start()
        self._preparation = Preparation(plan, list(requests), references=declared_references())
        if self._waits and plan.bytes > _SMALL:  # beside the model
            self._open()
        elif self._service is not None:
            self._post("prepare", self._preparation)

    def submit(
        self,
        result: str | Path,
        tolerances: Mapping[str, float] | None = None,
        rename: Mapping[str, str] | None = None,
    ) -> None:
        """Hand over the result; the worker compares it while the caller does something else. `tolerances`: by how much
        of an output's range passes said that they change it, which counts unless the options say what is allowed.
        `rename`: what this result calls otherwise, in place of what the options say of that.

        Raises ModelError where there is no such file, or where nobody described the original and it is no model.
        """
        self._began = time.monotonic()
        if self._opening.ended and self._service is not None:  # it runs nothing any more
            self._service.close()
        path = file_path(result).absolute()
        if not path.is_file():
            raise unreadable(result, IsADirectoryError() if path.is_dir() else FileNotFoundError())
        if self._preparation is None:
            from onnxopt.verification.interface import read

            skeleton = read(self.original)
            self.describe(skeleton.proto, skeleton.values)
        self.start()
        self.declared = dict(tolerances or {}) if not self._given.by_tolerance else {}
        self.options = self._given.allowing(self.declared)
        if rename is not None:
            self.options = replace(self.options, rename=dict(rename))
        self._submission = Submission(str(path), self.options, self.declared)
        if self._waits:
            self._open()
        elif self._has_run:
            self._limit()
        if self._service is not None and self._service.alive and not self._opening.stepwise:
            self._post("verify", self._submission)

    @property
    def provider(self) -> str:
        """The execution provider that ran both."""
        return self._opened.provider

    # -- the verdict -------------------------------------------------------------------------------------

    def finish(self) -> Verification:
        """The verdict on the submitted result. Never raises for what a runtime does. Others may be submitted after.

        Raises UsageError where nothing was submitted.
        """
        submission = self._submission
        if submission is None or self._preparation is None:
            raise UsageError(f"nothing was submitted that {self.original} could be compared with", "call submit first")
        while True:
            try:
                verdict = self._verdict(submission)
                break
            except Died as e:
                submission.deaths.append(Death(self._step, e.state, e.how, e.late))
                submission.spent = time.monotonic() - self._began
                if len(submission.deaths) == _MOST_DEATHS or sum(d.late for d in submission.deaths) > 2:
                    verdict = Verification(UNVERIFIED, str(e))
                    break
        self._has_run = verdict.status != UNVERIFIED
        verdict.seconds = time.monotonic() - self._began
        return verdict

    def _verdict(self, submission: Submission) -> Verification:
        """Of the worker that runs, or one that is told what others died of. Raises Died."""
        if self._service is None or not self._service.alive:
            assert self._preparation is not None
            deaths = submission.deaths
            self._opening.ended = any(d.late or d.step == OPEN for d in deaths)
            self._preparation.deaths, self._preparation.eager = deaths, not submission.known
            self._open()
        assert self._service is not None
        if not self._service.is_asked("verify"):
            self._post("verify", submission)
        verdict: Verification = self._service.call("verify")
        return verdict

    # -- the worker --------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._waits = False
        make = Service if self._spare is None else self._spare.take
        self._service = make(self._start, self.options.timeout, self._memory)
        self._service.hear, self._step = self._hear, OPEN
        self._limit()
        self._post("open", self._opening)
        if self._preparation is not None:
            self._post("prepare", self._preparation)

    def _post(self, method: str, message: Opening | Preparation | Submission) -> None:
        assert self._service is not None
        self._service.post(method, message)

    def _limit(self, seconds: float | None = None) -> None:
        """All that is asked from now on has the time of the options together, unless it is counted step by step."""
        assert self._service is not None
        if seconds is None and self._opening.ended:
            seconds = _CONCLUDING
        if seconds is not None or not self._opening.stepwise:
            self._service.deadline = time.monotonic() + (self.options.timeout if seconds is None else seconds)

    def _hear(self, event: Begun | Opened | Compared | Concluded) -> None:
        submission = self._submission
        if isinstance(event, Opened):
            self._opened = event
        elif isinstance(event, Begun):
            self._enter(event.step)
            if submission is not None and event.done > submission.done:
                submission.done = event.done
                self.progress(event.done)
        elif submission is not None and isinstance(event, Compared):
            submission.known[event.answer.case.name] = event
        elif submission is not None and isinstance(event, Concluded):
            submission.verdict = event.verdict

    def _enter(self, step: str) -> None:
        """Give a step its time: a look into pieces has that of the options, however many pieces there are."""
        service, submission, before, self._step = self._service, self._submission, self._step, step
        assert service is not None
        if step.startswith(JUST_LOAD):
            self._limit(min(self.options.timeout, _LOADING))
        elif self._opening.stepwise and not self._opening.ended:
            service.deadline = time.monotonic() + self.options.timeout if step in (LOOK, UNSHOWN) else None
        elif step == LOAD and before.startswith(ORIGINAL) and service.deadline is not None and submission is not None:
            now = time.monotonic()
            submission.is_rushed = service.deadline - now < now - service.heard

    def close(self) -> None:
        """End the worker, or keep it for another."""
        if self._service is not None and self._spare is not None:
            self._spare.keep(self._service)
            self._service = None
        elif self._service is not None:
            self._service.close()

    def __enter__(self) -> Verifier:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
