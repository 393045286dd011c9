"""Einsums equivalent to a simpler operator."""

from __future__ import annotations

from onnxopt.graph import Value
from onnxopt.operators.einsum import Equation, Letters, read_equation
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.element_types import FLOATS
from onnxopt.rewriting import Match, op, rewrite, var


def equation(m: Match) -> Equation:
    """Return the equation of an Einsum-12; declines for ellipses and diagonals."""
    ranks = [m.rank(x) if x is not None else None for x in m.einsum.inputs]
    found = read_equation(m.einsum.attr("equation"), ranks)
    m.require(found is not None, "a letter for each axis, and a term for each operand")
    assert found is not None
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
