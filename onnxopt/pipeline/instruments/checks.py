"""Checks after each pass, to name the pass that breaks a model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxopt.errors import InvariantError, OnnxOptError, VerificationError, is_starved
from onnxopt.graph import check_model, write_model
from onnxopt.pipeline.instrument import Instrument

if TYPE_CHECKING:
    from onnxopt.graph import Model
    from onnxopt.pipeline.base import Pass
    from onnxopt.verification import Verifier, VerifyOptions


class CheckEach(Instrument):
    """After each pass checks the graph's invariants, the model as written, and `checks`, which raise on errors.

    A pass that uses a removed value raises InvariantError at this point. With `suppress`, failures become warnings in
    the run's report.
    """

    def __init__(
        self, checks: Sequence[Callable[[Model], None]] = (), *, invariants: bool = True, suppress: bool = False
    ) -> None:
        self.checks: list[Callable[[Model], object]] = ([check_model, write_model] if invariants else []) + list(checks)
        self.suppress = suppress

    def begin(self, model: Model) -> None:
        model.debug = True

    def after(self, model: Model, p: Pass) -> None:
        if p.children:
            return
        for check in self.checks:
            try:
                check(model)
            except Exception as e:
                if is_starved(e):
                    raise
                if not self.suppress:
                    if isinstance(e, OnnxOptError):
                        raise
                    name = getattr(check, "__name__", type(check).__name__)
                    raise InvariantError(
                        f"{model.name}: the check {name} fails: {type(e).__name__}: {e}", "the pass broke it"
                    ) from e
                self._warn(p, e)

    def _warn(self, p: Pass, e: Exception) -> None:
        from onnxopt.pipeline.context import PassContext

        report = PassContext.current().report
        assert report is not None
        report.warnings.append(f"after {p.name}: {e}")


class VerifyEach(Instrument):
    """After each pass with changes compares the model with the original file in onnxruntime.

    Raises VerificationError at the first pass with a different result.
    """

    def __init__(self, original: str | Path, options: VerifyOptions | None = None) -> None:
        self.original = Path(original)
        self.options = options
        self._verifier: Verifier | None = None
        self._version = -1

    def begin(self, model: Model) -> None:
        from onnxopt.verification import Verifier

        self._version = model.version
        self._verifier = Verifier(self.original, self.options)
        self._verifier.start()

    def after(self, model: Model, p: Pass) -> None:
        from onnxopt.io import save

        if p.children or model.version == self._version:
            return
        self._version = model.version
        assert self._verifier is not None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            save(model, path)
            self._verifier.submit(path, model.tolerances)
            verdict = self._verifier.finish()
        if verdict.is_refused:
            raise VerificationError(
                f"{model.name}: the result {verdict.fault}: {verdict.message}",
                "`onnxopt bisect` finds the rewrite",
            )

    def end(self, model: Model) -> None:
        if self._verifier is not None:
            self._verifier.close()
