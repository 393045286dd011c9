"""Which keys a mask keeps, as far as the operators that make it tell: those up to a query, the first, or some."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.protos import Array
from onnxopt.rewriting.forms import listed_axes

_REACH: Final = 10


class Kept(IntEnum):
    """What is known of the keys that each query sees, each more than the one before."""

    UNKNOWN = 0
    SOME = 1  # of a constant
    FIRST = 2
    CAUSAL = 3  # query i sees the keys 0 to i, and no others


def kept_by(value: Value, truth: bool, reach: int = _REACH) -> Kept:
    """The keys that are kept where `value` is `truth`. Of numbers zero is false."""
    if value.constant:
        return _of_array(value.array.astype(bool) == truth)
    node = value.producer
    if node is None or not reach or node.inputs[0] is None:
        return Kept.UNKNOWN
    source = node.inputs[0]
    if node.op in ("Not", "Equal"):
        if node.op == "Equal" and not _is_zero(node.inputs[1]):
            return Kept.UNKNOWN
        return kept_by(source, not truth, reach - 1)
    if node.op == "Cast":
        return kept_by(source, truth, reach - 1)
    if node.op == "Trilu":
        return _of_triangle(node, truth)
    if node.op in ("LessOrEqual", "GreaterOrEqual"):
        return _of_order(node, reach - 1) if truth else Kept.UNKNOWN
    if node.op in ("And", "Or"):
        if truth != (node.op == "And"):
            return Kept.UNKNOWN
        return min(Kept.FIRST, *(kept_by(v, truth, reach - 1) for v in node.inputs if v is not None))
    return _handed_on(node, kept_by(source, truth, reach - 1))


def kept_by_numbers(value: Value, reach: int = _REACH) -> Kept:
    """The keys to which `value` adds no minus infinity."""
    if value.constant:
        return _of_array(~np.isneginf(value.array.astype(np.float64)))
    node = value.producer
    if node is None or not reach or node.inputs[0] is None:
        return Kept.UNKNOWN
    if node.op == "Trilu":
        return _of_triangle(node, False) if np.isneginf(_fill(node.inputs[0]) or 0.0) else Kept.UNKNOWN
    return _handed_on(node, kept_by_numbers(node.inputs[0], reach - 1))


def _of_array(kept: Array) -> Kept:
    if kept.ndim < 2:
        return Kept.FIRST if kept.size and kept.reshape(-1)[0] else Kept.UNKNOWN
    if kept.size and np.array_equal(kept, np.broadcast_to(np.tri(*kept.shape[-2:]) > 0, kept.shape)):
        return Kept.CAUSAL
    if kept.size and kept[..., 0].all():
        return Kept.FIRST
    return Kept.SOME if kept.size and kept.any(-1).all() else Kept.UNKNOWN


def _of_triangle(node: Node, truth: bool) -> Kept:
    """Of a triangle of what is not zero: the lower one is kept, or the upper one is not."""
    k = node.inputs[1] if len(node.inputs) > 1 else None
    if node.inputs[0] is None or not _fill(node.inputs[0]) or (k is not None and not k.constant):
        return Kept.UNKNOWN
    diagonal = int(k.array.item()) if k is not None else 0
    if bool(node.attr("upper", 1)) == truth:
        return Kept.UNKNOWN
    beyond = diagonal if truth else diagonal - 1  # the last diagonal that is kept
    return Kept.CAUSAL if beyond == 0 else Kept.FIRST if beyond > 0 else Kept.UNKNOWN


def _fill(value: Value) -> float | None:
    """The number that all elements are."""
    node = value.producer
    while node is not None and not value.constant and node.op in ("Expand", "Cast") and node.inputs[0] is not None:
        value, node = node.inputs[0], node.inputs[0].producer
    if node is not None and not value.constant:
        found = node.attr("value", np.zeros(1)) if node.op == "ConstantOfShape" and not node.has_references else None
    else:
        found = value.array if value.constant else None
    return float(found.reshape(-1)[0]) if found is not None and found.size and (found == found.flat[0]).all() else None


def _is_zero(value: Value | None) -> bool:
    return value is not None and value.constant and value.array.size == 1 and not value.array.item()


def _of_order(node: Node, reach: int) -> Kept:
    """Of keys along the last axis that are compared with queries along the one before it, both counted up."""
    keys, queries = node.inputs if node.op == "LessOrEqual" else node.inputs[::-1]
    if keys is None or queries is None or not (_counts(keys, -1, reach) and _is_from_zero(queries, reach)):
        return Kept.UNKNOWN
    dims = types.shape(queries)
    if dims is None or dims[-1:] != (1,):
        return Kept.UNKNOWN
    return Kept.CAUSAL if _counts(queries, -2, reach) else Kept.FIRST


def _counts(value: Value, axis: int, reach: int) -> bool:
    """Is it 0, 1, 2 … along one axis, the last or the one before it, and the same along all others?"""
    dims = types.shape(value)
    if dims is None or len(dims) < -axis or any(d != 1 for i, d in enumerate(dims) if i != len(dims) + axis):
        return False
    node = value.producer
    while node is not None and node.op in ("Unsqueeze", "Cast", "Reshape") and node.inputs[0] is not None:
        node = node.inputs[0].producer
    if node is None or node.op != "Range":
        return False
    start, _, delta = node.inputs
    return _is_zero(start) and delta is not None and delta.constant and delta.array.item() == 1


def _is_from_zero(value: Value | None, reach: int) -> bool:
    """Is no element of it below zero?"""
    if value is None or not reach:
        return False
    if value.constant:
        return bool((value.array >= 0).all())
    node = value.producer
    if node is None:
        return False
    if node.op in ("Shape", "Size"):
        return True
    if node.op == "Range":
        start, _, delta = node.inputs
        return _is_from_zero(start, reach - 1) and delta is not None and delta.constant and delta.array.item() > 0
    if node.op in ("Unsqueeze", "Squeeze", "Cast", "Reshape", "Gather", "Slice"):
        return _is_from_zero(node.inputs[0], reach - 1)
    return node.op in ("Add", "Mul") and all(_is_from_zero(v, reach - 1) for v in node.inputs)


def _handed_on(node: Node, kept: Kept) -> Kept:
    """What is kept behind a node that adds axes in front, or cuts queries and keys off."""
    before = types.rank(node.inputs[0]) if node.inputs[0] is not None else None
    rank = types.rank(node.output)
    if before is None or rank is None or kept < Kept.FIRST:
        return Kept.UNKNOWN
    if node.op == "Unsqueeze":
        axes = listed_axes(node)
        return kept if before > 1 and axes is not None and all(a % rank < rank - 2 for a in axes) else Kept.UNKNOWN
    return _of_slice(node, before, kept) if node.op == "Slice" and before > 1 else Kept.UNKNOWN


def _of_slice(node: Node, rank: int, kept: Kept) -> Kept:
    """The first key stays where keys are cut off behind it; all that is known, where queries are cut off at the end."""
    starts, _, axes, steps = [*node.inputs[1:], None, None][:4]
    if starts is None or axes is None or not axes.constant or (steps is not None and not steps.constant):
        return Kept.UNKNOWN
    if steps is not None and (steps.array != 1).any():
        return Kept.UNKNOWN
    cut = [int(a) % rank for a in axes.array]
    begin = dict(zip(cut, starts.array)) if starts.constant else dict.fromkeys(cut, -1)
    if begin.get(rank - 1, 0) != 0:
        return Kept.UNKNOWN
    return kept if begin.get(rank - 2, 0) == 0 else min(kept, Kept.FIRST)
