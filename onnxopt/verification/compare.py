"""Comparison of the outputs of two runs: type, shape, non-finite values, then numbers; figures for the reader.

The first tolerance is tight. A float output may differ, relative to its range (largest magnitude), by a few roundings,
by the accumulated rounding of its longest path, or by twice the effect of changed last bits of the inputs: reordered
sums differ by the rounding of the terms, not of the result. Everything else must be equal. A larger difference is no
verdict, but leads to a comparison in pieces.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.proto.element_types import BY_NAME, element_kind
from onnxopt.verification import VerifyOptions
from onnxopt.verification.records import Evidence, MeasuredRecord, OutputRecord
from onnxopt.verification.rounding import EPSILON, INFINITE, NO_NUMBER, Difference, as_single, difference, is_float
from onnxopt.verification.run import Failed

if TYPE_CHECKING:
    from onnx import GraphProto


# -- narrower types ---------------------------------------------------------------------------------------
# The expected value is the original's, rounded and clamped to the type's largest number. An infinite value in the
# result differs from a larger number of the original.

_FILL: Final = 1e9
_FILLS: Final = 4  # distinct numbers, in a sum of masks
_SCORES: Final = 16  # low bits ignored: a score added to -1e9 changes only these
CODES: Final = {name: BY_NAME[name].code for name in ("float16", "bfloat16")}
_BEYOND: Final = {"float16": 65520.0, "bfloat16": (2 - 2**-8) * 2.0**127}  # smallest numbers rounded to infinity


def narrowed(value: Any, dtype: str) -> Any:
    """Return a float32 array rounded to `dtype` and clamped (bfloat16 as float32, unknown to numpy); else `value`."""
    if not isinstance(value, np.ndarray) or value.dtype != np.float32:
        return value
    if dtype == "bfloat16":
        bits = value.view(np.uint32)
        rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) & np.uint32(0xFFFF0000)
        found = np.where(np.isfinite(value), rounded, bits).view(np.float32)
    else:
        with np.errstate(all="ignore"):
            found = value.astype(np.float16)
    over = np.isinf(found) & np.isfinite(value)
    return np.where(over, np.copysign(BY_NAME[dtype].high, found), found) if over.any() else found


def forgiven(b: Any, a: Any, dtype: str) -> Any:
    """Return the narrow value `b` with infinities clamped where the original's `a` has a stand-in for infinity (mask).

    A mask has few distinct numbers; an overflowing square has many.
    """
    if not isinstance(b, np.ndarray) or element_kind(b) != "f" or b.shape != a.shape or not np.isinf(b).any():
        return b
    stands = np.isinf(b) & np.isfinite(a) & (np.abs(a) >= _FILL) & (np.sign(a) == np.sign(b))
    return np.where(stands, np.copysign(BY_NAME[dtype].high, b), b) if _are_few(a[stands]) else b


def is_beyond(a: Any, dtype: str) -> bool:
    """Return whether a float32 value has numbers infinite in `dtype`, except stand-ins for infinity."""
    if not isinstance(a, np.ndarray) or a.dtype != np.float32:
        return False
    over = a[np.isfinite(a) & (np.abs(a) >= _BEYOND[dtype])]
    return bool((over.size and np.abs(over).min() < _FILL) or not _are_few(over))


def is_too_small(a: Any, dtype: str) -> bool:
    """Return whether all numbers of a float32 value are denormal in `dtype`, with fewer digits."""
    if not isinstance(a, np.ndarray) or a.dtype != np.float32 or BY_NAME[dtype].tiny == BY_NAME["float32"].tiny:
        return False
    largest = np.abs(a[np.isfinite(a)]).max(initial=0)
    return bool(0 < largest < BY_NAME[dtype].tiny)


def _are_few(numbers: Any) -> bool:
    return np.unique(numbers.astype(np.float32).view(np.int32) >> _SCORES).size <= _FILLS


def lost(a: Any, b: Any) -> str:
    """Return the kind of non-finite numbers in `b` where `a` is finite (a constant of `rounding`), or ""."""
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or a.shape != b.shape:
        return ""
    if "f" not in (element_kind(a), element_kind(b)) or element_kind(a) != element_kind(b):
        return ""
    gone = np.isfinite(a) & ~np.isfinite(b)
    return "" if not gone.any() else NO_NUMBER if np.isnan(b[gone]).any() else INFINITE


def as_held(a: Any, b: Any, dtype: str) -> Any:
    """Return the original's value `a` in the type of the result's value `b`, if narrower."""
    is_narrow = dtype and isinstance(b, np.ndarray) and b.dtype.name == dtype
    return narrowed(a, dtype) if is_narrow else a


def as_wide(a: Any, b: Any) -> Any:
    """The result's int32 value `b` in int64, where the original's own `a` is int64."""
    held = isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and (a.dtype, b.dtype) == (np.int64, np.int32)
    return b.astype(np.int64) if held else b


def as_int32(name: str, value: Any) -> Any:
    """The integers of an input of the original, in int32. Raises Failed for numbers that need 64 bits."""
    found = value.astype(np.int32)
    if (found != value).any():
        raise Failed(f"`{name}` is fed {value[found != value][0]}, which int32 does not hold")
    return found


def narrow_feeds(graph: GraphProto, feeds: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Return the original's feeds in the narrower types of the result's graph: `dtype`, and int32.

    Raises Failed for numbers that need 64 bits.
    """
    codes = {i.name: i.type.tensor_type.elem_type for i in graph.input}
    narrow = {name for name in feeds if dtype and codes.get(name) == CODES[dtype]}
    int32 = {name for name in feeds if codes.get(name) == BY_NAME["int32"].code}
    rounded = {name: narrowed(feeds[name], dtype) for name in narrow}
    return {**feeds, **rounded, **{name: as_int32(name, feeds[name]) for name in int32}}


