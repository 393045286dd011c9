"""Folds a constant term of a value upstream: into the bias of its producer, past operators that only move data.

Nothing is changed: the result is a single edit of a constant.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from onnxopt.analysis import linear, types
from onnxopt.analysis.constants import READ_BY_MANY, is_read_by_many
from onnxopt.analysis.linear import before_move, before_split, fits, narrowed
from onnxopt.analysis.scale_upstream import is_quantized, readers_of
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.operators import of_form
from onnxopt.proto.element_types import is_float
from onnxopt.proto.messages import Array

_MAX_NODES: Final = 8  # nodes examined for a term
MOVES: Final = of_form("same", "order", "permute") | {"Split"}

_READ: Final = "something else reads what it is added to"
_NOWHERE: Final = "no bias to go to"
_UNKNOWN_SIZES: Final = "sizes that it depends on are unknown"


class Bias(NamedTuple):
    """Edit: input `place` of `node`, a bias or constant summand, becomes `array` (float64)."""

    node: Node
    place: int
    array: Array


def bias_for(value: Value, reader: Node, term: Array) -> Bias | str:
    """Return the edit that adds `term` to `value`, read by `reader`; or the reason for none."""
    for _ in range(_MAX_NODES):
        node = value.producer
        if node is None or node.graph is not reader.graph or node.has_references:
            return _NOWHERE
        if value.is_output or readers_of(value) > 1:
            return _READ
        term, shape = narrowed(term), types.shape(value)
        if shape is None or not fits(term, shape):
            return _UNKNOWN_SIZES
        if node.op not in MOVES:
            return _into(node, value, term)
        source = node.inputs[0]
        before = before_split(node, {value: term}, 0.0) if node.op == "Split" else before_move(node, term)
        if source is None or before is None:
            return _UNKNOWN_SIZES
        value, reader, term = source, node, before
    return _NOWHERE


def _into(node: Node, made: Value, term: Array) -> Bias | str:
    if node.op == "Add":
        return _into_sum(node, made, term)
    if not linear.is_affine(node):
        return _NOWHERE
    if is_quantized(node):
        return "it is quantized"
    b, shape = node.input(2), types.shape(made) or ()
    channels = next(iter(shape[1:2] if node.op != "Gemm" else shape[-1:]), None)
    if not isinstance(channels, int) or (b is None and node.graph is not None and node.graph.opset() < 11):
        return _UNKNOWN_SIZES
    return _into_bias(node, term, len(shape), channels)


def _into_bias(node: Node, term: Array, rank: int, channels: int) -> Bias | str:
    b = node.input(2)
    if b is not None and not _is_stored_float(b):
        return _NOWHERE
    bias = b.array if b is not None else None
    full, own = _per_channel(node, term, rank, channels), linear.bias_of(node, bias, channels)
    if full is None or own is None:
        return _NOWHERE
    if b is not None and is_read_by_many(b, channels * b.array.itemsize):
        return READ_BY_MANY
    return Bias(node, 2, own + full)


def _is_stored_float(value: Value) -> bool:
    return value.is_stored and is_float(value.array)


def _per_channel(node: Node, term: Array, rank: int, channels: int) -> Array | None:
    if node.op != "Gemm":
        return linear.per_channel(term, rank, channels)
    return np.broadcast_to(term, (channels,)) if term.ndim < 2 and term.size in (1, channels) else None


def _into_sum(node: Node, made: Value, term: Array) -> Bias | str:
    """Fold by (y + b) + t = y + (b + t)."""
    b = next((v for v in node.operands if v.constant), None)
    if b is None or not _is_stored_float(b):
        return _NOWHERE
    try:
        array = b.array.astype(np.float64) + term
    except ValueError:
        return _NOWHERE
    if array.size > max(b.array.size, term.size) or array.ndim > (types.rank(made) or 0):
        return "the constant would become larger"
    if is_read_by_many(b, array.size * b.array.itemsize):
        return READ_BY_MANY
    return Bias(node, node.places(b)[0], array)
