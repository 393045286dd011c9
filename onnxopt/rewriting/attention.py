"""Parts of decomposed attention: masks, scores, windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.constants import repeated
from onnxopt.graph import Shape, Value
from onnxopt.graph.node import Node, producer
from onnxopt.operators.operands import read_equation
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.messages import Array
from onnxopt.rewriting.match import Match
from onnxopt.rewriting.pattern import either, op, var
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
    by_one = steps is None or (steps.constant and (steps.array == 1).all())
    if starts is None or axes is None or not axes.constant or not by_one:
        return Kept.UNKNOWN
    cut = [int(a) % rank for a in axes.array]
    begin = dict(zip(cut, starts.array)) if starts.constant else dict.fromkeys(cut, -1)
    if begin.get(rank - 1, 0) != 0:
        return Kept.UNKNOWN
    return kept if begin.get(rank - 2, 0) == 0 else min(kept, Kept.FIRST)


# -- scores -------------------------------------------------------------------------------------------------------

_SOFTMAX: Final = op.Softmax(var("x"), name="softmax")
# A Where may replace NaN by 0: the Softmax is NaN where the mask is minus infinity for all keys.
PROBABILITIES: Final = either(op.Where(op.IsNaN(var("guarded")), 0, _SOFTMAX, name="guard"), _SOFTMAX)

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
    """cap Tanh(q kᵀ · scale / cap), followed by `terms` in order: each a value to add, or a Where."""

    q: Value
    keys: Value
    through: tuple[Value, ...]  # values from the product to the result
    turned: bool = True  # the last axes of `keys` are swapped
    scale: float = 1.0
    cap: float = 0.0
    terms: tuple[Value | Filled, ...] = ()


def scores_behind(m: Match, x: Value, guarded: Value | None) -> Scores:
    """Return the parts of the scores `x` behind matched PROBABILITIES; declines for any other computation."""
    m.require(m.softmax.attr("axis") in (-1, len(m.dims(x)) - 1), "the softmax is not over the keys")
    m.require(guarded in (None, m.softmax.output), "zeros in place of NaN of something else")
    s = m.known(scores_of(x), "not the scores of queries and keys")
    m.require(all(part.only_user is not None for part in s.through), "scores are used elsewhere")
    return s


def is_regular(heads: Array, few: int) -> bool:
    """Whether the indices 0 to `few` - 1 occur in order, each equally often."""
    return heads.ndim == 1 and heads.size > few and np.array_equal(heads, np.repeat(np.arange(few), heads.size // few))


def scores_of(value: Value, reach: int = _MAX_SCORE_DEPTH) -> Scores | None:
    """Return the parts of attention scores, or None for any other computation."""
    node = producer(value, "MatMul", "Einsum", "Where", "Add", "Mul", "Div", "Tanh")
    if node is None or not reach or value.index:
        return None
    if node.op == "MatMul" or (node.op == "Einsum" and _is_of_rows(node)):
        return Scores(node.operands[0], node.operands[1], (value,), node.op == "MatMul")
    if node.op == "Where":
        return _filled(node, reach - 1)
    for i, inner in enumerate(node.operands[: 2 if node.op in ("Add", "Mul") else 1]):
        found = scores_of(inner, reach - 1)
        result = _further(found, node, node.input(1 - i)) if found is not None else None
        if result is not None:
            return result
    return None


def _is_of_rows(einsum: Node) -> bool:
    """Whether an Einsum multiplies the rows of two operands: …id, …jd -> …ij."""
    found = read_equation(einsum.attr("equation"), [types.rank(v) for v in einsum.operands])
    if found is None or found.has_diagonal or [len(t) > 1 for t in found.terms] != [True, True]:
        return False
    (*lead, i, d), (*others, j, e) = found.terms
    return (others, e) == (lead, d) and found.result == (*lead, i, j)


def _further(s: Scores, node: Node, other: Value | None) -> Scores | None:
    """Return the scores with one more node applied, or None."""
    through = (*s.through, node.output)
    if node.op == "Add":
        return None if other is None else replace(s, terms=(*s.terms, other), through=through)
    if s.terms:
        return None
    if node.op == _CAP:  # a cap of -1 is pending: the factor behind Tanh is not seen yet
        return None if s.cap else replace(s, cap=-1.0, through=through)
    number = one_number(other)
    if number is None or s.cap > 0 or (node.op == "Div" and not number):
        return None
    number = 1.0 / number if node.op == "Div" else number
    return replace(s, scale=s.scale * number, cap=number if s.cap else 0.0, through=through)


def _filled(node: Node, reach: int) -> Scores | None:
    condition, *choices = node.inputs
    for i, inner in enumerate(choices):
        other = choices[1 - i]
        if condition is None or inner is None or other is None or one_number(other) is None:
            continue
        s = scores_of(inner, reach)
        if s is not None and s.cap >= 0:
            filled = Filled(condition, not i, other)
            return replace(s, terms=(*s.terms, filled), through=(*s.through, node.output))
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


# -- windows ------------------------------------------------------------------------------------------------------


def of_windows(m: Match, parts: Sequence[Value]) -> Sequence[Value]:
    """Return values [batch, windows, heads, rows, width] as [batch * windows, heads, rows, width].

    If a Split of heads, rows or width gives them alone, its operand gets these axes.
    """
    split = producer(parts[0], "Split")
    axis = split.attr("axis") % 5 if split is not None else 0
    if split is None or axis < 2 or {*split.results} != {*parts} or any(v.only_user is None for v in parts):
        return [with_one_lead(m, x) for x in parts]
    made = m.op.Split(with_one_lead(m, split.operands[0]), *split.inputs[1:], axis=axis - 1, outputs=len(parts))
    return [made[v.index] for v in parts]


def with_one_lead(m: Match, x: Value) -> Value:
    """Return a value with the first two axes as one."""
    turn = producer(x, "Transpose")
    if turn is not None and x.only_user is not None and list(turn.attr("perm") or ())[:2] == [0, 1]:
        return m.op.Transpose(with_one_lead(m, turn.operands[0]), perm=[0, *(i - 1 for i in turn.attr("perm")[2:])])
    dims = m.dims(x)
    lead = dims[0] * dims[1] if isinstance(dims[0], int) and isinstance(dims[1], int) else None
    return m.op.Reshape(x, target(m, (lead, *dims[2:])))


def target(m: Match, dims: Shape) -> Value:
    """Return the target of a Reshape to these dims; declines for several unknown dims."""
    sizes = [n if isinstance(n, int) else -1 for n in dims]
    m.require(sizes.count(-1) <= 1, "more than one unknown size")
    return m.ints(sizes)
