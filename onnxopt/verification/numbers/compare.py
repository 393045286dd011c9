"""Comparison of the outputs of two runs: type, shape, non-finite values, then numbers.

The first tolerance is tight. A float output may differ, relative to its range (largest magnitude), by a few roundings,
by the accumulated rounding of its longest path, or by twice the effect of changed last bits of the inputs: reordered
sums differ by the rounding of the terms, not of the result. Everything else must be equal. A larger difference is no
verdict, but leads to a comparison in pieces.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from onnxopt.proto.element_types import element_kind
from onnxopt.startup.record import record
from onnxopt.verification import VerifyOptions
from onnxopt.verification.numbers.narrow import held_alike
from onnxopt.verification.numbers.rounding import EPSILON, difference
from onnxopt.verification.records import OutputRecord

ATOL: Final = 1e-12  # for outputs all zero in the original
_DENORMAL: Final = 1e-37  # for nonzero outputs; smaller numbers have fewer bits
_WIDE_DENORMAL: Final = 10 * float(np.finfo(np.float64).tiny)  # for float64
_ROUNDINGS: Final = 6.0
_COARSE_ROUNDING: Final = 0.1  # types with a larger epsilon are compared for equality: a step is a decision
_MAX_ROUNDINGS: Final = 2.0**8  # roundings; a network that amplifies more is compared in pieces


def tolerance(dtype: str, options: VerifyOptions, explained: float, span: float) -> tuple[float, float]:
    """Return (relative to the range, absolute): the first tolerance of a float output with range `span`.

    explained: relative change known to be caused by rounding.
    """
    held = options.dtype if options.dtype and dtype == "float32" else dtype
    epsilon = EPSILON.get(held, EPSILON["float32"])
    epsilon = epsilon if epsilon < _COARSE_ROUNDING else 0.0
    rtol = min(max(_ROUNDINGS * epsilon, explained), _MAX_ROUNDINGS * epsilon) if options.rtol is None else options.rtol
    least = ATOL if not span else _WIDE_DENORMAL if dtype == "float64" else _DENORMAL
    return rtol, least if options.atol is None else options.atol


def compare(name: str, a: Any, b: Any, options: VerifyOptions, explained: float = 0.0) -> OutputRecord:
    """Return the comparison of the result's output `b` with the original's `a`. `explained`: see `tolerance`."""
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
            record.uneven = _is_uneven(a, b, min(_MAX_ROUNDINGS * EPSILON.get(dtype, EPSILON["float32"]), _CRUDE), atol)
    return record


_PART: Final = 3  # elements; smaller slices are not examined
_DEVIATIONS: Final = 4.0  # standard deviations: the largest magnitude of many normal numbers
_CHANCE: Final = 0.05
_CRUDE: Final = 1e-2


def _is_uneven(a: Any, b: Any, share: float, atol: float) -> bool:
    """Return whether a row, column or channel differs by much of its own range, far smaller than the largest range.

    Much: more than `atol` plus `share` of the range. Axes with a slice small by chance are skipped.
    """
    a, b = (v.astype(np.float32) if v.dtype.itemsize < 4 else v for v in (a, b))
    with np.errstate(all="ignore"):
        apart, sizes = np.nan_to_num(np.abs(a - b), posinf=0.0), np.nan_to_num(np.abs(a))
        small = min(_DEVIATIONS * float(apart.max()) / (share * float(sizes.max()) or 1.0), 1.0)
    for axis in (k for k in range(a.ndim) if a.size >= _PART * a.shape[k]):
        # Probability that all elements of some slice are small.
        if a.shape[axis] * small ** (a.size // a.shape[axis]) > _CHANCE:
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
    """Fill the record of a discrete output: elements must be equal, unless the user gave tolerances for integers."""
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
    """Summary of an output for judging the cases, a few bytes in size, as outputs are not kept."""

    empty: bool
    nan: bool  # NaN or infinite everywhere
    some_nan: bool
    zero: bool
    uniform: bool  # a single number everywhere
    shape: tuple[int, ...]
    digest: int


def evidence(value: Any) -> Evidence | None:
    """Return the evidence of a numeric tensor; None for sequences, strings and others, which are not judged."""
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
        value.size > 1 and all(bool((part == value.flat[0]).all()) for part in (value.reshape(-1)[:_PREFIX], value)),
        value.shape,
        # Via bytes, as a float of 8 bits has no buffer.
        zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data),
    )


def is_blank(value: Any) -> bool:
    """Return whether a value is empty, or floats zero, infinite or NaN everywhere."""
    if isinstance(value, list):
        return all(map(is_blank, value))
    if not isinstance(value, np.ndarray):
        return False
    if not value.size or element_kind(value) != "f":
        return not value.size
    return not any(((v != 0) & np.isfinite(v)).any() for v in (value.reshape(-1)[:_PREFIX], value))


def is_dull(value: Any) -> bool:
    """Return whether a value is empty, or floats all equal, or all at two bounds.

    Such outputs occur with no detections, a cutoff at zero, or saturation.
    """
    if not isinstance(value, np.ndarray):
        return isinstance(value, list) and not value
    if element_kind(value) != "f":
        return not value.size
    for part in (value.reshape(-1)[:_PREFIX], value):  # the first elements suffice for most
        low, high = part.min(initial=np.inf), part.max(initial=-np.inf)
        two = part.size > _TWO_BOUNDS and bool(((part == low) | (part == high)).all())
        if not (two or not (part != low).any() or np.isnan(part).all()):
            return False
    return value.size != 1 or not value.any()


_PREFIX: Final = 64
_TWO_BOUNDS: Final = 8  # elements; with fewer, two bounds may be chance


def proves_nothing(runs: Sequence[Evidence | None], fixed: bool) -> str:
    """Return why an output is weak evidence: empty, zero or non-finite in every case, or equal in all cases; else "".

    Equal outputs are no reason if the inputs are `fixed`.
    """
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
    """Return whether any tensors of two lists differ, bit for bit, with NaN equal to NaN."""
    return any(
        isinstance(x, np.ndarray) and not np.array_equal(x, y, equal_nan=element_kind(x) == "f") for x, y in zip(a, b)
    )
