"""Perturbation of last bits, as by rounding, with exact numbers unchanged."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.proto.element_types import element_kind, of
from onnxopt.verification.numbers.rounding import EPSILON, MASK

if TYPE_CHECKING:
    from onnxopt.verification.numbers.draws import Draws

_CHANCE: Final = 12  # trailing bits zero by chance in 1 of 4096 rounded numbers
# Trailing bits zero after cancellation, as in x + 100 - 37.
_CANCELLED: Final = {"bfloat16": 1, "float16": 2, "float32": 6, "float64": 12}
_PREFIX: Final = 256
_HUGE: Final = 1e4


def last_bit(value: Any, rng: Draws, dtype: str = "", times: float = 1.0) -> Any:
    """Return the value with each float moved to a neighbour, up or down, or `times` as far.

    Equal elements move alike, as the same roundings would. Zeros, infinities, masks, exact values (`is_exact`) and
    other types are unchanged. dtype: narrower type of a float32 array.
    """
    if isinstance(value, list):
        return [last_bit(v, rng, dtype, times) for v in value]
    if not isinstance(value, np.ndarray) or element_kind(value) != "f" or not value.size:
        return value
    flags = rng.flags(value.shape)
    if (value.flat[:_PREFIX] == value.flat[0]).all() and (value == value.flat[0]).all():
        flags = flags.flat[0]
    if is_exact(value):
        return value
    with np.errstate(all="ignore"):
        if dtype and value.dtype == np.float32:
            step = np.abs(value) * np.float32(EPSILON[dtype] * times)
        else:
            step = np.spacing(np.abs(value)) * value.dtype.type(times)
        found = (value + np.where(flags, step, -step)).astype(value.dtype)
    keep = (value == 0) | ~np.isfinite(value) | ~np.isfinite(found) | _is_mask(value)
    return np.where(keep, value, found)


def is_exact(value: Any) -> bool:
    """Return whether floats are exact: all multiples of a power of two too large to be the result of rounding.

    True for integers, sizes, positions, pixels, results of Round or Mod, and many constant factors. A sum after
    cancellation also has trailing zero bits, but was rounded, so a few are not enough.
    """
    if value.dtype.name not in _CANCELLED:
        return False
    bits, flat = of(value.dtype).digits, value.reshape(-1)
    largest = float(np.abs(flat).max(initial=0, where=np.isfinite(flat)))
    empty = max(math.ceil(_CHANCE / max(int(np.count_nonzero(flat)), 1)), _CANCELLED[value.dtype.name])
    if not largest or empty >= bits:
        return not largest
    for part in (flat[:_PREFIX], flat):  # the first elements suffice for most
        scaled = np.ldexp(part.astype(np.float64), bits - empty - math.frexp(largest)[1])
        if not ((scaled == np.trunc(scaled)) | np.isnan(scaled)).all():
            return False
    return True


def are_integers(value: Any) -> bool:
    """Return whether floats are almost certainly integers, which jump by steps."""
    if not isinstance(value, np.ndarray) or element_kind(value) != "f" or value.dtype.name not in _CANCELLED:
        return False
    largest = float(np.abs(value).max(initial=0))
    return 4 * largest <= 2.0 ** of(value.dtype).digits and bool((value == np.trunc(value)).all())


def _is_mask(value: Any) -> Any:
    """Return where a repeated number is huge beside all remaining numbers, or the only nonzero number.

    The last bit of -1e9 is larger than any score.
    """
    sizes = np.abs(value)
    span = float(sizes.max())
    found = sizes == span
    rest = float(sizes[~found].max(initial=0))
    if found.all() or np.count_nonzero(found) < 2 or not (value[found] == value[found][0]).all():
        return np.zeros_like(found)
    return found & (rest == 0 or (span >= _HUGE and MASK * rest < span))