# -- outputs ----------------------------------------------------------------------------------------------

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
    is_narrow = options.dtype and getattr(b, "dtype", None) == options.dtype
    a, b = as_held(a, b, options.dtype), forgiven(b, a, options.dtype) if is_narrow else b
    record = OutputRecord(name, *_kind(a))
    found = difference(a, b)
    if found.note:
        record.max_abs = record.max_rel = float("inf")
        record.ok, record.note = False, found.note
    elif found.discrete:
        _discrete(record, a, b, found.largest, options)
    else:
        record.max_abs, record.max_rel = found.largest, found.relative
        _continuous(record, a, b, found, options, explained)
    return record


def _continuous(
    record: OutputRecord, a: Any, b: Any, found: Difference, options: VerifyOptions, explained: float
) -> None:
    dtype, _ = _kind(a[0] if isinstance(a, list) and a else a)
    rtol, atol = tolerance(dtype, options, explained, found.span)
    if found.largest > atol + rtol * found.span:
        record.ok, record.note = False, found.words
    elif found.largest and isinstance(a, np.ndarray) and not options.by_tolerance:
        record.uneven = _is_uneven(a, b, min(_MAX_ROUNDINGS * EPSILON.get(dtype, EPSILON["float32"]), _CRUDE), atol)


_PART: Final = 3  # elements; smaller slices are not examined
_DEVIATIONS: Final = 4.0  # standard deviations: the largest magnitude of many normal numbers
_CHANCE: Final = 0.05
_CRUDE: Final = 1e-2


