"""Random numbers, equal on every machine.

Bits come from the standard library's Mersenne Twister: importing numpy's generators would take a twentieth of a small
model's time, and 2 MB. Numbers are computed exactly from the bits, so no processor rounds differently.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import numpy as np

Shape = Sequence[int]
_BITS: Final = 21  # bits of each of the three terms in a 64-bit word
_CHUNK: Final = 1 << 16  # elements; temporary values take several times the memory of the result


class Draws:
    """A stream of random numbers determined by the seeds."""

    def __init__(self, *seeds: int | str) -> None:
        self._random = Random(" ".join(map(str, seeds)))

    def _words(self, count: int) -> Any:
        return np.frombuffer(self._random.randbytes(8 * count), "<u8")

    def _made(self, shape: Shape, kind: Any, of: Callable[[Any], Any]) -> Any:
        """Return an array of dtype `kind`; `of` maps 64-bit words to numbers."""
        found = np.empty(math.prod(shape), kind)
        for start in range(0, len(found), _CHUNK):
            some = found[start : start + _CHUNK]
            some[:] = of(self._words(len(some)))
        return found.reshape(shape)

    def uniform(self, shape: Shape) -> Any:
        """Return float64 numbers in [0, 1)."""
        return self._made(shape, np.float64, _uniform)

    def normal(self, shape: Shape) -> Any:
        """Return float32 numbers of mean 0 and deviation 1 in [-3, 3]: scaled sums of three uniform numbers."""
        return self._made(shape, np.float32, _normal)

    def integers(self, low: int, high: int, shape: Shape) -> Any:
        """Return int64 numbers in [low, high)."""
        return self._made(shape, np.int64, lambda words: low + (_uniform(words) * (high - low)).astype(np.int64))

    def flags(self, shape: Shape) -> Any:
        """Return booleans."""
        count = math.prod(shape)
        bits = np.frombuffer(self._random.randbytes(-(-count // 8)), np.uint8)
        return np.unpackbits(bits, count=count).view(np.bool_).reshape(shape)

    def orders(self, rows: int, count: int) -> Any:
        """Return an array (rows, count) with a permutation of range(count) in each row."""
        return self._words(rows * count).reshape(rows, count).argsort(axis=1)


def _uniform(words: Any) -> Any:
    return (words >> 11) * 2.0**-53


def _normal(words: Any) -> Any:
    mask = (1 << _BITS) - 1
    total = (words & mask) + (words >> _BITS & mask) + (words >> 2 * _BITS & mask)
    return (total - 1.5 * mask) * (2.0 / mask)
