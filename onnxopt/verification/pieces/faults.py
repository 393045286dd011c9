"""What is to blame, and what the narrower type does not hold: that is no question of what came before it.

A float16 of 1e5 is infinite, and one of 1e-7 has a bit, whoever makes it. So all such values are named in one walk, of
those too large as well what only agrees because the value before it, too large itself, was fed as the largest number
there is: else each would take a result of its own to be seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from onnxopt.verification.numbers.rounding import Difference, worst
from onnxopt.verification.pieces.outcome import Fault
from onnxopt.verification.pieces.replay import OVERFLOWS, TOO_SMALL, Replay

_MOST: Final = 8  # looked for, but for what the narrower type does not hold


class Faults:
    """Those of a walk, `found`; `beyond`, the values of those that the narrower type does not hold."""

    def __init__(self, replay: Replay, found: list[Fault]) -> None:
        self.found = found
        self.beyond: set[str] = set()
        self._replay = replay
        self._a, self._b = replay.original.runner.program, replay.program

    def chosen(self, blocked: Sequence[str], latest: Mapping[str, list[Difference]]) -> Sequence[str]:
        """Of what is in the way, who is to blame next: all that the narrower type does not hold, else the first; nobody
        once there are enough."""
        replay = self._replay
        beyond = [v for v in blocked if worst(latest[v]).note and replay.beyond(v) is not None]
        beyond = beyond or [v for v in blocked if replay.too_small(v) is not None]
        is_full = sum(not fault.beyond for fault in self.found) >= _MOST
        return beyond or ([] if is_full else blocked[:1])

    def add(self, value: str, fed: set[str], fed_of_a: set[str], latest: list[Difference]) -> Fault:
        """Put a value down that is made from what is `fed`, as it differs in the cases."""
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
        """Does it agree only because B was fed the largest number there is, where A has a larger one?"""
        if not self.beyond or self._replay.beyond(value) is None:
            return False
        return not self.beyond.isdisjoint(self._b.entries(self._b.cone([value], fed), fed))
