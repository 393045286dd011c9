"""Underflow of folded weights: numbers too small for their type."""

from __future__ import annotations

from typing import Final

import numpy as np

from onnxopt.proto.element_types import of
from onnxopt.proto.messages import Array

_MAX_ROUNDINGS: Final = 4
_FIRST: Final = 1024  # elements checked first; mostly enough to exclude underflow


def underflows(wide: Array, narrow: Array, each: bool = False) -> bool:
    """Whether rounding `wide` to `narrow` has an error above a few eps of the largest element; with `each`, of the
    element.

    Normal numbers have an error of half an eps at most, so only tensors that are small throughout underflow. In others,
    zero or subnormal elements are negligible in sums of products, and common in half precision, whose normal numbers
    end at 6e-5. Elementwise factors and divisors are not summed: there each element counts.
    """
    if not each and not is_small(narrow):
        return False
    kind = of(narrow.dtype)
    tiny, eps = kind.tiny, kind.epsilon
    small = np.abs(narrow) < tiny
    exact = np.abs(np.asarray(wide, np.float64)[small])
    off = np.abs(exact - np.abs(narrow[small]).astype(np.float64))
    return bool((off > _MAX_ROUNDINGS * eps * (exact if each else exact.max(initial=0))).any())


def is_small(array: Array) -> bool:
    """Whether a float array has no normal number, infinity or NaN."""
    tiny = of(array.dtype).tiny
    if array.size and not abs(array.item(0)) < tiny:  # mostly decided by the first element
        return False
    first = array.reshape(-1)[:_FIRST] if array.flags.c_contiguous else array[:1]
    return not _largest(first) >= tiny and _largest(array) < tiny


def _largest(array: Array) -> float:
    """Return the largest absolute value; 0 for an empty array, NaN if any is NaN."""
    return float(max(array.max(), -array.min())) if array.size else 0.0
