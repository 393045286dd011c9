"""Statistics of a model before and after a run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onnxopt.analysis.stats import ModelStats, model_stats
from onnxopt.pipeline.instrument import Instrument

if TYPE_CHECKING:
    from onnxopt.graph import Model


class Counts(Instrument):
    """Records operators, parameters and bytes by type; after several runs the last counts."""

    def __init__(self) -> None:
        self._before: ModelStats | None = None
        self._after: ModelStats | None = None

    def begin(self, model: Model) -> None:
        self._before = model_stats(model)

    def end(self, model: Model) -> None:
        self._after = model_stats(model)

    def to_dict(self, source: str, destination: str, size: int) -> dict[str, Any] | None:
        """Return both statistics as `ModelStats.to_dict`, under the names known to users; `size`: bytes written."""
        if self._before is None or self._after is None:
            return None
        before, after = replace(self._before, path=source), replace(self._after, path=destination, file_bytes=size)
        return {"before": before.to_dict(), "after": after.to_dict()}
