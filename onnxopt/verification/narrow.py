"""A result that holds in a narrower type what the original holds in float32, because it was asked to (`dtype`).

The original's value is then what the result can hold of it: rounded, and no larger than its largest number. A value
that is larger is infinite in the result, and differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from onnx import GraphProto

_FILL: Final = 1e9
CODES: Final = {"float16": 10, "bfloat16": 16}  # as onnx numbers them
_LARGEST: Final = {"float16": 65504.0, "bfloat16": (2 - 2**-7) * 2.0**127}


def narrowed(value: Any, dtype: str) -> Any:
    """A float32 array as `dtype` holds it; of bfloat16, which numpy does not have, as float32. Others as they are."""
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
    return np.where(over, np.copysign(_LARGEST[dtype], found), found) if over.any() else found


def forgiven(b: Any, a: Any, dtype: str) -> Any:
    """The result's narrow value `b`, in which what stands for infinity in the original's `a`, a mask's lowest number,
    may be one: it is the largest number there is."""
    if not isinstance(b, np.ndarray) or b.dtype.kind != "f" or b.shape != a.shape or not np.isinf(b).any():
        return b
    stands = np.isinf(b) & np.isfinite(a) & (np.abs(a) >= _FILL)
    return np.where(stands & (np.sign(a) == np.sign(b)), np.copysign(_LARGEST[dtype], b), b)


def as_held(a: Any, b: Any, dtype: str) -> Any:
    """The original's value `a` as the result, which gives `b`, may hold it."""
    is_narrow = dtype and isinstance(b, np.ndarray) and b.dtype.name == dtype
    return narrowed(a, dtype) if is_narrow else a


def narrow_feeds(graph: GraphProto, feeds: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """What the original is fed, as the inputs of the result take it."""
    narrow = {i.name for i in graph.input if i.type.tensor_type.elem_type == CODES[dtype]}
    return {name: narrowed(v, dtype) if name in narrow else v for name, v in feeds.items()}
