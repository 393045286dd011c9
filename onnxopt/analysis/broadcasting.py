"""Broadcasting of arrays: the common shape, and repeated elements.

For any rank: numpy's broadcasting functions stop at 32 dims, its arrays at 64.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Final

import numpy as np

from onnxopt.proto.element_types import element_kind
from onnxopt.proto.messages import Array

_FIRST: Final = 16  # elements compared before the rest


def broadcast_shape(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the broadcast shape. Raises ValueError if the shapes do not fit."""
    rank = max(map(len, shapes), default=0)
    found = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                if found[i] not in (1, size):
                    raise ValueError(f"{size} elements do not fit {found[i]}")
                found[i] = size
    return tuple(found)


def broadcast_together(*arrays: Array) -> list[Array]:
    """Return views of the arrays in their broadcast shape. Raises ValueError if the shapes do not fit."""
    shape = broadcast_shape(*(np.shape(a) for a in arrays))
    return [np.broadcast_to(a, shape) for a in arrays]


def distinct(array: Array) -> Array:
    """Return the part of `array` held in memory: an axis with stride 0 gets size 1."""
    return array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]


def is_repeated(array: Array) -> bool:
    """Whether memory holds at most a quarter of the elements. They need not be equal: see `one_element`."""
    return 4 * distinct(array).nbytes <= array.nbytes


def one_element(array: Array) -> Array | None:
    """Return the element (rank 0) bitwise equal to all elements of `array`; None if elements differ, and for
    objects."""
    held = distinct(array)
    if not held.size or element_kind(held) == "S":
        return None
    # Compared as integers: rows of single bytes take ten times as long.
    words = np.ascontiguousarray(held).reshape(-1).view(f"u{gcd(held.itemsize, 8)}").reshape(held.size, -1)
    for few in (words[:_FIRST], words):  # in most arrays the first elements differ
        if not (few == words[0]).all():
            return None
    first: Array = held[(0,) * held.ndim].reshape(())
    return first
