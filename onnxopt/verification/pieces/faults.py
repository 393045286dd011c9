"""Selection and recording of faults, and of values a narrower type cannot hold.

A float16 value of 1e5 is infinite, and 1e-7 has a single bit, regardless of preceding values. All such values are
reported in the same walk, including those that agree only because a too large value was fed as the largest number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from onnxopt.verification.numbers.rounding import Difference, worst
from onnxopt.verification.pieces.outcome import Fault
from onnxopt.verification.pieces.replay import OVERFLOWS, TOO_SMALL, Replay

_MAX_FAULTS: Final = 8  # faults, besides values the narrower type cannot hold


class Faults:
    """The faults of a walk."""

    def __init__(self, replay: Replay, found: list[Fault]) -> None:
        self.found = found
        self.beyond: set[str] = set()  # values that the narrower type cannot hold
        self._replay = replay
        self._a, self._b = replay.original.runner.program, replay.program

    def chosen(self, blocked: Sequence[str], latest: Mapping[str, list[Difference]]) -> Sequence[str]:
        """Return the values to report next: all that the narrower type cannot hold, else the first of `blocked`.

        Empty once enough faults are found.
        """
        replay = self._replay
        beyond = [v for v in blocked if worst(latest[v]).note and replay.beyond(v) is not None]
        beyond = beyond or [v for v in blocked if replay.too_small(v) is not None]
        is_full = sum(not fault.beyond for fault in self.found) >= _MAX_FAULTS
        return beyond or ([] if is_full else blocked[:1])

    def add(self, value: str, fed: set[str], fed_of_a: set[str], latest: list[Difference]) -> Fault:
        """Record a fault at `value` and return it.

        fed: cutpoints of B; fed_of_a: their names in A; latest: differences by case.
        """
        original, nodes = self._replay.pairs.of[value], self._b.cone([value], fed)
        over, small = self._replay.beyond(value), self._replay.too_small(value)
        case = small if over is None else over
        is_beyond = case is not None
        found = worst(latest) if case is None else Difference(note=TOO_SMALL if over is None else OVERFLOWS)
        case = latest.index(found) if case is None else case
        its, shape = self._a.cone([original], fed_of_a), np.shape(self._replay.mine(value)[case])
        fault = Fault(value, found, case, self._b.entries(nodes, fed), its, nodes, shape, is_beyond)
        self.found.append(fault)
        if is_beyond:
            self.beyond.add(value)
        return fault

    def follow(self, value: str, fed: set[str]) -> bool:
        """Return whether a value agrees only because a too large operand was fed as the largest number."""
        if not self.beyond or self._replay.beyond(value) is None:
            return False
        return not self.beyond.isdisjoint(self._b.entries(self._b.cone([value], fed), fed))
