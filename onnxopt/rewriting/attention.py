"""Parts of decomposed attention: masks, scores, and rotary tables with equal halves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.constants import repeated
from onnxopt.graph import Shape, Value
from onnxopt.graph.node import Node, producer
from onnxopt.operators import UNARY
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.messages import Array
from onnxopt.rewriting.match import Match
from onnxopt.rewriting.rule import listed_axes

# -- masks --------------------------------------------------------------------------------------------------------

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
    node = producer(value)
    if node is None or not reach or node.inputs[0] is None:
        return Kept.UNKNOWN
    source = node.inputs[0]
    if node.op == "Not" or (node.op == "Equal" and _is_zero(node.inputs[1])):
        return kept_by(source, not truth, reach - 1)
    if node.op == "Cast":
        return kept_by(source, truth, reach - 1)
    if node.op == "Trilu":
        return _of_triangle(node, truth)
    if node.op in ("LessOrEqual", "GreaterOrEqual"):
        return _of_order(node, reach - 1) if truth else Kept.UNKNOWN
    if node.op == ("And" if truth else "Or"):
        return min(Kept.FIRST, *(kept_by(v, truth, reach - 1) for v in node.operands))
    return _handed_on(node, source, kept_by(source, truth, reach - 1))


def kept_by_numbers(value: Value, reach: int = _MAX_MASK_DEPTH) -> Kept:
    """Return the keys kept by an additive mask: positions without minus infinity."""
    if value.constant:
        return _of_array(~np.isneginf(value.array.astype(np.float64)))
    node = producer(value)
    if node is None or not reach or node.inputs[0] is None:
        return Kept.UNKNOWN
    source = node.inputs[0]
    if node.op == "Trilu":
        return _of_triangle(node, False) if np.isneginf(_fill(source) or 0.0) else Kept.UNKNOWN
    return _handed_on(node, source, kept_by_numbers(source, reach - 1))


def _of_array(kept: Array) -> Kept:
    if kept.ndim < 2:
        return Kept.FIRST if kept.size and kept.reshape(-1)[0] else Kept.UNKNOWN
    if kept.size and np.array_equal(kept, np.broadcast_to(np.tri(*kept.shape[-2:]) > 0, kept.shape)):
        return Kept.CAUSAL
    if kept.size and kept[..., 0].all():
        return Kept.FIRST
    return Kept.SOME if kept.size and kept.any(-1).all() else Kept.UNKNOWN


_NONZERO: Final = (1.0, np.inf, -np.inf)  # in each type: 0.5 is zero as an integer


def _of_triangle(node: Node, truth: bool) -> Kept:
    """Return the keys kept by a Trilu of a constant that no Cast made zero: inside the lower, or outside the upper
    triangle.
    """
    diagonal = 0.0 if (k := node.input(1)) is None else one_number(k)
    if node.inputs[0] is None or _fill(node.inputs[0]) not in _NONZERO or diagonal is None:
        return Kept.UNKNOWN
    if bool(node.attr("upper", 1)) == truth:
        return Kept.UNKNOWN
    beyond = diagonal if truth else diagonal - 1  # the last kept diagonal
    return Kept.CAUSAL if beyond == 0 else Kept.FIRST if beyond > 0 else Kept.UNKNOWN


def _fill(value: Value) -> float | None:
    """Return the number repeated in all elements of a value, in front of its Casts, or None."""
    number = repeated(value, "Cast")
    return None if number is None else float(number)


def _is_zero(value: Value | None) -> bool:
    return value is not None and value.constant and value.array.size == 1 and not value.array.item()


_POSITIONS: Final = (TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT, TensorProto.DOUBLE)


def _of_order(node: Node, reach: int) -> Kept:
    """Return the keys kept by comparing counted keys (last axis) with counted queries (axis before)."""
    keys, queries = node.inputs if node.op == "LessOrEqual" else node.inputs[::-1]
    if keys is None or queries is None or not (_counts(keys, -1) and _is_from_zero(queries, reach)):
        return Kept.UNKNOWN
    dims = types.shape(queries)
    if dims is None or dims[-1:] != (1,):
        return Kept.UNKNOWN
    return Kept.CAUSAL if _counts(queries, -2) else Kept.FIRST


def _counts(value: Value, axis: int) -> bool:
    """Whether a value is 0, 1, 2, … along `axis` (-1 or -2) and constant along all others."""
    dims = types.shape(value) or ()
    if len(dims) < -axis or {*dims[:axis], *dims[len(dims) + axis + 1 :]} - {1}:
        return False
    node = producer(value)
    while node is not None and (node.op in ("Unsqueeze", "Reshape") or _casts_numbers(node)):
        node = producer(node.inputs[0])
    return node is not None and node.op == "Range" and _is_zero(node.inputs[0]) and _step(node) == 1


def _casts_numbers(node: Node) -> bool:
    """Whether a Cast keeps positions in order: int8 wraps after 127, float16 has no 2049."""
    return node.op == "Cast" and node.attr("to") in _POSITIONS


def _step(counted: Node) -> float:
    """Return the step of a Range; 0 if unknown."""
    return one_number(counted.inputs[2]) or 0.0


def _is_from_zero(value: Value | None, reach: int) -> bool:
    """Whether no element is negative."""
    if value is None or not reach:
        return False
    if value.constant:
        return bool((value.array >= 0).all())
    node = producer(value)
    if node is None:
        return False
    if node.op == "Range":
        return _is_from_zero(node.inputs[0], reach - 1) and _step(node) > 0
    if node.op in ("Unsqueeze", "Squeeze", "Reshape", "Gather", "Slice") or _casts_numbers(node):
        return _is_from_zero(node.inputs[0], reach - 1)
    if node.op in ("Add", "Mul"):
        return all(_is_from_zero(v, reach - 1) for v in node.inputs)
    return node.op in ("Shape", "Size")


def _handed_on(node: Node, source: Value, kept: Kept) -> Kept:
    """Return the keys kept behind a node that adds leading axes to `source`, or crops queries and keys."""
    before, rank = types.rank(source), types.rank(node.output)
    if before is None or rank is None or before < 2 or kept < Kept.FIRST:
        return Kept.UNKNOWN
    if node.op == "Unsqueeze":
        axes = listed_axes(node)
        return kept if axes is not None and all(a % rank < rank - 2 for a in axes) else Kept.UNKNOWN
    return _of_slice(node, before, kept) if node.op == "Slice" else Kept.UNKNOWN


def _of_slice(node: Node, rank: int, kept: Kept) -> Kept:
    """Return the keys kept by a Slice: all facts if queries and keys are cropped at the end, else whether the first key
    stays."""
    starts, _, axes, steps = [*node.inputs[1:], None, None][:4]
    if starts is None or axes is None or not axes.constant or not _is_one_each(steps):
        return Kept.UNKNOWN
    cut = [int(a) % rank for a in axes.array]
    begin = dict(zip(cut, starts.array)) if starts.constant else dict.fromkeys(cut, -1)
    if begin.get(rank - 1, 0) != 0:
        return Kept.UNKNOWN
    return kept if begin.get(rank - 2, 0) == 0 else min(kept, Kept.FIRST)


def _is_one_each(steps: Value | None) -> bool:
    return steps is None or (steps.constant and bool((steps.array == 1).all()))


# -- scores -------------------------------------------------------------------------------------------------------

_MAX_SCORE_DEPTH: Final = 8
_CAP: Final = "Tanh"


@dataclass(eq=False, repr=False)
class Filled:
    """A Where that keeps scores where `condition` equals `kept`, and writes the number `fill` elsewhere."""

    condition: Value
    kept: bool
    fill: Value


@dataclass(eq=False, repr=False)
class Scores:
    """cap Tanh(q turned · scale / cap), followed by `terms` in order: each a value to add, or a Where."""

    q: Value
    turned: Value
    scale: float
    cap: float
    terms: tuple[Value | Filled, ...]
    through: tuple[Value, ...]  # values from the product to the result


def scores_of(value: Value, reach: int = _MAX_SCORE_DEPTH) -> Scores | None:
    """Return the parts of attention scores, or None for any other computation."""
    node = producer(value, "MatMul", "Where", "Add", "Mul", "Div", "Tanh")
    if node is None or not reach or value.index:
        return None
    if node.op == "MatMul":
        q, turned = node.operands
        return Scores(q, turned, 1.0, 0.0, (), (value,))
    if node.op == "Where":
        return _filled(node, reach - 1)
    for i, inner in enumerate(node.operands[: 2 if node.op in ("Add", "Mul") else 1]):
        found = scores_of(inner, reach - 1)
        result = _further(found, node, node.input(1 - i)) if found is not None else None
        if result is not None:
            return result
    return None


def _further(s: Scores, node: Node, other: Value | None) -> Scores | None:
    """Return the scores with one more node applied, or None."""
    through = (*s.through, node.output)
    if node.op == "Add":
        return None if other is None else Scores(s.q, s.turned, s.scale, s.cap, (*s.terms, other), through)
    if s.terms:
        return None
    if node.op == _CAP:  # a cap of -1 is pending: the factor behind Tanh is not seen yet
        return None if s.cap else Scores(s.q, s.turned, s.scale, -1.0, (), through)
    number = one_number(other)
    if number is None or s.cap > 0 or (node.op == "Div" and not number):
        return None
    number = 1.0 / number if node.op == "Div" else number
    return Scores(s.q, s.turned, s.scale * number, number if s.cap else 0.0, (), through)


def _filled(node: Node, reach: int) -> Scores | None:
    condition, *choices = node.inputs
    for i, inner in enumerate(choices):
        other = choices[1 - i]
        if condition is None or inner is None or other is None or one_number(other) is None:
            continue
        s = scores_of(inner, reach)
        if s is not None and s.cap >= 0:
            filled = Filled(condition, not i, other)
            return Scores(s.q, s.turned, s.scale, s.cap, (*s.terms, filled), (*s.through, node.output))
    return None


def one_number(value: Value | None) -> float | None:
    """Return the number in a one-element constant of rank at most 4, or None."""
    if value is None or not value.constant:
        return None
    _, dims = value.constant_type()
    if len(dims) > 4 or any(d != 1 for d in dims):
        return None
    array = value.array
    return float(array.item()) if element_kind(array) in "fiu" and not np.isnan(array.item()) else None


# -- rotary tables ------------------------------------------------------------------------------------------------

_MAX_ROTATION_DEPTH: Final = 8


def half(m: Match, value: Value, sign: int, paired: bool = False, reach: int = _MAX_ROTATION_DEPTH) -> Value | None:
    """Return the second half of [h, h] along the last axis, or of [-h, h] with sign -1; None if the halves may differ.

    With `paired` the halves are the elements at even and at odd indices.
    """
    if value.constant:
        a, b = _halves_of(value.array, paired)
        equal = a.ndim and a.shape == b.shape and np.array_equal(a * a.dtype.type(sign), b)
        return m.const(np.ascontiguousarray(b), like=value.array) if equal else None
    node = producer(value)
    if node is None or not reach or node.inputs[0] is None:
        return None
    if node.op == "Concat":
        return None if paired else _half_of_concat(m, node, sign)
    if node.op == "Mul":
        return _half_of_product(m, node, sign, paired, reach - 1)
    if node.op == "Gather" and paired and sign == 1 and _is_of_pairs(m, node):
        return node.inputs[0]
    if not _keeps_halves(m, node, sign):
        return None
    inner = half(m, node.inputs[0], sign, paired, reach - 1)
    return None if inner is None else m.op[node.op](inner, *node.inputs[1:], like=node)


def _keeps_halves(m: Match, node: Node, sign: int) -> bool:
    """Whether a node applied to a half of its first operand gives the half of its result, with the sign."""
    if node.op in ("Unsqueeze", "Squeeze", "Gather"):
        return _keeps_last(m, node)
    return node.op == "Cast" or (sign == 1 and node.op in UNARY)


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
        if _is_sign_of_halves(array, m.shape(value), paired):
            return half(m, value, -sign, paired, reach)
    return None


def _is_sign_of_halves(array: Array, dims: Shape | None, paired: bool) -> bool:
    """Whether a factor of a value of these dims is -1 on the first half of the last axis, and 1 on the second."""
    count = array.size
    if not dims or not 0 < array.ndim <= len(dims) or dims[-1] != count or array.shape[-1] != count:
        return False
    signs = np.tile([-1, 1], count // 2) if paired else np.repeat([-1, 1], count // 2)
    return np.array_equal(array.reshape(-1), signs)


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
