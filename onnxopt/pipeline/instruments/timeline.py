"""When each pass ran, how long, and how many nodes it left: one entry for each run."""

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
    """One run of one pass. `start` and `seconds` in seconds, from the beginning; `nodes` are those it left."""

    name: str
    start: float
    seconds: float
    nodes: int


class Timeline(Instrument):
    """`runs` in the order in which they ended. Passes made of passes are not listed, what they are made of is.

    A run is as long as its pass's record says, without what other instruments do before and after it: a journal that
    lists the model's nodes.
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
        """For JSON."""
        return [asdict(r) for r in self.runs]


def _recorded(p: Pass) -> float:
    """Seconds that its runs took so far."""
    report = PassContext.current().report
    return report.of(p.name).seconds if report is not None else 0.0
