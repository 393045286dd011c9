"""Neutral operands: x * 1, x + (-0), x and true, Max(x, -inf).

The matcher declines constants that would raise the rank. The result must also have the input's shape where the *input*
is smaller, as one-element constants ensure.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxopt.graph import Value
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.element_types import element_kind, is_float, of
from onnxopt.rewriting import Match, one_of, op, rewrite, var, widens


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


@rewrite(one_of("Add", "Div", "Mul", "Sub")(var("x"), var("c", constant=True), name="node"))
def neutral_tensor(m: Match, x: Value, c: Value) -> Value:
    """x * ones = x / ones = x - zeros = x + (-0, …) = x, for constants that keep the shape of x."""
    dims = c.constant_type()[1]
    if max(dims, default=1) < 2 or 0 in dims or widens(m, x, c):
        m.skip()
    array = c.array
    neutral = m.node.op in ("Div", "Mul")
    if element_kind(array) not in "iuf" or array.item(0) != neutral or not (array == neutral).all():
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
