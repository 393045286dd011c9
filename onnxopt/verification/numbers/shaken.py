"""Numbers moved by their last bits, as roundings may have moved them; those that are exact stay as they are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.element_types import element_kind, of
from onnxopt.verification.numbers.rounding import EPSILON, MASK

if TYPE_CHECKING:
    from onnxopt.verification.numbers.draws import Draws

_CHANCE: Final = 12  # bits that numbers which were rounded leave empty once in 4096 times
# Bits that sums leave empty: x + 100 - 37.
_CANCELLED: Final = {"bfloat16": 1, "float16": 2, "float32": 6, "float64": 12}
_FEW: Final = 256
_HUGE: Final = 1e4


def last_bit(value: Any, rng: Draws, dtype: str = "", times: float = 1.0) -> Any:
    """Each number replaced by its neighbour, up or down, or one so many `times` as far, all alike that are one number
    everywhere, as the same roundings would have moved them; zero, which is often exact,
    infinity, a mask, what is exact and what is no float as they are. `dtype`: of a narrower type, where the value is
    float32."""
    if isinstance(value, list):
        return [last_bit(v, rng, dtype, times) for v in value]
    if not isinstance(value, np.ndarray) or element_kind(value) != "f" or not value.size:
        return value
    flags = rng.flags(value.shape)
    if (value.flat[:_FEW] == value.flat[0]).all() and (value == value.flat[0]).all():
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
    """Is nothing rounded in these floats: integers, halves, all multiples of one power of two that is so large beside
    them that rounded numbers would hardly all be? What is made of sizes and positions, of pixels, by Round or Mod, is
    such, and so are many factors of formulas. Nothing that rounds could have moved them. A sum of which most cancels
    leaves a few bits empty, too, and was rounded where it was larger."""
    if value.dtype.name not in _CANCELLED:
        return False
    bits, flat = of(value.dtype).digits, value.reshape(-1)
    largest = float(np.abs(flat).max(initial=0, where=np.isfinite(flat)))
    empty = max(math.ceil(_CHANCE / max(int(np.count_nonzero(flat)), 1)), _CANCELLED[value.dtype.name])
    if not largest or empty >= bits:
        return not largest
    for part in (flat[:_FEW], flat):  # most are known by their first numbers
        scaled = np.ldexp(part.astype(np.float64), bits - empty - math.frexp(largest)[1])
        if not ((scaled == np.trunc(scaled)) | np.isnan(scaled)).all():
            return False
    return True


def are_integers(value: Any) -> bool:
    """Are they floats, and as good as certainly made to be integers, which jump?"""
    if not isinstance(value, np.ndarray) or element_kind(value) != "f" or value.dtype.name not in _CANCELLED:
        return False
    largest = float(np.abs(value).max(initial=0))
    return 4 * largest <= 2.0 ** of(value.dtype).digits and bool((value == np.trunc(value)).all())


def _is_mask(value: Any) -> Any:
    """Where one number stands again and again that is huge beside all others, or the only one but zero: the last bits
    of -1e9 are more than any score."""
    sizes = np.abs(value)
    span = float(sizes.max())
    found = sizes == span
    rest = float(sizes[~found].max(initial=0))
    if found.all() or np.count_nonzero(found) < 2 or not (value[found] == value[found][0]).all():
        return np.zeros_like(found)
    return found & (rest == 0 or (span >= _HUGE and MASK * rest < span))
