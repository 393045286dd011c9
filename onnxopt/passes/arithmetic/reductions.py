"""Reductions and Einsum as simpler operators."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from itertools import product
from typing import TYPE_CHECKING, Final

from onnxopt.analysis import types
from onnxopt.graph import Value
from onnxopt.graph.value import Shape
from onnxopt.operators import HOMOGENEOUS, REDUCTIONS
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.element_types import FLOATS, of
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Match, const, either, one_of, op, rewrite, var
from onnxopt.rewriting.compositions import viewed
from onnxopt.rewriting.index_maps import Part, flat, real
from onnxopt.rewriting.index_steps import VIEWS
from onnxopt.rewriting.rule import Declined, reduced_axes

if TYPE_CHECKING:
    from onnxopt.operators.operands import Equation, Letters

_ANY: Final = one_of(*(op for op in REDUCTIONS if op in HOMOGENEOUS))


@rewrite(_ANY(_ANY(var("x"), ..., name="inner"), ..., name="outer"))
def reduce_of_reduce(m: Match, x: Value) -> Value:
    """ReduceSum(ReduceSum(x, a), b) = ReduceSum(x, a and b); so do ReduceMean, ReduceMax, ReduceMin and ReduceL1."""
    inner, outer, rank = m.inner, m.outer, m.rank(x)
    if inner.op != outer.op:
        m.skip()
    m.require(rank, "the rank is unknown")
    m.require(m.dtype(x) in FLOATS, "not floating point")
    kept = inner.keeps_dims
    m.require(kept == outer.keeps_dims, "one of them keeps the dims")
    first = reduced_axes(m, inner, rank or 1)
    left = list(range(rank or 1)) if kept else [i for i in range(rank or 1) if i not in first]
    m.require(left, "nothing is left to reduce")
    axes = sorted({*first, *(left[a] for a in reduced_axes(m, outer, len(left)))})
    return m.op[outer.op](x, m.ints(axes), keepdims=int(kept))


@rewrite(one_of(*REDUCTIONS)(one_of(*VIEWS)(var("x"), ..., name="view"), ..., name="reduce"))
def reduce_of_view(m: Match, x: Value) -> Value:
    """Reduce(Transpose(Reshape(x, s), p), axes) = Reduce(x, axes of x), where these are reduced or kept as a whole."""
    rank = len(m.dims(m.view.output))
    m.require(rank, "the rank is unknown")
    m.require(m.dtype(x) in FLOATS, "not floating point")
    source, found = viewed(m, m.reduce)
    reduced = reduced_axes(m, m.reduce, rank)
    gone, left = _parts_of(found.known(), reduced)
    parts = [real(flat(r.parts for r in runs)) for runs in found.source]
    m.require(left == [p for own in parts for p in own if p not in gone], "the axes that stay change places")
    m.require(all(gone.issuperset(own) or gone.isdisjoint(own) for own in parts), "a part of an axis is reduced")
    for ones, keeps in product((False, True), (1, 0)):
        axes = [i for i, own in enumerate(parts) if (gone.issuperset(own) if own else ones)]
        if axes and _left(m.dims(source), axes, keeps) == m.dims(m.reduce.output):
            return m.op[m.reduce.op](source, m.ints(axes), keepdims=keeps)
    raise Declined("other dims would be left")


def _parts_of(axes: Sequence[Sequence[Part]], reduced: Container[int]) -> tuple[set[Part], list[Part]]:
    """Return the parts of more than one element in the axes `reduced`, and in the others."""
    gone = {p for i, axis in enumerate(axes) if i in reduced for p in real(axis)}
    return gone, [p for i, axis in enumerate(axes) if i not in reduced for p in real(axis)]


def _left(dims: Shape, axes: Sequence[int], keeps: int) -> Shape:
    """Return the shape of a reduction along `axes`."""
    return tuple(1 if i in axes else d for i, d in enumerate(dims) if keeps or i not in axes)


@rewrite(
    one_of("Div", "Mul")(one_of("ReduceSum", "ReduceSumSquare")(var("x"), ..., name="sum"), const("n"), name="scaled")
)
def mean_of_sum(m: Match, x: Value, n: Array) -> Value:
    """ReduceSum(x) / n = ReduceMean(x), ReduceSumSquare(x) / n = ReduceMean(x x), where n is the number of elements."""
    rank = len(m.dims(x))
    m.require(m.dtype(x) in FLOATS and n.size == 1 and n.item(), "no number of elements")
    m.require(rank, "the rank is unknown")
    axes = reduced_axes(m, m.sum, rank)
    sizes = [size for a in axes if (size := types.length_of(x, a)) is not None]
    count = math.prod(sizes) if len(sizes) == len(axes) else 0
    m.require(count, "the number of elements is unknown, or none")
    kept = m.sum.keeps_dims
    m.require(n.ndim <= rank - (0 if kept else len(sizes)), "the divisor raises the rank")
    wanted = count if m.scaled.op == "Div" else 1 / count
    rounding = of(n.dtype).epsilon  # for 1 / n stored in its type
    m.require(math.isclose(float(n.item()), wanted, rel_tol=rounding), "not the number of the elements")
    squared = x if m.sum.op == "ReduceSum" else m.op.Mul(x, x)
    return m.op.ReduceMean(squared, m.ints(axes), keepdims=int(kept))


_PRODUCT: Final = op.Mul(var("x"), var("f"))
_OF_MEAN: Final = op.Mul(one_of("GlobalAveragePool", "ReduceMean")(var("x"), ..., name="mean", shared=True), var("f"))


@rewrite(either(op.Add(_PRODUCT, op.Sub(var("b"), _OF_MEAN)), op.Sub(_PRODUCT, _OF_MEAN)))
def centered_first(m: Match, x: Value, f: Value, b: Value | None = None) -> Value:
    """x f + (b - mean f) = (x - mean) f + b, x f - mean f = (x - mean) f, with a smaller rounding error.

    `mean` is the mean of x, and x - mean overflows only near the largest float.
    """
    m.require(m.dtype(x) in FLOATS, "not floating point")
    centered = m.op.Mul(m.op.Sub(x, m.mean.output), f)
    return centered if b is None else m.op.Add(centered, b)


@register
class SimplifyReductions(RewritePass):
    """ReduceSum(ReduceSum(x, a), b) = ReduceSum(x, a and b), likewise means and bounds; ReduceSum(x) / n =
    ReduceMean(x); x f + (b - mean f) = (x - mean) f + b, x f - mean f = (x - mean) f; a reduction of a view as one of
    other axes.

    Applies when: axes and sizes are known, and inner values have no other readers.
    Not done: ReduceL2, ReduceL1, ReduceSumSquare, ReduceLogSumExp for their formulas: in onnxruntime they take several
    times as long.
    """

    info = PassInfo("simplify-reductions", opt_level=2, ops=("GlobalAveragePool", *sorted(REDUCTIONS)))
    rules = (reduce_of_reduce, reduce_of_view, mean_of_sum, centered_first)


def equation(m: Match) -> Equation:
    """Return the equation of an Einsum-12; declines for ellipses and diagonals."""
    from onnxopt.operators.operands import read_equation  # few models have an Einsum

    ranks = [m.rank(x) if x is not None else None for x in m.einsum.inputs]
    found = m.known(
        read_equation(m.einsum.attr("equation"), ranks), "a letter for each axis, and a term for each operand"
    )
    m.require(not found.has_dots, "an ellipsis stands for axes")
    m.require(not found.has_diagonal, "a diagonal is taken")
    return found


@rewrite(op.Einsum(var("x"), name="einsum"))
def einsum_of_one(m: Match, x: Value) -> Value:
    """Einsum(ij->ji, x) = Transpose(x); Einsum(ij->i, x) = ReduceSum(x, 1)."""
    (term,), result = equation(m)
    value: Value
    if set(term) == set(result):
        value = m.op.Transpose(x, perm=[term.index(c) for c in result])
        return value
    m.require(tuple(c for c in term if c in result) == result, "summed and turned: two operators")
    axes = [i for i, c in enumerate(term) if c not in result]
    value = m.op.ReduceSum(x, m.ints(axes), keepdims=0)
    return value


@rewrite(op.Einsum(var("x"), var("y"), name="einsum"))
def einsum_of_two(m: Match, x: Value, y: Value) -> Value:
    """Einsum(bij,bjk->bik, x, y) = MatMul(x, y)."""
    (first, second), result = equation(m)
    m.require(m.dtype(x) in FLOATS, "not a floating point product")
    if not _is_product(first, second, result):
        x, y, first, second = y, x, second, first
    m.require(_is_product(first, second, result), "it would take a Transpose besides")
    left, right = m.shape(x), m.shape(y)
    same = left is not None and right is not None and None is not left[-1] == right[-2]
    m.require(same, "a size may be 1 and broadcast")
    value: Value = m.op.MatMul(x, y)
    return value


def _is_product(left: Letters, right: Letters, result: Letters) -> bool:
    """Whether the terms form …ij, …jk -> …ik, with equal leading axes, or none on one side."""
    if min(len(left), len(right)) < 2 or left[-1] != right[-2]:
        return False
    lead = max(left[:-2], right[:-2], key=len)
    return {left[:-2], right[:-2]} <= {lead, ()} and result == (*lead, left[-2], right[-1])


@register
class SimplifyEinsum(RewritePass):
    """Einsum(ij->ji) = Transpose, Einsum(ij->i) = ReduceSum, Einsum(bij,bjk->bik) = MatMul.

    Applies when: a single operator computes the same.
    Not done: ellipses, diagonals, products that need an additional Transpose.
    """

    info = PassInfo("simplify-einsum", opt_level=2, ops=("Einsum",))
    rules = (einsum_of_one, einsum_of_two)
