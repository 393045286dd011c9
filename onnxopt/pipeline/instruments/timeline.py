"""Timeline of pass runs: start, duration and remaining nodes."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from onnxopt.pipeline.context import PassContext
from onnxopt.pipeline.instrument import Instrument

if TYPE_CHECKING:
    from onnxopt.graph import Model
    from onnxopt.pipeline.base import Pass


@dataclass(frozen=True)
class Run:
    """A run of a pass. `start` and `seconds` in seconds, from the beginning; `nodes`: number of nodes afterwards."""

    name: str
    start: float
    seconds: float
    nodes: int


class Timeline(Instrument):
    """Records `runs` in order of their ends; of a composite only the children.

    Durations equal the pass's record, without the time of other instruments (such as a journal listing nodes).
    """

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self._zero = 0.0
        self._open: list[tuple[float, float]] = []

    def begin(self, model: Model) -> None:
        self.runs, self._open = [], []
        self._zero = time.perf_counter()

    def before(self, model: Model, p: Pass) -> None:
        if not p.children:
            self._open.append((time.perf_counter(), _recorded(p)))

    def after(self, model: Model, p: Pass) -> None:
        if p.children:
            return
        now, (asked, before) = time.perf_counter(), self._open.pop()
        seconds = _recorded(p) - before
        self.runs.append(Run(p.name, max(asked, now - seconds) - self._zero, seconds, model.node_count()))

    def to_list(self) -> list[dict[str, Any]]:
        """Return the runs for JSON."""
        return [asdict(r) for r in self.runs]


def _recorded(p: Pass) -> float:
    """Return the total seconds of a pass so far."""
    report = PassContext.current().report
    return report.of(p.name).seconds if report is not None else 0.0
