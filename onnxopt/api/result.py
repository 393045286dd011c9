"""What `onnxopt.optimize` returns."""

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

    def __init__(self, report: Report, model: ModelProto | None) -> None:
        """`model` None: it is in the file `report.destination`."""
        self.report = report
        if model is not None:
            self.model = model

    @cached_property
    def model(self) -> ModelProto:
        """The ModelProto with all its weights. A result that was written is read when this is first asked for."""
        return load_whole(Path(self.report.destination))

    def __repr__(self) -> str:
        return f"Result(report={self.report!r})"

    def __str__(self) -> str:
        return str(self.report)

    def _repr_html_(self) -> str:
        return self.report._repr_html_()
