"""Parent side of a verification: a worker verifies results; after a crash, another continues without the fatal step."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from onnxopt.errors import UsageError, file_path, unreadable
from onnxopt.proto.wire import FileState, stands_alone, state_of
from onnxopt.verification import DIFFERENT, UNVERIFIED, VerifyOptions
from onnxopt.verification.job import (
    JUST_LOAD,
    LOAD,
    LOOK,
    OPEN,
    ORIGINAL,
    UNSHOWN,
    Answer,
    Begun,
    Death,
    Job,
    Opened,
    Step,
    Submission,
)
from onnxopt.verification.runtime import DECLARED
from onnxopt.worker.limits import Limits
from onnxopt.worker.process import VERIFYING
from onnxopt.worker.service import Service, Spare
from onnxopt.worker.serving import STARTING, Died

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

    from onnxopt.verification.inputs.cases import Recipe
    from onnxopt.verification.inputs.feeding import Read
    from onnxopt.verification.inputs.plan import Plan
    from onnxopt.verification.records import Verification

# Modules of verdicts and cases are imported where used: an early-started worker, and the caller's work, must not wait.

_MAX_PRELOADED_BYTES: Final = 1 << 20  # bytes; loading takes less time than a message
_LOADING: Final = 60.0  # seconds for a load alone, and for a verdict without any run
_MOST_DEATHS: Final = 100
_MOST_LATE: Final = 2
_MOST_STARTS: Final = 2  # deaths before a worker reads the original: another would die as well


class Verifier:
    """Compares results with an original, in a separate process.

    `start` returns at once; the worker runs the original while the caller optimizes. `submit` passes the result,
    `finish` waits for the verdict; further results may follow. Use as a context manager, or call `close`. Workers end
    with the parent.
    """

    def __init__(
        self,
        original: str | Path,
        options: VerifyOptions | None = None,
        *,
        labels: tuple[str, str] = ("the original", "the result"),
        stepwise: bool = False,
        foreign: bool = False,
        steps: Sequence[Step] = (),
        start: str = VERIFYING,
        spare: Spare | None = None,
    ) -> None:
        """Create without starting a worker.

        labels: names of both models in messages. stepwise: the timeout holds per step, and cases continue after a fatal
        case. foreign: results were made elsewhere, perhaps with parts absent from the original. steps: files run in
        order, in place of a result. spare: pool of workers.
        """
        self.original = file_path(original)
        asked = options or VerifyOptions()
        # Device memory is mapped into the process.
        self._memory = 0 if asked.provider else Limits(asked.limit).bytes
        self.options = self._given = asked.share(self._memory)
        self.declared: dict[str, float] = {}  # tolerances declared by passes, if decisive
        path = str(self.original.absolute())
        self._job = Job(path, self.options, labels, stepwise, foreign, steps)
        self.is_described = False  # the job has a plan, or lets the worker derive one
        self.seen: FileState = None  # of the original, before a worker reads it
        self._submission: Submission | None = None
        self.progress: Callable[[float], None] = lambda done: None  # called with the share of work done
        self._start, self._spare = start, spare
        self._service: Service | None = None
        self._is_open = False  # the worker has the job
        self._waits = False  # delay opening until a result exists
        self._opened = Opened()
        self._step = OPEN  # step in progress in the worker
        self._has_run = False  # the original ran for an earlier result
        self._began = 0.0

    # -- requests -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the worker, unless running.

        With a pool, small models open when a result exists, as most small models do not change.
        """
        if self._service is not None or self._waits or not self.original.is_file():
            return
        if self._spare is not None and self.original.stat().st_size <= _MAX_PRELOADED_BYTES:
            self._waits = True
            self._spare.prepare(self._start, self.options.timeout, self._memory)
        else:
            self._take()

    def describe(
        self, original: ModelProto, array: Callable[[TensorProto], Any] | None = None, *, override: bool = True
    ) -> None:
        """Send the plan of the original to the worker, which then runs the original. Called by `submit` if omitted.

        array: reads initializers with data outside the proto. override: initializers that are inputs may get other
        values. Raises UsageError for unknown inputs and dims in the options.
        """
        from onnxopt.verification.inputs.planning import own_cases
        from onnxopt.verification.model.views import views

        if (view := views(self.options)[0]) is not None:  # the worker reads the original through the same view
            original = type(original).FromString(original.SerializeToString())
            view(original)
        self.prepare(*own_cases(original, array, self.options, override=override, is_long=self._job.stepwise))

    @property
    def names_inputs(self) -> bool:
        """Whether the options name inputs or dims, whose errors `describe` raises before any work."""
        return bool(self.options.inputs or self.options.dims)

    def prepare(
        self, plan: Plan | None = None, requests: Sequence[tuple[Recipe, Read]] = (), *, override: bool = True
    ) -> None:
        """Let the worker run the original, beside the caller's work.

        plan, requests: of its inputs, and the cases with readers of their data; without a plan, the worker derives both
        from the file. override: see `describe`.
        """
        job = self._job
        job.plan, job.requests, job.override, job.references = plan, requests, override, tuple(DECLARED.values())
        self.is_described, self.seen = True, state_of(self.original)
        self.start()
        # A waiting model may have external data of any size.
        if self._service is not None or (self._waits and not stands_alone(str(self.original))):
            self._open()

    def submit(
        self, result: str | Path, tolerances: Mapping[str, float] | None = None, rename: Mapping[str, str] | None = None
    ) -> None:
        """Pass a result to the worker, which compares in the background.

        tolerances: by pass, declared change relative to an output's range; ignored if the options set tolerances.
        rename: replaces `options.rename`. Raises ModelError for a missing result, and for an invalid original not
        described yet.
        """
        self._began = time.monotonic()
        if self._job.ended and self._service is not None:  # the worker does not run anything any more
            self._service.close()
        path = file_path(result).absolute()
        if not path.is_file():
            raise unreadable(result, IsADirectoryError() if path.is_dir() else FileNotFoundError())
        if not self.is_described:
            from onnxopt.verification.two_files import read

            skeleton = read(self.original)
            self.describe(skeleton.proto, skeleton.values)
        self.start()
        self._set_options(tolerances, rename)
        self._submission = Submission(str(path), self.options, self.declared)
        if not self._is_open:
            self._open()
        elif self._has_run:
            self._limit()
        if self._service is not None and self._service.alive:
            self._service.post("verify", self._submission)

    def _set_options(self, tolerances: Mapping[str, float] | None, rename: Mapping[str, str] | None) -> None:
        """Set the options of a result; as in `submit`."""
        self.declared = dict(tolerances or {}) if not self._given.by_tolerance else {}
        self.options = self._given
        if self.declared:
            self.options = replace(self.options, rtol=sum(self.declared.values()))
        if rename is not None:
            self.options = replace(self.options, rename=dict(rename))

    @property
    def provider(self) -> str:
        """The execution provider in use."""
        return self._opened.provider

    # -- verdict --------------------------------------------------------------------------------------------

    def finish(self) -> Verification:
        """Return the verdict on the submitted result; errors of a runtime are verdicts.

        Raises UsageError if nothing was submitted.
        """
        from onnxopt.verification.records import Verification

        submission = self._submission
        if submission is None:
            raise UsageError(f"nothing was submitted that {self.original} could be compared with", "call submit first")
        while True:
            try:
                verdict = self._verdict(submission)
                break
            except Died as e:
                submission.deaths.append(Death(self._step, e.state, e.how, e.late))
                submission.spent = time.monotonic() - self._began
                if _is_enough(submission.deaths):
                    verdict = Verification(UNVERIFIED, str(e))
                    break
        self._has_run = verdict.status != UNVERIFIED
        verdict.seconds = time.monotonic() - self._began
        return verdict

    def _verdict(self, submission: Submission) -> Verification:
        """Ask the running worker, or a new worker informed of earlier deaths. Raises Died."""
        if self._service is None or not self._service.alive:
            job, deaths = self._job, submission.deaths
            job.ended = any(d.late or d.step == OPEN for d in deaths)
            job.deaths, job.eager = deaths, not submission.known
            self._open()
        assert self._service is not None
        verdict: Verification = self._service.call("verify", submission)
        return verdict

    # -- worker ---------------------------------------------------------------------------------------------

    def _take(self) -> None:
        make = Service if self._spare is None else self._spare.take
        self._service = make(self._start, self.options.timeout, self._memory)
        self._service.hear = self._on_event

    def _open(self) -> None:
        """Send the job to the worker, started unless running."""
        if self._service is None or not self._service.alive:
            self._take()
        self._waits, self._is_open, self._step = False, True, OPEN
        assert self._service is not None
        self._limit()
        self._service.post("open", self._job)

    def _limit(self, seconds: float | None = None) -> None:
        """Set the deadline for all following requests, unless the timeout holds per step."""
        assert self._service is not None
        if seconds is None and self._job.ended:
            seconds = _LOADING
        if seconds is not None or not self._job.stepwise:
            self._service.deadline = time.monotonic() + (self.options.timeout if seconds is None else seconds)

    def _on_event(self, event: Begun | Opened | Answer | Verification) -> None:
        submission = self._submission
        if isinstance(event, Opened):
            self._opened = event
        elif isinstance(event, Begun):
            self._enter(event.step)
            if submission is not None and event.done > submission.done:
                submission.done = event.done
                self.progress(event.done)
        elif submission is None:
            return
        elif isinstance(event, Answer):
            submission.known[event.case.name] = event
        else:
            submission.verdict = event

    def _enter(self, step: str) -> None:
        """Set the deadline of a step. A comparison in pieces gets the whole timeout."""
        service, submission, before, self._step = self._service, self._submission, self._step, step
        assert service is not None
        if step.startswith(JUST_LOAD) or self._job.ended:
            self._limit(min(self.options.timeout, _LOADING))
        elif self._job.stepwise:
            service.deadline = time.monotonic() + self.options.timeout if step in (LOOK, UNSHOWN) else None
        elif step == LOAD and before.startswith(ORIGINAL) and service.deadline is not None and submission is not None:
            now = time.monotonic()
            submission.is_rushed = service.deadline - now < now - service.heard

    def close(self) -> None:
        """End the worker, or return it to the pool."""
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


