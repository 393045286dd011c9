"""What a folded weight loses where its numbers are too small for its type."""

from __future__ import annotations

from typing import Final

import numpy as np

from onnxopt.element_types import of
from onnxopt.protos import Array

_FEW: Final = 4
_FIRST: Final = 1024  # elements; mostly one of them says that nothing is lost


def underflows(wide: Array, narrow: Array, each: bool = False) -> bool:
    """Is an element of `narrow`, `wide` rounded to its type, off by more than a few eps of the largest element; with
    `each`, of itself?

    Normal numbers never are: they are off by half an eps of themselves. So only a tensor that is small throughout
    underflows; in others the numbers that become zero or subnormal are lost beside the largest, as they are in a sum of
    its products. Ordinary weights have such, above all in half precision, whose normal numbers end at 6e-5. Factors and
    divisors of single elements meet in no sum: there, each counts for itself.
    """
    if not each and not is_small(narrow):
        return False
    kind = of(narrow.dtype)
    tiny, eps = kind.tiny, kind.epsilon
    small = np.abs(narrow) < tiny
    exact = np.abs(np.asarray(wide, np.float64)[small])
    off = np.abs(exact - np.abs(narrow[small]).astype(np.float64))
    return bool((off > _FEW * eps * (exact if each else exact.max(initial=0))).any())


def is_small(array: Array) -> bool:
    """Is there no normal number, infinity or NaN among its floats?"""
    tiny = of(array.dtype).tiny
    if array.size and not abs(array.item(0)) < tiny:  # mostly the first says it
        return False
    first = array.reshape(-1)[:_FIRST] if array.flags.c_contiguous else array[:1]
    return not _largest(first) >= tiny and _largest(array) < tiny


def _largest(array: Array) -> float:
    """The largest absolute number, 0 of none; NaN where there is one."""
    return float(max(array.max(), -array.min())) if array.size else 0.0
