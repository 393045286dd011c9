"""Elementwise arithmetic with fewer operations, each with one rounding less."""

from __future__ import annotations

import math
from collections.abc import Callable
from math import prod
from typing import Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.linear import underflows
from onnxopt.analysis.shapes.sizes import broadcast_shape
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.operators import FRACTIONS
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.element_types import FLOATS, element_kind, is_float, of
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Match, const, either, one_of, only_read_by, op, rewrite, var, widens, without_ones
from onnxopt.rewriting.rule import is_number

_MIN_FACTOR: Final = 2.0**-10  # bounds of a factor: within them overflow of a cube stays about the same
_MAX_FACTOR: Final = 2.0**10
_SQUARE: Final = either(op.Mul(var("x"), var("x")), op.Pow(var("x"), 2))
_SCALED_SQUARE: Final = either(op.Mul(op.Mul(var("x"), const("c")), var("x")), op.Mul(_SQUARE, const("c")))


def goes(m: Match, reader: str) -> None:
    """Decline unless all readers of the inner node are operators `reader`, so that the node is removed with the
    last."""
    m.require(m.inner.output.feeds_only(lambda u: u.op == reader), f"{m.inner.op} output used elsewhere")


_RECIPROCAL: Final = either(
    op.Div(1, var("y"), name="inner", shared=True),
    op.Reciprocal(var("y"), name="inner", shared=True),
    op.Pow(var("y"), -1, name="inner", shared=True),
)


@rewrite(either(op.Mul(var("x"), _RECIPROCAL), op.Div(var("x"), _RECIPROCAL)))
def multiply_by_reciprocal(m: Match, x: Value, y: Value) -> Value:
    """x * (1 / y) = x / y, x / (1 / y) = x y."""
    goes(m, m.anchor.op)
    m.require(m.dtype(x) in FLOATS, "integers divide otherwise")
    return m.op["Div" if m.anchor.op == "Mul" else "Mul"](x, y, like=m.anchor)


_SCALED: Final = either(
    op.Mul(var("x"), const("a"), name="inner", shared=True), op.Div(var("x"), const("a"), name="inner", shared=True)
)


@rewrite(either(op.Mul(_SCALED, const("b")), op.Div(_SCALED, const("b"))))
def product_of_factors(m: Match, x: Value, a: Array, b: Array) -> Value:
    """(x a) b = x (a b), (x / a) / b = x / (a b), (x / a) b = x (b / a), (x a) / b = x (a / b)."""
    if m.inner.op == m.anchor.op:
        return _combined(m, x, a, b, m.anchor.op, np.multiply)
    return _combined(m, x, *((a, b) if m.inner.op == "Mul" else (b, a)), "Mul", np.divide)


_SHIFTED: Final = either(
    op.Add(var("x"), const("a"), name="inner", shared=True),
    op.Sub(var("x"), const("a"), name="inner", shared=True),
    op.Sub(const("a"), var("x"), name="inner", shared=True),
)


@rewrite(either(op.Add(_SHIFTED, const("b")), op.Sub(_SHIFTED, const("b")), op.Sub(const("b"), _SHIFTED)))
def sum_of_terms(m: Match, x: Value, a: Array, b: Array) -> Value:
    """(x + a) + b = x + (a + b), (x - a) + b = x + (b - a), b - (x + a) = (b - a) - x, and so on."""
    of_inner, of_b = _signs(m.anchor, m.value("b"))
    of_x, of_a = _signs(m.inner, m.value("a"))
    kind = "Add" if of_inner == of_x else "Sub"
    return _combined(m, x, a, b, kind, lambda a, b: np.asarray(of_inner * of_a * a + of_b * b))


def _signs(node: Node, c: Value) -> tuple[int, int]:
    """Return the signs of (other operand, constant) in a sum or difference."""
    if node.op == "Add":
        return 1, 1
    return (-1, 1) if node.inputs[0] is c else (1, -1)


@rewrite(op.Neg(op.Sub(var("x"), var("y"))))
def difference_turned(m: Match, x: Value, y: Value) -> Value:
    """-(x - y) = y - x, but for the sign of a zero."""
    return m.op.Sub(y, x)


_MINUS: Final = op.Mul(var("y"), -1)


@rewrite(either(op.Add(var("x"), _MINUS), op.Sub(var("x"), _MINUS)))
def sum_with_negative(m: Match, x: Value, y: Value) -> Value:
    """x + y (-1) = x - y, x - y (-1) = x + y."""
    m.require(not _is_weighted(y), "the weights before it take the sign")
    return m.op["Sub" if m.anchor.op == "Add" else "Add"](x, y, like=m.anchor)


