"""Figures of a comparison for the reader, not used by the verdict: cosine, ULP distance, NaN, infinities."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from onnxopt.proto.element_types import element_kind
from onnxopt.verification import VerifyOptions
from onnxopt.verification.numbers.compare import compare, tolerance
from onnxopt.verification.numbers.narrow import as_held
from onnxopt.verification.numbers.rounding import is_float
from onnxopt.verification.records import MeasuredRecord

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
