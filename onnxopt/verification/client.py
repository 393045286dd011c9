"""The parent's side: starts the worker, waits with a deadline, and turns its death into a verdict."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from onnxopt.verification.process import Gone, Worker
from onnxopt.verification.records import Verification, VerifyOptions

if TYPE_CHECKING:
    from onnx import ModelProto

_START = "from onnxopt.verification.worker import main; main()"


class Verifier:
    """Compares results with one original, in a process of its own.

    `start` returns at once; the worker loads and runs the original while the caller optimizes. `submit` hands over the
    result, `finish` waits for the verdict. Close it, or use it as a context manager: no worker outlives its parent.
    """

    def __init__(self, original: str | Path, options: VerifyOptions | None = None, *, start: str = _START) -> None:
        self.original = Path(original)
        self.options = options or VerifyOptions()
        self._start = start
        self._worker: Worker | None = None
        self._deadline = 0.0
        self._began = 0.0
        self._planned = False
        self._refused: str | None = None
        self._ran = False  # has the worker said whether it could run the original?

    def start(self) -> None:
        """Start the worker, unless it runs already or there is nothing to open."""
        if self._worker is not None or not self.original.is_file():
            return
        self._deadline = time.monotonic() + self.options.timeout
        self._worker = Worker(self._start)
        self._send((str(self.original.absolute()), self.options))

    def describe(self, original: ModelProto, *, override: bool = True) -> None:
        """Tell the worker what the original expects; it runs it then. `submit` does this if nobody did before.

        `override`: initializers that are also inputs may be given other values (False: nobody does so).
        """
        from onnxopt.verification.plan import make_plan

        self._planned = True
        plan = make_plan(original)
        if not override:
            plan.overridable = {}
        self._send(plan)

    def submit(self, result: str | Path) -> None:
        """Hand over the result; the worker compares it while the caller does something else."""
        self._began = time.monotonic()
        if self._ran:
            self._deadline = self._began + self.options.timeout
        self.start()
        if not self._planned:
            from onnx import load

            self.describe(load(self.original, load_external_data=False))
        self._send(str(Path(result).absolute()))

    def finish(self) -> Verification:
        """The verdict on the submitted result. Never raises for what a runtime does. Others may be submitted after."""
        try:
            if not self._ran:
                self._refused, self._ran = self._receive(), True
        except Gone as e:
            return Verification("unverified", f"onnxruntime {e} on the original", "try --input with real data")
        if self._refused is not None:
            return Verification("unverified", self._refused, "the result was not compared with the original")
        try:
            verdict = self._receive()
        except Gone as e:
            return Verification(
                "different",
                f"onnxruntime {e} on the result, but not on the original",
                "nothing was written; report it",
            )
        assert isinstance(verdict, Verification)
        verdict.seconds = time.monotonic() - self._began
        return verdict

    def _send(self, message: Any) -> None:
        assert self._worker is not None
        self._worker.send(message)

    def _receive(self) -> Any:
        assert self._worker is not None
        return self._worker.receive(self._deadline, self.options.timeout)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()

    def __enter__(self) -> Verifier:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def verify(original: str | Path, result: str | Path, options: VerifyOptions | None = None) -> Verification:
    """Compare two model files: same inputs, onnxruntime with graph optimizations off, every output.

    On the two sets of inputs that the optimizer checks its results with; where `options` name cases, data, a provider,
    dims or layers, as `onnxopt verify` does: a `Comparison`. Raises what `compare_files` raises then.
    """
    if options is not None and options.thorough:
        from onnxopt.verification.comparison import compare_files

        return compare_files(original, result, options)
    with Verifier(original, options) as verifier:
        verifier.submit(result)
        return verifier.finish()
