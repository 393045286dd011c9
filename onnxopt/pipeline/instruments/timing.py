"""Execution times as a tree of passes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onnxopt.pipeline.instrument import Instrument

if TYPE_CHECKING:
    from onnxopt.graph import Model
    from onnxopt.pipeline.base import Pass


@dataclass
class Span:
    """All runs of a pass at a position of the pipeline. `seconds` includes child passes."""

    name: str
    seconds: float = 0.0
    runs: int = 0
    children: dict[str, Span] = field(default_factory=dict)

    @property
    def self_seconds(self) -> float:
        """Seconds without child and called passes."""
        return self.seconds - sum(c.seconds for c in self.children.values())

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Span]]:
        """Yield (depth, span), parents first."""
        yield depth, self
        for child in self.children.values():
            yield from child.walk(depth + 1)


class Timing(Instrument):
    """Records a tree of spans, `Timing().root`; `lines()` shows it."""

    def __init__(self) -> None:
        self.root = Span("total")
        self._open: list[tuple[Span, float]] = []

    def begin(self, model: Model) -> None:
        self._open = [(self.root, time.perf_counter())]

    def before(self, model: Model, p: Pass) -> None:
        span = self._open[-1][0].children.setdefault(p.name, Span(p.name))
        self._open.append((span, time.perf_counter()))

    def after(self, model: Model, p: Pass) -> None:
        self._close()

    def end(self, model: Model) -> None:
        while self._open:
            self._close()

    def _close(self) -> None:
        span, start = self._open.pop()
        span.seconds += time.perf_counter() - start
        span.runs += 1

    def lines(self) -> Iterator[str]:
        """Yield a table: total and self time in milliseconds, share of all, runs, pass."""
        yield f"{'total ms':>10} {'self ms':>10} {'share':>6} {'runs':>5}  pass"
        whole = self.root.seconds or 1.0
        for depth, span in self.root.walk():
            yield (
                f"{span.seconds * 1e3:>10,.1f} {span.self_seconds * 1e3:>10,.1f} {span.self_seconds / whole:>6.1%} "
                f"{span.runs:>5}  {'  ' * depth}{span.name}"
            )
