"""An Einsum that says what a plainer operator says."""

from __future__ import annotations

import string
from typing import Final, NamedTuple

from onnxopt.element_types import FLOATS
from onnxopt.graph import Value
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.rewriting import Match, op, rewrite, var

_LETTERS: Final = frozenset(string.ascii_letters + ",")


class Equation(NamedTuple):
    """`bij,bjk->bik`: a letter for each axis of the operands, and of the result."""

    operands: list[str]
    result: str


def equation(m: Match) -> Equation:
    """The equation of an Einsum-12, its result written out; declines for ellipses and diagonals."""
    text = m.einsum.attr("equation").replace(" ", "")
    m.require("." not in text, "an ellipsis stands for axes")
    left, written, result = text.partition("->")
    operands = left.split(",")
    m.require(len(operands) == len(m.einsum.inputs), "a term for each operand")
    ranks = [m.rank(x) for x in m.einsum.inputs if x is not None]
    m.require(all(r in (None, len(t)) for r, t in zip(ranks, operands)), "a letter for each axis")
    m.require(_LETTERS.issuperset(left + result), "no letter stands for an axis")
    m.require(all(len(set(t)) == len(t) for t in operands), "a diagonal is taken")
    if not written:  # the letters that occur once, in alphabetical order
        result = "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    return Equation(operands, result)


@rewrite(op.Einsum(var("x"), name="einsum"))
def einsum_of_one(m: Match, x: Value) -> Value:
    """Einsum(ij->ji, x) = Transpose(x); Einsum(ij->i, x) = ReduceSum(x, 1)."""
    (term,), result = equation(m)
    value: Value
    if set(term) == set(result):
        value = m.op.Transpose(x, perm=[term.index(c) for c in result])
        return value
    m.require([c for c in term if c in result] == list(result), "summed and turned: two operators")
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


def _is_product(left: str, right: str, result: str) -> bool:
    """…ij, …jk -> …ik: with the same leading axes, or none on one side."""
    if min(len(left), len(right)) < 2 or left[-1] != right[-2]:
        return False
    lead = max(left[:-2], right[:-2], key=len)
    return {left[:-2], right[:-2]} <= {lead, ""} and result == lead + left[-2] + right[-1]


@register
class SimplifyEinsum(RewritePass):
    """Einsum(ij->ji) = Transpose, Einsum(ij->i) = ReduceSum, Einsum(bij,bjk->bik) = MatMul.

    Applies when: one operator says the same.
    Not done: ellipses, diagonals, products that would need a Transpose as well.
    """

    info = PassInfo("simplify-einsum", opt_level=2, ops=("Einsum",))
    rules = (einsum_of_one, einsum_of_two)
