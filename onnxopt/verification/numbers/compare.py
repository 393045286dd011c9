"""Compare what two runs give out, output by output: type, shape, non-finite values, then numbers.

The first look at a result is tight: an output of floats may differ by a few roundings, by what the roundings on its
longest path add up to, or by twice what changing the last bits of the inputs does, relative to its range (its largest
magnitude), because sums taken in another order differ by the rounding of the terms, not of the result. Everything else
must be equal. What differs by more is no verdict yet: it is looked at in pieces.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from onnxopt.element_types import element_kind
from onnxopt.record import record
from onnxopt.verification.numbers.narrow import held_alike
from onnxopt.verification.numbers.rounding import EPSILON, difference
from onnxopt.verification.options import VerifyOptions
from onnxopt.verification.records import OutputRecord

ATOL: Final = 1e-12  # of what is all zero in the original;
_DENORMAL: Final = 1e-37  # of anything else: below, numbers have fewer bits;
_WIDE_DENORMAL: Final = 10 * float(np.finfo(np.float64).tiny)  # but those of float64
_ROUNDINGS: Final = 6.0
_STEPS: Final = 0.1  # rounding of a type whose numbers are so far apart that one more is a decision
_MOST: Final = 2.0**8  # roundings: a network that amplifies more is looked into, and not taken at its word


def tolerance(dtype: str, options: VerifyOptions, explained: float, span: float) -> tuple[float, float]:
    """(relative to the range, absolute): the first tolerance of an output of this floating type and range. `explained`:
    the share of its range that rounding is known to change."""
    held = options.dtype if options.dtype and dtype == "float32" else dtype
    epsilon = EPSILON.get(held, EPSILON["float32"])
    epsilon = epsilon if epsilon < _STEPS else 0.0
    rtol = min(max(_ROUNDINGS * epsilon, explained), _MOST * epsilon) if options.rtol is None else options.rtol
    least = ATOL if not span else _WIDE_DENORMAL if dtype == "float64" else _DENORMAL
    return rtol, least if options.atol is None else options.atol


def compare(name: str, a: Any, b: Any, options: VerifyOptions, explained: float = 0.0) -> OutputRecord:
    """How the result's output `b` compares with the original's `a`; `explained`: see `tolerance`."""
    a, b = held_alike(a, b, options.dtype)
    record = OutputRecord(name, *_kind(a))
    found = difference(a, b)
    if found.note:
        record.max_abs = record.max_rel = float("inf")
        record.ok, record.note = False, found.note
    elif found.discrete:
        _discrete(record, a, b, found.largest, options)
    else:
        record.max_abs, record.max_rel = found.largest, found.relative
        dtype, _ = _kind(a[0] if isinstance(a, list) and a else a)
        rtol, atol = tolerance(dtype, options, explained, found.span)
        if found.largest > atol + rtol * found.span:
            record.ok, record.note = False, found.words
        elif found.largest and isinstance(a, np.ndarray) and not options.by_tolerance:
            record.uneven = _is_uneven(a, b, min(_MOST * EPSILON.get(dtype, EPSILON["float32"]), _CRUDE), atol)
    return record


_PART: Final = 3  # elements: parts of fewer are not asked
_DEVIATIONS: Final = 4.0  # the largest of many normal numbers is about so many times their deviation
_CHANCE: Final = 0.05
_CRUDE: Final = 1e-2


def _is_uneven(a: Any, b: Any, share: float, atol: float) -> bool:
    """Does a row, column or channel differ by more than `atol` and this share of its own range, which is far smaller
    than that of the others, and not by chance?"""
    a, b = (v.astype(np.float32) if v.dtype.itemsize < 4 else v for v in (a, b))
    with np.errstate(all="ignore"):
        apart, sizes = np.nan_to_num(np.abs(a - b), posinf=0.0), np.nan_to_num(np.abs(a))
        small = min(_DEVIATIONS * float(apart.max()) / (share * float(sizes.max()) or 1.0), 1.0)
    for axis in (k for k in range(a.ndim) if a.size >= _PART * a.shape[k]):
        if a.shape[axis] * small ** (a.size // a.shape[axis]) > _CHANCE:  # all numbers of some part are so small
            continue
        others = tuple(k for k in range(a.ndim) if k != axis)
        if (apart.max(others) > atol + share * sizes.max(others)).any():
            return True
    return False


def _kind(value: Any) -> tuple[str, list[int]]:
    if isinstance(value, list):
        return "sequence", [len(value)]
    if isinstance(value, dict):
        return "map", [len(value)]
    if value is None:
        return "none", []
    value = np.asarray(value)
    return str(value.dtype), list(value.shape)


def _discrete(record: OutputRecord, a: Any, b: Any, share: float, options: VerifyOptions) -> None:
    """What is counted and not measured: equal, but for integers of which the user says otherwise."""
    if not share:
        return
    record.ok, record.max_rel = False, share
    if not isinstance(a, np.ndarray):
        record.note = "elements differ"
        return
    count = int(np.count_nonzero(a != b))
    record.note = f"{count} of {a.size} {a.dtype} values differ"
    if element_kind(a) in "iu":
        record.max_abs = float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max())
        span = float(np.abs(a.astype(np.float64)).max())
        if options.by_tolerance and record.max_abs <= (options.atol or 0.0) + (options.rtol or 0.0) * span:
            record.ok, record.note = True, ""


@record(frozen=True)
class Evidence:
    """What one run's output can prove, in a few bytes: cases are many, and their outputs are not kept."""

    empty: bool
    nan: bool  # or infinite, everywhere
    some_nan: bool
    zero: bool
    uniform: bool  # one number everywhere
    shape: tuple[int, ...]
    digest: int