def _is_weighted(y: Value) -> bool:
    """Whether a value is a product with weights, perhaps with a bias."""
    node = y.producer
    if node is not None and node.op in ("Add", "Sub"):
        node = next((v.producer for v in node.operands if not v.constant), None)
    return node is not None and node.op in ("Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul")


def _combined(m: Match, x: Value, a: Array, b: Array, kind: str, function: Callable[..., Array]) -> Value:
    """Return x combined with the merged constant; for kind Sub, the constant is the minuend."""
    terms = kind in ("Add", "Sub")
    whole = element_kind(a) in "iu" and (terms or m.anchor.op == m.inner.op == "Mul")
    m.require(a.dtype == b.dtype and (is_float(a) or whole), "integers divide otherwise")
    only_read_by(m, m.inner, *(("Add", "Sub") if terms else ("Mul", "Div")))
    no_larger_together(m, a, b)
    if whole:
        both = m.const(_wrapped(function(a.astype(object), b.astype(object)), a))
        return m.op[kind](*((both, x) if kind == "Sub" else (x, both)))
    wide = function(a.astype(np.float64), b.astype(np.float64))
    narrow = wide.astype(a.dtype)
    m.require(np.isfinite(wide).all() and (terms or wide.all()), "the constant is zero or not finite")
    m.require(terms or not underflows(wide, narrow, each=True), "the folded constant underflows its type")
    given = (m.const(wide, like=a), x) if kind == "Sub" else (x, m.const(wide, like=a))
    return m.op[kind](*given, like=m.anchor if m.anchor.op == kind else None)


def _wrapped(numbers: Array, like: Array) -> Array:
    """Return Python integers wrapped to the type, independent of the order of operations."""
    last = (1 << 8 * like.dtype.itemsize) - 1
    return np.asarray(np.asarray(numbers, object) & last, object).astype(np.uint64).astype(like.dtype)


def no_larger_together(m: Match, a: Array, b: Array) -> None:
    m.require(all(1 in (d, e) or d == e for d, e in zip(a.shape[::-1], b.shape[::-1])), "no runtime broadcasts these")
    m.require(max(a.size, b.size) >= prod(broadcast_shape(a.shape, b.shape)), "the constants together are larger")
    m.require_few_copies(max(a.nbytes, b.nbytes))


@rewrite(
    either(op.Mul(_SQUARE, var("x")), op.Mul(_SCALED_SQUARE, var("x")), op.Mul(op.Mul(var("x"), const("c")), _SQUARE))
)
def cube(m: Match, x: Value, c: Array | None = None) -> Value:
    """x x x = x³, ((c x) x) x = (c (x x)) x = (c x) (x x) = c x³."""
    m.require(m.opset >= 7, "before opset 7 an attribute says how exponents broadcast")
    three = m.const(np.float64(3), like=x if c is None else c)
    m.require(three.array.dtype in (np.float32, np.float64), "runtimes know few other powers")
    return _times(m, m.op.Pow(x, three), c)


@rewrite(
    either(op.Mul(op.Mul(var("x"), const("k")), op.Add(_SCALED_SQUARE, 1)), op.Mul(var("x"), op.Add(_SCALED_SQUARE, 1)))
)
def cubic(m: Match, x: Value, c: Array, k: Array | None = None) -> Value:
    """(k x) (c x x + 1) = k (x + c x³), as in a Gelu by tanh."""
    m.require((c > 0).all(), "where x is infinite, x + c x³ would be no number")
    return _times(m, m.op.Add(x, cube(m, x=x, c=c)), k)


def _times(m: Match, x: Value, factor: Array | None) -> Value:
    """Return the product of x and a factor near one, if any: a factor far from one decides whether it overflows."""
    if factor is None:
        return x
    size = np.abs(factor.astype(np.float64))
    near = ((size >= _MIN_FACTOR) & (size <= _MAX_FACTOR)).all()
    m.require(near, "far from one, a factor decides whether it overflows")
    return m.op.Mul(x, m.const(factor))


def _is_zero(c: Value) -> bool:
    """Whether all elements of a constant of floats are zero."""
    return c.constant_type()[0] in FLOATS and not c.array.any()


@rewrite(one_of("Add", "Sub")(var("x"), var("zeros", constant=True, when=_is_zero)))
def sum_with_zeros(m: Match, x: Value, zeros: Value) -> Value:
    """x + 0.0 = x - 0.0 = x, but for the sign of a zero."""
    if widens(m, x, zeros):
        m.skip()
    return x


@rewrite(one_of("ReduceMean", "ReduceSum")(var("x"), ..., name="reduce"))
def sum_of_one(m: Match, x: Value) -> Value:
    """ReduceSum(x) = ReduceMean(x) = x, or Squeeze(x), over dims of one, but for the sign of a zero."""
    result, _ = without_ones(m, m.reduce, x)
    m.require(m.dtype(x) in FLOATS, "of integers there is no zero with a sign")
    return result


