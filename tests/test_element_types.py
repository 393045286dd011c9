"""Properties of element types, held against onnx and ml_dtypes."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxopt.proto.element_types import (
    BY_CODE,
    BY_NAME,
    FLOATS,
    INTEGERS,
    TYPES,
    ElementType,
    element_kind,
    is_float,
    of,
)

PACKAGE = Path(__file__).parents[1] / "onnxopt"
NUMBERS = [t for t in TYPES if t.kind in "fiu"]


def name(t: ElementType) -> str:
    return t.name


def test_there_are_those_of_onnx() -> None:
    assert {t.code for t in TYPES} == set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}
    assert all(TensorProto.DataType.Name(t.code) == t.onnx.upper() for t in TYPES)
    assert all(helper.tensor_dtype_to_np_dtype(t.code) == t.dtype for t in TYPES)


@pytest.mark.parametrize("t", [t for t in NUMBERS if t.kind == "f"], ids=name)
def test_floats(t: ElementType) -> None:
    info = ml_dtypes.finfo(t.dtype)
    assert (t.bits, t.digits, t.epsilon) == (info.bits, info.nmant + 1, float(info.eps))
    assert (t.low, t.high, t.tiny) == (float(info.min), float(info.max), float(info.smallest_normal))
    low, high = t.integers
    exact = np.array(list(range(low, high + 1)) if t.digits < 12 else [low, low + 1, high - 1, high], object)
    kept = exact.astype(np.float64).astype(t.dtype).astype(np.float64)
    assert (kept == exact.astype(np.float64)).all()
    assert float(np.array(high + 1).astype(t.dtype)) != high + 1 or t.high == high or high + 1 > t.high


@pytest.mark.parametrize("t", [t for t in NUMBERS if t.kind in "iu"], ids=name)
def test_integers(t: ElementType) -> None:
    info = ml_dtypes.iinfo(t.dtype)
    assert (t.bits, *t.integers) == (info.bits, info.min, info.max)


def test_kinds_are_not_those_of_numpy() -> None:
    kinds = {"bfloat16": "f", "float8_e4m3fn": "f", "float8_e5m2": "f", "float4_e2m1fn": "f", "int4": "i", "uint2": "u"}
    assert {n: element_kind(np.zeros(1, BY_NAME[n].dtype)) for n in kinds} == kinds
    assert is_float(BY_NAME["bfloat16"].dtype) and not is_float(BY_NAME["int4"].dtype)
    assert element_kind(np.array(["a"])) == element_kind(np.array(["a"], object)) == "S"
    assert element_kind(np.zeros(1, "M8[s]")) == "?"  # ONNX has no dates
    assert of(np.dtype("float32")) is BY_CODE[TensorProto.FLOAT]


def test_what_holds_what() -> None:
    """Against all numbers of types that have few."""
    small = [t for t in TYPES if t.bits <= 16 and t.kind in "fiu"]
    for t in small:
        raw = np.arange(1 << 16, dtype=np.uint16).view(t.dtype) if t.bits == 16 else _all_of(t)
        with np.errstate(all="ignore"):
            values = raw.astype(np.float64)
        values = values[np.isfinite(values)]
        for other in NUMBERS:
            with np.errstate(all="ignore"):
                kept = values.astype(other.dtype).astype(np.float64)
            beyond = (values < float(other.low)) | (values > float(other.high))
            assert other.holds(t) == (not beyond.any() and bool((kept == values).all())), (other.name, t.name)


def _all_of(t: ElementType) -> np.ndarray:
    codes = np.arange(1 << t.bits, dtype=np.uint8)
    return codes.view(t.dtype)


def test_arithmetic() -> None:
    assert {BY_CODE[c].name for c in FLOATS} == {"float16", "bfloat16", "float32", "float64"}
    assert {BY_CODE[c].name for c in INTEGERS} == {f"{s}int{b}" for s in ("", "u") for b in (8, 16, 32, 64)}


def test_nobody_asks_numpy() -> None:
    """It says "V" of the kind of bfloat16, and raises where the limits of one such type are asked for."""
    asks = re.compile(r"dtype\)?\.kind\b|\bissubdtype\b|np\.iinfo\((?!np\.)|np\.finfo\((?!np\.)")
    found = [str(f) for f in PACKAGE.rglob("*.py") if f.stem != "element_types" and asks.search(f.read_text())]
    assert found == []