def evidence(value: Any) -> Evidence | None:
    """Of a tensor of numbers; None for anything else, which is not judged."""
    if not isinstance(value, np.ndarray) or element_kind(value) not in "fiub":
        return None
    if not value.size:
        return Evidence(True, False, False, False, False, value.shape, 0)
    is_float = element_kind(value) == "f"
    return Evidence(
        False,
        is_float and not np.isfinite(value).any(),
        is_float and bool(np.isnan(value).any()),
        not value.any(),
        value.size > 1 and all(bool((part == value.flat[0]).all()) for part in (value.reshape(-1)[:_FEW], value)),
        value.shape,
        zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data),  # a float of 8 bits has no buffer
    )


def is_blank(value: Any) -> bool:
    """Does it say nothing: no elements, or floats that are zero, infinite or NaN everywhere?"""
    if isinstance(value, list):
        return all(map(is_blank, value))
    if not isinstance(value, np.ndarray):
        return False
    if not value.size or element_kind(value) != "f":
        return not value.size
    return not any(((v != 0) & np.isfinite(v)).any() for v in (value.reshape(-1)[:_FEW], value))


def is_dull(value: Any) -> bool:
    """Is it empty, or floats that are all the same, or all at two bounds: what nothing is detected in, is cut off at
    zero, or saturates?"""
    if not isinstance(value, np.ndarray):
        return isinstance(value, list) and not value
    if element_kind(value) != "f":
        return not value.size
    for part in (value.reshape(-1)[:_FEW], value):  # most are found lively by their first elements
        low, high = part.min(initial=np.inf), part.max(initial=-np.inf)
        two = part.size > _TWO_BOUNDS and bool(((part == low) | (part == high)).all())
        if not (two or not (part != low).any() or np.isnan(part).all()):
            return False
    return value.size != 1 or not value.any()


_FEW: Final = 64
_TWO_BOUNDS: Final = 8  # elements: of fewer, it may be chance


def proves_nothing(runs: Sequence[Evidence | None], fixed: bool) -> str:
    """Why an output that is the same in every case (unless the inputs are `fixed`), or nothing but zero or what is no
    finite number, is weak evidence; else empty."""
    found = [e for e in runs if e is not None]
    if not found or len(found) < len(runs):
        return ""
    if all(e.empty for e in found):
        return "is empty"
    if all(e.nan for e in found):
        return "is all NaN or infinite"
    if all(e.zero for e in found):
        return "is all zero"
    if not fixed and len(found) == 1 and found[0].uniform:
        return "is one number everywhere"
    same = not fixed and len(found) > 1 and len(set(found)) == 1 and not found[0].some_nan
    return "does not depend on the inputs" if same else ""


def differ(a: list[Any], b: list[Any]) -> bool:
    """Is any tensor of the one not the same in the other, bit for bit or NaN for NaN?"""
    return any(
        isinstance(x, np.ndarray) and not np.array_equal(x, y, equal_nan=element_kind(x) == "f") for x, y in zip(a, b)
    )