def _is_uneven(a: Any, b: Any, share: float, atol: float) -> bool:
    """Return whether a row, column or channel differs by much of its own range, far smaller than the largest range.

    Much: more than `atol` plus `share` of the range. Axes with a slice small by chance are skipped.
    """
    a, b = as_single(a), as_single(b)
    with np.errstate(all="ignore"):
        apart, sizes = np.nan_to_num(np.abs(a - b), posinf=0.0), np.nan_to_num(np.abs(a))
        small = min(_DEVIATIONS * float(apart.max()) / (share * float(sizes.max()) or 1.0), 1.0)
    for axis, length in enumerate(a.shape):
        # Probability that all elements of some slice are small.
        if a.size < _PART * length or length * small ** (a.size // length) > _CHANCE:
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


EMPTY: Final = "is empty"  # said of an output without elements


def evidence(value: Any) -> Evidence | None:
    """Return the evidence of a numeric tensor; None for sequences, strings and others, which are not judged."""
    if not isinstance(value, np.ndarray) or element_kind(value) not in "fiub":
        return None
    if said := _blank_as(value):
        return Evidence(said)
    is_uniform = all(bool((part == value.flat[0]).all()) for part in (value.reshape(-1)[:_PREFIX], value))
    if element_kind(value) == "f" and np.isnan(value).any():
        return Evidence("")
    # Via bytes, as a float of 8 bits has no buffer.
    digest = zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return Evidence("", is_uniform and value.size > 1, (*value.shape, digest))


def _blank_as(value: Any) -> str:
    """Return, in words, how a numeric tensor is blank; "" otherwise."""
    if not value.size:
        return EMPTY
    if not value.any():
        return "is all zero"
    return "is all NaN or infinite" if element_kind(value) == "f" and not np.isfinite(value).any() else ""


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
    # The first elements suffice for most.
    is_at_bounds = all(map(_is_at_bounds, (value.reshape(-1)[:_PREFIX], value)))
    return is_at_bounds and (value.size != 1 or not value.any())


def _is_at_bounds(part: Any) -> bool:
    """Return whether floats are all equal, all at two bounds, or all NaN."""
    low, high = part.min(initial=np.inf), part.max(initial=-np.inf)
    two = part.size > _TWO_BOUNDS and bool(((part == low) | (part == high)).all())
    return two or not (part != low).any() or bool(np.isnan(part).all())


_PREFIX: Final = 64
_TWO_BOUNDS: Final = 8  # elements; with fewer, two bounds may be chance


def proves_nothing(runs: Sequence[Evidence | None], fixed: bool) -> str:
    """Return why an output is weak evidence: empty, zero or non-finite in every case, or equal in all cases; else "".

    Equal outputs are no reason if the inputs are `fixed`.
    """
    first = runs[0] if runs else None
    if first is None or any(e != first for e in runs):
        return ""
    if first.said or fixed:
        return first.said
    if len(runs) == 1:
        return "is one number everywhere" if first.is_uniform else ""
    return "does not depend on the inputs" if first.digest else ""


def differ(a: list[Any], b: list[Any]) -> bool:
    """Return whether any tensors of two lists differ, bit for bit, with NaN equal to NaN."""
    return any(
        isinstance(x, np.ndarray) and not np.array_equal(x, y, equal_nan=element_kind(x) == "f") for x, y in zip(a, b)
    )


# -- figures for the reader -------------------------------------------------------------------------------

_UNSIGNED: Final[dict[int, Any]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def measure(
    name: str, a: Any, b: Any, options: VerifyOptions, explained: float = 0.0, *, against: str = ""
) -> MeasuredRecord:
    """Return the record of `compare` with figures, which need tensors of equal shape and type."""
    record = MeasuredRecord(**vars(compare(name, a, b, options, explained)), against=against)
    a = as_held(a, b, options.dtype)
    if not is_float(a) or not isinstance(b, np.ndarray):
        return record
    record.rtol, record.atol = tolerance(a.dtype.name, options, explained, float(np.abs(a).max(initial=0)))
    record.nan = [int(np.count_nonzero(np.isnan(x))) for x in (a, b)]
    record.inf = [int(np.count_nonzero(np.isinf(x))) for x in (a, b)]
    if a.dtype == b.dtype and a.shape == b.shape:
        both = np.isfinite(a) & np.isfinite(b)
        record.cosine = cosine(a[both], b[both])
        record.ulp = ulp_distance(a[both], b[both])
    return record


def cosine(a: Any, b: Any) -> float | None:
    """Return a·b / (|a| |b|) over all elements, which must be finite, in float64; None if either is zero or empty."""
    wide = np.complex128 if element_kind(a) == "c" else np.float64
    x, y = a.astype(wide).ravel(), b.astype(wide).ravel()
    scale = [float(np.abs(v).max(initial=0.0)) for v in (x, y)]
    if not all(scale):
        return None
    x, y = x / scale[0], y / scale[1]  # prevents overflow of squares
    return float(np.real(np.vdot(x, y)) / (np.linalg.norm(x) * np.linalg.norm(y)))


def ulp_distance(a: Any, b: Any) -> int | None:
    """Return the largest distance between elements of `a` and `b`, in representable numbers; None for complex types.

    Elements must be finite. The bits of a sign-magnitude float, read as an integer without sign, number the magnitudes
    from zero. The distance is the difference of the numbers, or the sum for opposite signs.
    """
    if element_kind(a) == "c" or a.dtype.itemsize not in _UNSIGNED:
        return None
    if not a.size:
        return 0
    unsigned = _UNSIGNED[a.dtype.itemsize]
    sign = unsigned(1 << (8 * a.dtype.itemsize - 1))
    x, y = (np.ascontiguousarray(v).view(unsigned) for v in (a, b))
    counts = [(v & ~sign).astype(np.uint64) for v in (x, y)]
    apart = (x & sign) != (y & sign)
    larger, smaller = np.maximum(*counts), np.minimum(*counts)
    return int(np.where(apart, larger + smaller, larger - smaller).max())
