"""The element types of ONNX: kind, width, and range of numbers, as in the standard.

No other module reads numpy's `dtype.kind`, which is "V" for bfloat16, float8 and integers of 4 bits.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np

_NAMES: Final = {
    "float32": "float", "float64": "double", "float4_e2m1fn": "float4e2m1", "float8_e8m0fnu": "float8e8m0",
    "float6_e2m3fn": "float6e2m3", "float6_e3m2fn": "float6e3m2",
}  # fmt: skip


class ElementType(NamedTuple):
    """An element type: the code in TensorProto.DataType, and the name in numpy or ml_dtypes.

    `kind`: `f` float, `i` signed integer, `u` unsigned integer, `b` bool, `c` complex, `S` string. `low`, `high`: the
    least and the largest finite number. For floats, `digits`: bits of the significand, including the leading bit;
    `tiny`: the smallest normal number.
    """

    code: int
    name: str
    kind: str
    bits: int
    low: float = 0
    high: float = 0
    digits: int = 0
    tiny: float = 0.0

    def __repr__(self) -> str:
        return f"ElementType({self.name})"

    @property
    def onnx(self) -> str:
        """The name in ONNX in lower case, as in onnxruntime's `tensor(float)`."""
        return _NAMES.get(self.name) or self.name.replace("_", "")

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next number."""
        return 2.0 ** (1 - self.digits)

    @property
    def integers(self) -> tuple[int, int]:
        """The bounds of the largest range around zero in which the type holds every integer."""
        if self.kind != "f":
            return int(self.low), int(self.high)
        most = int(min(2.0**self.digits, self.high))
        return max(-most, math.ceil(self.low)), most

    def holds(self, other: ElementType) -> bool:
        """Whether this type holds every number of `other`, including NaN and infinities."""
        if other.kind in "iub":
            low, high = self.integers
            return self.kind in "iuf" and low <= other.low and other.high <= high
        return (
            self.kind == other.kind == "f"
            and (self.digits >= other.digits and self.high >= other.high)
            and self.tiny * self.epsilon <= other.tiny * other.epsilon
        )

    @property
    def is_foreign(self) -> bool:
        """Whether the type is in ml_dtypes and not in numpy."""
        return self.bits < 8 or self.name.startswith(("bfloat", "float8"))

    @property
    def is_arithmetic(self) -> bool:
        """Whether operators compute in the type. Numbers of fewer bits are only stored, moved and converted."""
        return self.kind in "fiu" and self.bits >= (16 if self.kind == "f" else 8)

    @property
    def dtype(self) -> np.dtype[Any]:
        if not self.is_foreign:
            return np.dtype(object if self.kind == "S" else self.name)
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.name))
        return found


def _integer(code: int, bits: int, *, signed: bool) -> ElementType:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return ElementType(code, f"{'' if signed else 'u'}int{bits}", "i" if signed else "u", bits, low, high)


def _float(code: int, name: str, bits: int, digits: int, high: float, tiny: float) -> ElementType:
    return ElementType(code, name, "f", bits, -high, high, digits, tiny)


TYPES: Final = (
    _float(1, "float32", 32, 24, (2 - 2.0**-23) * 2.0**127, 2.0**-126),
    _float(10, "float16", 16, 11, 65504.0, 2.0**-14),
    _float(11, "float64", 64, 53, (2 - 2.0**-52) * 2.0**1023, 2.0**-1022),
    _float(16, "bfloat16", 16, 8, (2 - 2.0**-7) * 2.0**127, 2.0**-126),
    _float(17, "float8_e4m3fn", 8, 4, 448.0, 2.0**-6),
    _float(18, "float8_e4m3fnuz", 8, 4, 240.0, 2.0**-7),
    _float(19, "float8_e5m2", 8, 3, 57344.0, 2.0**-14),
    _float(20, "float8_e5m2fnuz", 8, 3, 57344.0, 2.0**-15),
    _float(23, "float4_e2m1fn", 4, 2, 6.0, 1.0),
    # Powers of two, without zero and without a sign.
    ElementType(24, "float8_e8m0fnu", "f", 8, 2.0**-127, 2.0**127, 1, 2.0**-127),
    _float(27, "float6_e2m3fn", 6, 4, 7.5, 1.0),
    _float(28, "float6_e3m2fn", 6, 3, 28.0, 0.25),
    *(_integer(code, bits, signed=False) for code, bits in ((2, 8), (4, 16), (12, 32), (13, 64), (21, 4), (25, 2))),
    *(_integer(code, bits, signed=True) for code, bits in ((3, 8), (5, 16), (6, 32), (7, 64), (22, 4), (26, 2))),
    ElementType(9, "bool", "b", 8, 0, 1),
    ElementType(14, "complex64", "c", 64),
    ElementType(15, "complex128", "c", 128),
    ElementType(8, "string", "S", 64),
)
BY_CODE: Final = {t.code: t for t in TYPES}
BY_ONNX: Final = {t.onnx: t for t in TYPES}
BY_NAME: Final = {t.name: t for t in TYPES}
# Codes of the floats and integers with arithmetic.
FLOATS: Final = frozenset(t.code for t in TYPES if t.kind == "f" and t.is_arithmetic)
INTEGERS: Final = frozenset(t.code for t in TYPES if t.kind in "iu" and t.is_arithmetic)
# Types to which runtimes cast in another way than the standard and numpy: runtimes round to the nearest integer, and
# have no power of two for a negative number; the standard truncates, and ignores the sign.
CAST_OTHERWISE: Final = frozenset(
    t.code for t in TYPES if (t.kind in "iu" and t.bits < 8) or t.name == "float8_e8m0fnu"
)


@cache
def of(dtype: np.dtype[Any]) -> ElementType:
    """Return the element type of arrays of a dtype. Raises KeyError for a dtype unknown to ONNX."""
    return BY_NAME["string" if dtype.kind in "OUST" else dtype.name]


@cache
def _kind(dtype: np.dtype[Any]) -> str:
    try:
        return of(dtype).kind
    except KeyError:  # a dtype of another library, or of a user's pass
        return "?"


def element_kind(array: Any) -> str:
    """Return the `ElementType.kind` of an array or dtype; `?` for a dtype unknown to ONNX."""
    return _kind(getattr(array, "dtype", array))


def is_float(array: Any) -> bool:
    return element_kind(array) == "f"
