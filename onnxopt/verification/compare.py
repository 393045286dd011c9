"""Compare two runs output by output: type, shape, non-finite values, then numbers.

Default tolerances are relative to the range of an output (its largest magnitude), because re-associated sums
differ by rounding of the terms, not of the result: float64 1e-7, float32 1e-4, float16 2e-2, bfloat16 1e-1. That is
what a deep network accumulates (840 roundings of float32); a wrong fold is off by far more. Integers, booleans and
strings must be equal.

Two kinds of model get more room (`slack`). Where float16 is computed inside, a runtime without such kernels computes in
float32 and rounds between some operators only, which depends on their order: removing a Transpose changes the last
digits of float16 everywhere (the reference evaluator, which rounds after each, shows no difference). Networks that
quantize at run time amplify a last-bit difference to a whole quantization step; their 8-bit outputs may be off by one.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from onnxopt.verification.records import OutputRecord, VerifyOptions

RTOL: Final = {"float64": 1e-7, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
ATOL: Final = 1e-7
QUANTIZED_RTOL: Final = 5e-2


def slack(quantized: bool, narrowest: str) -> float:
    """The relative tolerance that a model asks for as a whole: it quantizes, or computes in a narrow type inside."""
    return max(QUANTIZED_RTOL if quantized else 0.0, RTOL.get(narrowest, 0.0))


def tolerance(dtype: str, options: VerifyOptions, room: float = 0.0) -> tuple[float, float]:
    """(relative to the range, absolute): what is allowed of an output of this floating type."""
    rtol = max(RTOL.get(dtype, 1e-4), room) if options.rtol is None else options.rtol
    return rtol, ATOL if options.atol is None else options.atol


def compare(
    name: str, a: Any, b: Any, options: VerifyOptions, quantized: bool = False, room: float = 0.0
) -> OutputRecord:
    """How the result's output `b` compares with the original's `a`."""
    if isinstance(a, list) or isinstance(b, list):
        return _compare_sequences(name, a, b, options, quantized, room)
    if a is None or b is None:
        return OutputRecord(name, "none", [], ok=a is b, note="" if a is b else "absent in one of the two")
    if isinstance(a, dict):
        return OutputRecord(name, "map", [len(a)], ok=a == b, note="" if a == b else "maps differ")
    a, b = np.asarray(a), np.asarray(b)
    record = OutputRecord(name, str(a.dtype), list(a.shape))
    if a.dtype != b.dtype:
        return _fail(record, f"type {a.dtype} became {b.dtype}")
    if a.shape != b.shape:
        return _fail(record, f"shape {list(a.shape)} became {list(b.shape)}")
    if a.dtype.name not in RTOL and a.dtype.kind not in "fc":
        return _compare_discrete(record, a, b, quantized)
    return _compare_floats(record, a, b, options, room)


def _fail(record: OutputRecord, note: str) -> OutputRecord:
    record.ok, record.note = False, note
    record.max_rel = record.max_abs = float("inf")
    return record


def _compare_sequences(name: str, a: Any, b: Any, options: VerifyOptions, quantized: bool, room: float) -> OutputRecord:
    record = OutputRecord(name, "sequence", [len(a)] if isinstance(a, list) else [])
    if not isinstance(a, list) or not isinstance(b, list) or len(a) != len(b):
        return _fail(record, "sequences differ in length")
    for i, (x, y) in enumerate(zip(a, b)):
        element = compare(f"{name}[{i}]", x, y, options, quantized, room)
        record.max_abs, record.max_rel = (
            max(record.max_abs, element.max_abs),
            max(record.max_rel, element.max_rel),
        )
        if not element.ok:
            record.ok, record.note = False, f"element {i}: {element.note}"
    return record


def _compare_discrete(record: OutputRecord, a: Any, b: Any, quantized: bool) -> OutputRecord:
    differ = a != b
    count = int(np.count_nonzero(differ))
    if not count:
        return record
    if a.dtype.kind in "iu":
        record.max_abs = float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max())
        if quantized and a.dtype.itemsize == 1 and record.max_abs <= 1:
            record.note = f"{count} of {a.size} off by one quantization step"
            return record
    record.ok, record.note = False, f"{count} of {a.size} {a.dtype} values differ"
    record.max_rel = count / a.size
    return record


def _compare_floats(record: OutputRecord, a: Any, b: Any, options: VerifyOptions, room: float) -> OutputRecord:
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    finite = np.isfinite(x)
    if not finite.all() or not np.isfinite(y).all():
        if not np.array_equal(np.isnan(x), np.isnan(y)):
            return _fail(record, "NaN in other places")
        if not np.array_equal(np.where(np.isinf(x), x, 0), np.where(np.isinf(y), y, 0)):
            return _fail(record, "infinities in other places")
    if not finite.any():
        return record
    x, y = x[finite], y[finite]
    record.max_abs = float(np.abs(x - y).max())
    span = float(np.abs(x).max())
    record.max_rel = record.max_abs / span if span else (float("inf") if record.max_abs else 0.0)
    rtol, atol = tolerance(a.dtype.name, options, room)
    if record.max_abs > atol + rtol * span:
        record.ok, record.note = False, f"differs by {record.max_rel:.1e} of its range, {rtol:.0e} is allowed"
    return record


@dataclass(frozen=True)
class Evidence:
    """What one run's output can prove, in a few bytes: cases are many, and their outputs are not kept."""

    nan: bool  # everywhere
    some_nan: bool
    zero: bool
    shape: tuple[int, ...]
    digest: int


def evidence(value: Any) -> Evidence | None:
    """Of a tensor of numbers with elements; None for anything else, which is not judged."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub" or not value.size:
        return None
    nan = np.isnan(value) if value.dtype.kind == "f" else np.zeros(1, bool)
    return Evidence(
        bool(nan.all()), bool(nan.any()), not value.any(), value.shape, zlib.crc32(np.ascontiguousarray(value).data)
    )


def proves_nothing(runs: Sequence[Evidence | None]) -> str:
    """Why an output that is the same in every case, or nothing but NaN or zero, is weak evidence; else empty."""
    found = [e for e in runs if e is not None]
    if not found or len(found) < len(runs):
        return ""
    if all(e.nan for e in found):
        return "is all NaN"
    if all(e.zero for e in found):
        return "is all zero"
    same = len(found) > 1 and len(set(found)) == 1 and not found[0].some_nan
    return "does not depend on the inputs" if same else ""


def differ(a: list[Any], b: list[Any]) -> bool:
    """Is any tensor of the one not the same in the other, bit for bit or NaN for NaN?"""
    return any(
        isinstance(x, np.ndarray) and not np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in zip(a, b)
    )
