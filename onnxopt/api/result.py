"""The result of `onnxopt.optimize`."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from onnxopt.io.load import load_whole

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxopt.optimizer import Report


class Result:
    """The optimized model and the report of the optimization."""

    def __init__(self, report: Report, model: ModelProto | Path) -> None:
        """`model`: the model, or the file of the result."""
        self.report = report
        self._model = model

    @cached_property
    def model(self) -> ModelProto:
        """The ModelProto with all weights. A written result is read at the first access."""
        return load_whole(self._model) if isinstance(self._model, Path) else self._model

    def __repr__(self) -> str:
        return f"Result(report={self.report!r})"

    def __str__(self) -> str:
        return str(self.report)

    def _repr_html_(self) -> str:
        return self.report._repr_html_()
