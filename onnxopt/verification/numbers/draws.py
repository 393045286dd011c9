"""Random numbers, the same on every machine.

Bits are the standard library's (Mersenne Twister): importing numpy's generators takes a twentieth of a small model's
time, and 2 MB. What is made of them is exact, so no processor rounds it otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import numpy as np

Shape = Sequence[int]
_BITS: Final = 21  # of each of the three terms that fit into 64
_AT_ONCE: Final = 1 << 16  # numbers: what they are made of takes several times as much as they do


class Draws:
    """A stream of numbers that depends on its seeds only."""

    def __init__(self, *seeds: int | str) -> None:
        self._random = Random(" ".join(map(str, seeds)))

    def _words(self, count: int) -> Any:
        return np.frombuffer(self._random.randbytes(8 * count), "<u8")

    def _made(self, shape: Shape, kind: Any, of: Callable[[Any], Any]) -> Any:
        """An array of this kind, each number `of` 64 bits."""
        found = np.empty(math.prod(shape), kind)
        for start in range(0, len(found), _AT_ONCE):
            some = found[start : start + _AT_ONCE]
            some[:] = of(self._words(len(some)))
        return found.reshape(shape)

    def uniform(self, shape: Shape) -> Any:
        """float64, from 0 to just below 1."""
        return self._made(shape, np.float64, _uniform)

    def normal(self, shape: Shape) -> Any:
        """float32 of mean 0 and deviation 1, up to 3: a sum of three uniform numbers is distributed almost normally."""
        return self._made(shape, np.float32, _normal)

    def integers(self, low: int, high: int, shape: Shape) -> Any:
        """int64, from `low` to below `high`."""
        return self._made(shape, np.int64, lambda words: low + (_uniform(words) * (high - low)).astype(np.int64))

    def flags(self, shape: Shape) -> Any:
        """bool."""
        count = math.prod(shape)
        bits = np.frombuffer(self._random.randbytes(-(-count // 8)), np.uint8)
        return np.unpackbits(bits, count=count).view(np.bool_).reshape(shape)

    def orders(self, rows: int, count: int) -> Any:
        """In each row the numbers below `count` in another order."""
        return self._words(rows * count).reshape(rows, count).argsort(axis=1)


def _uniform(words: Any) -> Any:
    return (words >> 11) * 2.0**-53


def _normal(words: Any) -> Any:
    mask = (1 << _BITS) - 1
    total = (words & mask) + (words >> _BITS & mask) + (words >> 2 * _BITS & mask)
    return (total - 1.5 * mask) * (2.0 / mask)
