"""Which keys an attention mask keeps, derived from its operators: all up to the query, the first, or some."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.proto.messages import Array
from onnxopt.rewriting.forms import listed_axes

_MAX_MASK_DEPTH: Final = 10


class Kept(IntEnum):
    """Known facts on the keys visible to each query; each level implies the levels before."""

    UNKNOWN = 0
    SOME = 1  # known of constants only
    FIRST = 2
    CAUSAL = 3  # query i sees exactly the keys 0 to i


def kept_by(value: Value, truth: bool, reach: int = _MAX_MASK_DEPTH) -> Kept:
    """Return the keys kept by mask `value` where the mask equals `truth`; the number zero is false."""
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


def kept_by_numbers(value: Value, reach: int = _MAX_MASK_DEPTH) -> Kept:
    """Return the keys kept by an additive mask: positions without minus infinity."""
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
    """Return the keys kept by a Trilu of a nonzero constant: inside the lower, or outside the upper triangle."""
    k = node.inputs[1] if len(node.inputs) > 1 else None
    if node.inputs[0] is None or not _fill(node.inputs[0]) or (k is not None and not k.constant):
        return Kept.UNKNOWN
    diagonal = int(k.array.item()) if k is not None else 0
    if bool(node.attr("upper", 1)) == truth:
        return Kept.UNKNOWN
    beyond = diagonal if truth else diagonal - 1  # the last kept diagonal
    return Kept.CAUSAL if beyond == 0 else Kept.FIRST if beyond > 0 else Kept.UNKNOWN


def _fill(value: Value) -> float | None:
    """Return the number repeated in all elements of a value, or None."""
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
    """Return the keys kept by comparing counted keys (last axis) with counted queries (axis before)."""
    keys, queries = node.inputs if node.op == "LessOrEqual" else node.inputs[::-1]
    if keys is None or queries is None or not (_counts(keys, -1, reach) and _is_from_zero(queries, reach)):
        return Kept.UNKNOWN
    dims = types.shape(queries)
    if dims is None or dims[-1:] != (1,):
        return Kept.UNKNOWN
    return Kept.CAUSAL if _counts(queries, -2, reach) else Kept.FIRST


def _counts(value: Value, axis: int, reach: int) -> bool:
    """Whether a value is 0, 1, 2, … along `axis` (-1 or -2) and constant along all others."""
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
    """Whether no element is negative."""
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
    """Return the keys kept behind a node that adds leading axes, or crops queries and keys."""
    before = types.rank(node.inputs[0]) if node.inputs[0] is not None else None
    rank = types.rank(node.output)
    if before is None or rank is None or kept < Kept.FIRST:
        return Kept.UNKNOWN
    if node.op == "Unsqueeze":
        axes = listed_axes(node)
        return kept if before > 1 and axes is not None and all(a % rank < rank - 2 for a in axes) else Kept.UNKNOWN
    return _of_slice(node, before, kept) if node.op == "Slice" and before > 1 else Kept.UNKNOWN


def _of_slice(node: Node, rank: int, kept: Kept) -> Kept:
    """Return the keys kept by a Slice: all facts if queries and keys are cropped at the end, else whether the first key
    stays."""
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
