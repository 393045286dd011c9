"""Results in a narrower type (`dtype`) than the original's float32, as requested.

The expected value is the original's, rounded and clamped to the type's largest number. An infinite value in the result
differs from a larger number of the original.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.proto.element_types import BY_NAME, element_kind
from onnxopt.verification.numbers.rounding import INFINITE, NO_NUMBER

if TYPE_CHECKING:
    from onnx import GraphProto

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


def held_alike(a: Any, b: Any, dtype: str) -> tuple[Any, Any]:
    """Return (a, b): the original's value rounded, and the result's with infinities in place of a mask clamped."""
    return as_held(a, b, dtype), forgiven(b, a, dtype) if dtype and getattr(b, "dtype", None) == dtype else b


def as_wide(a: Any, b: Any) -> Any:
    """The result's int32 value `b` in int64, where the original's own `a` is int64."""
    held = isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and (a.dtype, b.dtype) == (np.int64, np.int32)
    return b.astype(np.int64) if held else b


def int32_values(a: GraphProto, b: GraphProto) -> set[str]:
    """The inputs and outputs that are int64 in the original's graph, and int32 in the result's."""
    types = ({i.name: i.type.tensor_type.elem_type for i in (*g.input, *g.output)} for g in (a, b))
    wide, narrow = types
    of = BY_NAME["int64"].code, BY_NAME["int32"].code
    return {name for name, kind in narrow.items() if (wide.get(name), kind) == of}


def as_int32(name: str, value: Any) -> Any:
    """The numbers of an int64 input of the original, in int32. Raises ValueError for numbers that need 64 bits."""
    if not isinstance(value, np.ndarray) or value.dtype != np.int64:
        return value
    found = value.astype(np.int32)
    if (found != value).any():
        raise ValueError(f"`{name}` is fed {value[found != value][0]}, which int32 does not hold")
    return found


def narrow_feeds(graph: GraphProto, feeds: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Return the original's feeds, rounded for the narrow inputs of the result's graph."""
    narrow = {i.name for i in graph.input if i.type.tensor_type.elem_type == CODES[dtype]}
    return {name: narrowed(v, dtype) if name in narrow else v for name, v in feeds.items()}