@rewrite(op.Where(op.Not(var("c"), name="inner", shared=True), var("a"), var("b"), name="where"))
def choice_of_not(m: Match, c: Value, a: Value, b: Value) -> Value:
    """Where(not c, a, b) = Where(c, b, a)."""
    goes(m, "Where")
    return m.op.Where(c, b, a, like=m.where)


@rewrite(
    either(
        op.Min(op.Max(var("x"), const("a")), const("b")),
        op.Max(op.Min(var("x"), const("b")), const("a")),
        op.Min(op.Relu(var("x")), const("b")),
    )
)
def clip_of_bounds(m: Match, x: Value, b: Array, a: Array | None = None) -> Value:
    """Min(Max(x, a), b) = Clip(x, min(a, b), b); Max(Min(x, b), a) = Clip(x, a, b), where a <= b; Relu is from 0."""
    a = np.zeros((), b.dtype) if a is None else a
    rank = m.rank(x)
    m.require(a.size == b.size == 1, "bounds for each element")
    m.require(rank is not None and max(a.ndim, b.ndim) <= rank, "the rank is unknown, or would rise")
    m.require(a.dtype == np.float32 or (a.dtype == np.float64 and m.opset >= 12), "runtimes clip few other types")
    m.require(not np.isnan(a).any() and not np.isnan(b).any(), "a bound is NaN")
    low, high = np.minimum(a.reshape(()), b.reshape(())), b.reshape(())
    m.require(m.anchor.op == "Min" or low == a, "the bounds exclude each other")
    # before opset 11 runtimes reject a lower bound above the upper
    return m.op.Clip(x, m.const(low, like=a), m.const(high, like=b))


@rewrite(op.Clip(one_of(*FRACTIONS)(var("x"), ..., name="inner", shared=True), const("a").opt(), const("b").opt()))
def clip_of_fraction(m: Match, x: Value, a: Array | None, b: Array | None) -> Value:
    """Clip(Sigmoid(x), 0, 1) = Sigmoid(x); so for Softmax and HardSigmoid, and wider bounds."""
    m.require(all(bound is None or bound.size == 1 for bound in (a, b)), "a bound is no number")
    m.require(a is None or a.item() <= 0, "the lower bound is above 0")
    m.require(b is None or b.item() >= 1, "the upper bound is below 1")
    return m.inner.output


_SOFT: Final = op.Softplus(var("x"), name="soft", shared=True)


@rewrite(
    either(
        op.Where(one_of("Greater", "GreaterOrEqual")(var("x"), const("t"), shared=True), var("x"), _SOFT),
        op.Where(one_of("Less", "LessOrEqual")(var("x"), const("t"), shared=True), _SOFT, var("x")),
    )
)
def choice_of_softplus(m: Match, x: Value, t: Array) -> Value:
    """Where(x > t, x, Softplus(x)) = Softplus(x), where x + log(1 + exp(-x)) rounds to x above t."""
    m.require(is_float(t) and is_number(m, t, x), "no number as threshold")
    # Softplus(x) - x < exp(-x), and terms below a quarter of epsilon times x are rounded away.
    above = t.item() > 1 and math.exp(-t.item()) < t.item() * of(t.dtype).epsilon / 4
    m.require(above, "a Softplus is not rounded to x where the threshold is")
    return m.soft.output


@rewrite(op.Where(const("c"), var("a"), var("b")))
def choice_that_is_made(m: Match, c: Array, a: Value, b: Value) -> Value:
    """Where(true, a, b) = a, Where(false, a, b) = b."""
    m.require(c.size and (c.all() or not c.any()), "not all true, and not all false")
    chosen = a if c.all() else b
    m.require(types.same_shape(chosen, m.anchor.output), "not provably the same shape")
    return chosen


@register
class SimplifyArithmetic(RewritePass):
    """x * (1 / y) = x / y; merges constant factors, terms and divisors, and removes zero terms; x x x = x³; Min of
    Max is Clip; removes a Clip to the range of its operand, and a choice between x and a Softplus that rounds to x.

    Applies when: the values are floating point, and inner values have no other readers.
    Keeps: integers, whose division truncates; constants that would take more memory when merged.
    Not done: factors of zero, which hide infinities and NaN; other powers, for which runtimes have no fast path.
    """

    info = PassInfo("simplify-arithmetic", opt_level=2)
    rules = (
        multiply_by_reciprocal,
        product_of_factors,
        sum_of_terms,
        difference_turned,
        sum_with_negative,
        cube,
        cubic,
        sum_with_zeros,
        sum_of_one,
        choice_of_not,
        choice_that_is_made,
        clip_of_fraction,
        choice_of_softplus,
        clip_of_bounds,
    )