def verify(original: str | Path, result: str | Path, options: VerifyOptions | None = None) -> Verification:
    """Compare two model files on the same inputs, in onnxruntime with graph optimizations off.

    Uses the optimizer's own cases. If `options` name cases, data, a provider or dims, returns a `Comparison` as
    `onnxopt verify` does. Raises ModelError for an invalid model file, and the errors of `compare_files`.
    """
    original, result = file_path(original), file_path(result)
    if options is not None and options.thorough:
        from onnxopt.verification.two_files import compare_files

        return compare_files(original, result, options)
    from onnxopt.verification.two_files import read  # imports numpy

    skeleton, _ = read(original), read(result)
    with Verifier(original, options, foreign=True) as verifier:
        verifier.describe(skeleton.proto, skeleton.values)
        verifier.submit(result)
        return verifier.finish()


def let_in(verdict: Verification, domains: Collection[str] = ()) -> Verification:
    """Set UNVERIFIED if onnxruntime does not load the result because of operators of `domains`."""
    if verdict.status != DIFFERENT or verdict.cases:
        return verdict
    from onnxopt.verification.runtime import UNREGISTERED, UNREGISTERED_HINT

    foreign = next((d for d in domains if f"{d}:" in verdict.message and UNREGISTERED in verdict.message), None)
    if foreign is not None:
        verdict.status = UNVERIFIED
        verdict.message = f"onnxruntime does not know the operators of {foreign}, which --allow-domain lets in"
        verdict.hint = UNREGISTERED_HINT
    return verdict


def _is_enough(deaths: Sequence[Death]) -> bool:
    """Return whether another worker is not expected to finish."""
    starts = sum(d.state == STARTING and d.step == OPEN for d in deaths)
    return len(deaths) == _MOST_DEATHS or sum(d.late for d in deaths) > _MOST_LATE or starts > _MOST_STARTS
