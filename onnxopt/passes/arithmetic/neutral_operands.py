"""Neutral operands, and bounds without effect."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxopt.graph import Value
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.element_types import element_kind, is_float, of
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Match, const, one_of, only_read_by, op, rewrite, var, widens

# Neutral operands: x * 1, x + (-0), x and true, Max(x, -inf).
#
# The matcher declines constants that would raise the rank. The result must also have the input's shape where the
# *input* is smaller, as one-element constants ensure.


@rewrite(op.Mul(var("x"), 1))
def multiply_by_one(m: Match, x: Value) -> Value:
    """x * 1 = x."""
    return x


@rewrite(op.Div(var("x"), 1))
def divide_by_one(m: Match, x: Value) -> Value:
    """x / 1 = x."""
    return x


@rewrite(op.Pow(var("x"), 1))
def power_of_one(m: Match, x: Value) -> Value:
    """x ** 1 = x."""
    m.require(m.dtype(x) not in (0, TensorProto.INT64), "runtimes compute powers of long integers as floats")
    return x


@rewrite(op.Sub(var("x"), 0))
def subtract_zero(m: Match, x: Value) -> Value:
    """x - (+0) = x."""
    zero = next(v for v in m.anchor.inputs[1:] if v is not None)
    m.require(not is_float(zero.array) or not np.signbit(zero.array).any(), "-0 turns -0 into +0")
    return x


@rewrite(op.Add(var("x"), 0))
def add_zero(m: Match, x: Value) -> Value:
    """x + 0 = x for integers, x + (-0) = x for floats; +0 would turn -0 into +0."""
    zero = next((v for v in m.anchor.inputs if v is not x and v is not None), x)  # x may itself be the zero
    m.require(element_kind(zero.array) in "iu" or np.signbit(zero.array).all(), "+0 turns -0 into +0")
    return x


def _is_neutral(c: Value) -> bool:
    """Whether a constant of several elements consists of zeros or of ones."""
    dims = c.constant_type()[1]
    if max(dims, default=1) < 2 or 0 in dims or element_kind(c.array) not in "iuf":
        return False
    first = c.array.item(0)
    return first in (0, 1) and bool((c.array == first).all())


@rewrite(one_of("Add", "Div", "Mul", "Sub")(var("x"), var("c", constant=True, when=_is_neutral), name="node"))
def neutral_tensor(m: Match, x: Value, c: Value) -> Value:
    """x * ones = x / ones = x - zeros = x + (-0, …) = x, for constants that keep the shape of x."""
    array = c.array
    if array.item(0) != (m.node.op in ("Div", "Mul")) or widens(m, x, c):
        m.skip()
    signed = np.signbit(array) if is_float(array) else None
    if signed is not None and m.node.op in ("Add", "Sub"):
        m.require((signed == (m.node.op == "Add")).all(), "zeros of this sign turn others over")
    return x


@rewrite(one_of("Max", "Min")(var("x"), var("c", constant=True), name="node"))
def bound_of_nothing(m: Match, x: Value, c: Value) -> Value:
    """Max(x, -inf) = Min(x, inf) = x; of integers the lowest and the highest of their type."""
    if 0 in c.constant_type()[1] or widens(m, x, c) or element_kind(c.array) not in "iuf":
        m.skip()
    array = c.array
    number = np.inf if is_float(array) else of(array.dtype).high
    if m.node.op == "Max":
        number = -np.inf if is_float(array) else of(array.dtype).low
    if not (array == number).all():
        m.skip()
    return x


@rewrite(op.And(var("x"), True))
def and_true(m: Match, x: Value) -> Value:
    """x and true = x."""
    return x


@rewrite(op.Or(var("x"), False))
def or_false(m: Match, x: Value) -> Value:
    """x or false = x."""
    return x


@register
class NeutralOperands(RewritePass):
    """Removes arithmetic and logic with a neutral operand.

    Applies when: the constant is the operation's neutral element, and changes neither rank nor shape.
    Keeps: type, shape and bits.
    Not done: 0 - x, 1 / x; x + 0.0, which turns -0.0 into 0.0 (see `simplify-arithmetic`).
    """

    info = PassInfo("neutral-operands", opt_level=1, ops=("Add", "And", "Div", "Max", "Min", "Mul", "Or", "Pow", "Sub"))
    rules = (
        multiply_by_one,
        divide_by_one,
        power_of_one,
        subtract_zero,
        add_zero,
        neutral_tensor,
        bound_of_nothing,
        and_true,
        or_false,
    )


# Bounds of bounds are bounds.

# min(max(x, a), b) is monotone, hence g(f(x)) = min(max(x, g(a)), g(b)), for overlapping ranges or not, and also where
# a > b, with the result b for every x. NaN stays NaN.


def limits(like: Array) -> tuple[Array, Array]:
    """Return the smallest and largest finite number of a type."""
    found = of(like.dtype)
    return np.array(found.low, like.dtype), np.array(found.high, like.dtype)


def bounds(m: Match, low: Array | None, high: Array | None, like: Array | None) -> tuple[Array, Array]:
    """Return both bounds of a Clip; an absent bound is the largest finite number (Clip-11)."""
    known = m.known(next((b for b in (low, high, like) if b is not None), None), "no bound is known")
    least, most = limits(known)
    low, high = least if low is None else low, most if high is None else high
    m.require(low.size == high.size == 1, "a bound is no number")
    m.require(not np.isnan(low).any() and not np.isnan(high).any(), "a bound is NaN")
    m.require(
        not any((np.signbit(b) & (b == 0)).any() for b in (low, high)), "a bound is -0.0: zeros would change sign"
    )
    return low.reshape(()), high.reshape(())


def clip(m: Match, x: Value, low: Array, high: Array) -> Value:
    low, high = low.reshape(()), high.reshape(())
    m.require(not is_float(low) or low.any() or high.any(), "all is zero: bounds of zero would let -0.0 pass")
    return m.op.Clip(x, m.const(low, like=low), m.const(high, like=high), like=m.outer)


@rewrite(
    op.Clip(
        op.Clip(var("x"), const("a").opt(), const("b").opt(), name="inner", shared=True),
        const("c").opt(),
        const("d").opt(),
        name="outer",
    )
)
def clip_of_clip(m: Match, x: Value, a: Array | None, b: Array | None, c: Array | None, d: Array | None) -> Value:
    """Clip(Clip(x, a, b), c, d) = Clip(x, Clip(a, c, d), Clip(b, c, d))."""
    only_read_by(m, m.inner, "Clip", "Relu")
    like = next((v for v in (a, b, c, d) if v is not None), None)
    low, high = bounds(m, a, b, like)
    least, most = bounds(m, c, d, like)
    return clip(m, x, np.minimum(np.maximum(low, least), most), np.minimum(np.maximum(high, least), most))


@rewrite(op.Clip(op.Relu(var("x"), name="inner", shared=True), const("c").opt(), const("d").opt(), name="outer"))
def clip_of_relu(m: Match, x: Value, c: Array | None, d: Array | None) -> Value:
    """Clip(Relu(x), c, d) = Clip(x, Clip(0, c, d), d), where d is not below c."""
    only_read_by(m, m.inner, "Clip")
    least, most = bounds(m, c, d, None)
    m.require(least <= most, "the bounds exclude each other")
    low = np.minimum(np.maximum(np.zeros_like(least), least), most)
    return clip(m, x, low, most)


@rewrite(op.Relu(op.Clip(var("x"), const("a").opt(), const("b").opt(), name="outer", shared=True)))
def relu_of_clip(m: Match, x: Value, a: Array | None, b: Array | None) -> Value:
    """Relu(Clip(x, a, b)) = Clip(x, Relu(a), Relu(b))."""
    only_read_by(m, m.outer, "Clip", "Relu")
    low, high = bounds(m, a, b, None)
    return clip(m, x, np.maximum(low, low.dtype.type(0)), np.maximum(high, high.dtype.type(0)))


@register
class ClipChains(RewritePass):
    """Clip(Clip(x, a, b), c, d) = Clip(x, a', b'); Relu is a Clip from zero.

    Applies when: the bounds are constant, and the inner value has no other readers.
    Keeps: NaN, which no bound stops; infinities if a bound is absent: a Clip turns them into the largest number.
    Not done: Max and Min, which in runtimes may turn -0.0 into 0.0 (see `simplify-arithmetic`).
    """

    info = PassInfo("clip-chains", opt_level=1, ops=("Clip",))
    rules = (clip_of_clip, clip_of_relu, relu_of_clip)
