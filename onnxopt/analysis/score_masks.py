"""Bounds of attention masks: the range of finite elements, and whether minus infinity occurs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.operators import CONTRACTIONS, FRACTIONS, PICKS, UNARY
from onnxopt.proto.element_types import BY_CODE, element_kind
from onnxopt.proto.messages import Array

_MAX_MASK_DEPTH: Final = 12
_UNIT: Final = UNARY.intersection((*FRACTIONS, "Tanh", "Erf"))  # Softmax of a row of minus infinity is NaN


@dataclass(frozen=True)
class Bounds:
    """Finite elements are in [`low`, `high`]; others may be minus infinity if `hides`. No NaN."""

    low: float
    high: float
    hides: bool = False


def bounds(value: Value) -> Bounds | None:
    """Return the bounds of a float value as far as its operators determine them, else None.

    Sums of products are assumed to be below 1e30, in float16 below a third of the largest number.
    """
    kind = types.dtype(value)
    if kind not in (TensorProto.FLOAT, TensorProto.FLOAT16):
        return None
    return _within(value, BY_CODE[kind].high, _MAX_MASK_DEPTH)


def _within(value: Value | None, limit: float, reach: int) -> Bounds | None:
    found = _found(value, limit, reach) if value is not None and reach else None
    return found if found is not None and -limit <= found.low <= found.high <= limit else None


def _found(value: Value, limit: float, reach: int) -> Bounds | None:
    """Return the bounds of a value, from its elements, its type or its producer."""
    if value.constant:
        return _of_array(value.array)
    if types.dtype(value) == TensorProto.BOOL:
        return Bounds(0.0, 1.0)
    node = value.producer
    if node is None:
        return None
    if node.op in CONTRACTIONS:
        return Bounds(-min(limit / 3, 1e30), min(limit / 3, 1e30))
    if node.op in _UNIT:
        return Bounds(-1.0, 1.0)
    if node.op == "ConstantOfShape":
        return _of_array(node.attr("value", np.zeros(1, np.float32))) if not node.has_references else None
    if node.op == "Cast" or node.op in PICKS:
        return _within(node.inputs[0], limit, reach - 1)
    return _combined(node, limit, reach - 1)


_NUMBERS: Final = {"Where": slice(1, None), "Trilu": slice(1)}  # operands of numbers, if not all


def _combined(node: Node, limit: float, reach: int) -> Bounds | None:
    op, read = node.op, node.inputs
    if op not in ("Where", "Trilu", "Concat", "Add", "Sub", "Mul", "Neg", "Max", "Min"):
        return None
    known = [_within(v, limit, reach) for v in read[_NUMBERS.get(op, slice(None))]]
    parts = [b for b in known if b is not None]
    if len(parts) < len(known) or not parts:
        return None
    low, high, hides = [b.low for b in parts], [b.high for b in parts], any(b.hides for b in parts)
    if op in ("Where", "Concat"):
        return Bounds(min(low), max(high), hides)
    if op == "Trilu":
        return Bounds(min(*low, 0.0), max(*high, 0.0), hides)
    if op == "Add":
        return Bounds(sum(low), sum(high), hides)
    return None if hides else _computed(op, low, high)


def _computed(op: str, low: Sequence[float], high: Sequence[float]) -> Bounds:
    if op == "Neg":
        return Bounds(-high[0], -low[0])
    if op == "Sub":
        return Bounds(low[0] - high[1], high[0] - low[1])
    if op == "Mul":
        ends = [x * y for x in (low[0], high[0]) for y in (low[-1], high[-1])]
        return Bounds(min(ends), max(ends))
    choose = max if op == "Max" else min
    return Bounds(choose(low), choose(high))


def _of_array(array: Array) -> Bounds | None:
    if element_kind(array) not in "biuf":
        return None
    wide = array.astype(np.float64)
    hidden = np.isneginf(wide)
    finite = wide[~hidden]
    if not np.isfinite(finite).all():
        return None
    if not finite.size:
        return Bounds(0.0, 0.0, bool(hidden.any()))
    return Bounds(float(finite.min()), float(finite.max()), bool(hidden.any()))
