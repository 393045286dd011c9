"""Values with equal halves along the last axis: concatenated, or interleaved in pairs."""

from __future__ import annotations

from typing import Final

import numpy as np

from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.operators import UNARY
from onnxopt.proto.messages import Array
from onnxopt.rewriting.forms import listed_axes
from onnxopt.rewriting.match import Match

_MAX_ROTATION_DEPTH: Final = 8


def half(m: Match, value: Value, sign: int, paired: bool = False, reach: int = _MAX_ROTATION_DEPTH) -> Value | None:
    """Return the second half of [h, h] along the last axis, or of [-h, h] with sign -1; None if the halves may differ.

    With `paired` the halves are the elements at even and at odd indices.
    """
    if value.constant:
        a, b = _halves_of(value.array, paired)
        equal = a.ndim and a.shape == b.shape and np.array_equal(a * a.dtype.type(sign), b)
        return m.const(np.ascontiguousarray(b), like=value.array) if equal else None
    node = value.producer
    if node is None or not reach or node.inputs[0] is None:
        return None
    if node.op == "Concat" and not paired:
        return _half_of_concat(m, node, sign)
    if node.op == "Mul":
        return _half_of_product(m, node, sign, paired, reach - 1)
    if node.op == "Gather" and paired and sign == 1 and _is_of_pairs(m, node):
        return node.inputs[0]
    if node.op in ("Unsqueeze", "Squeeze", "Gather") and not _keeps_last(m, node):
        return None
    if node.op in ("Unsqueeze", "Squeeze", "Gather", "Cast") or (sign == 1 and node.op in UNARY):
        inner = half(m, node.inputs[0], sign, paired, reach - 1)
        return None if inner is None else m.op[node.op](inner, *node.inputs[1:], like=node)
    return None


def _half_of_concat(m: Match, node: Node, sign: int) -> Value | None:
    """Return a half of a Concat of two equal parts, the first of them with the sign."""
    rank = m.rank(node.output)
    if len(node.inputs) != 2 or rank is None or node.attr("axis") % rank != rank - 1:
        return None
    first, second = node.inputs
    if sign < 0:
        turned = first.producer if first is not None else None
        first = turned.inputs[0] if turned is not None and turned.op == "Neg" else None
    return second if first is second else None


def _halves_of(array: Array, paired: bool) -> tuple[Array, Array]:
    if not array.ndim:
        return array, array
    middle = array.shape[-1] // 2
    return (array[..., ::2], array[..., 1::2]) if paired else (array[..., :middle], array[..., middle:])


def _is_of_pairs(m: Match, node: Node) -> bool:
    """Whether a Gather takes each element of the last axis twice, in order."""
    data, indices = node.inputs
    dims = m.shape(data) if data is not None else None
    if not dims or indices is None or not indices.constant or node.attr("axis") % len(dims) != len(dims) - 1:
        return False
    return isinstance(dims[-1], int) and np.array_equal(indices.array, np.repeat(np.arange(dims[-1]), 2))


def _half_of_product(m: Match, node: Node, sign: int, paired: bool, reach: int) -> Value | None:
    """Return a half of a product whose second factor is a number, or the sign of each half."""
    for value, other in (node.inputs, node.inputs[::-1]):
        if value is None or other is None or not other.constant:
            continue
        array = other.array
        if array.size == 1 and array.ndim <= (m.rank(value) or 0):
            inner = half(m, value, sign, paired, reach)
            return None if inner is None else m.op.Mul(inner, other)
        dims, count = m.shape(value), array.shape[-1] if array.ndim else 0
        signs = np.tile([-1, 1], count // 2) if paired else np.repeat([-1, 1], count // 2)
        if array.size == count and array.ndim <= len(dims or ()) and dims is not None and dims[-1] == count:
            if np.array_equal(array.reshape(-1), signs):
                return half(m, value, -sign, paired, reach)
    return None


def _keeps_last(m: Match, node: Node) -> bool:
    """Whether the last axis of the result is the whole last axis of the first operand."""
    before, after = m.rank(node.inputs[0]) if node.inputs[0] is not None else None, m.rank(node.output)
    if not before or not after:
        return False
    if node.op == "Gather":
        return bool(node.attr("axis") % before != before - 1)
    axes = listed_axes(node)
    longer = max(before, after)
    return axes is not None and all(a % longer != longer - 1 for a in axes)
