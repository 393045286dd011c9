"""Constants added to, or multiplied with, the result of a Conv or Gemm are folded into bias and weights."""

from __future__ import annotations

from typing import Final

import numpy as np

from onnxopt.analysis.weights import linear
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.element_types import FLOATS
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Call, Match, const, ends_formula, one_of, op, quantized, rewrite, shifts_formula, var
from onnxopt.rewriting.guards import again, bias_per_channel


def linear_call() -> Call:
    return one_of("Conv", "ConvTranspose", "Gemm")(var("x"), const("w"), const("b").opt(), name="linear")


def factors(m: Match, z: Array, w: Array) -> Array:
    """Return `z` as a float64 for each output channel; declines if it does not broadcast along channels."""
    result = linear.per_channel(z, w.ndim, linear.output_channels(m.linear, w))
    m.require(result is not None, "the constant is not one per channel")
    assert result is not None
    m.require(np.isfinite(result).all(), "the constant is not finite")
    return result


def affine_of(m: Match, w: Array, b: Array | None, a: Array | None, c: Array | None) -> Value:
    """Return a * linear(x; W, b) + c as a single node; None omits a factor or term."""
    node: Node = m.linear
    x = m.value("x")
    m.require(not quantized(m, x), "the operator is quantized")
    # integers wrap around, and their division truncates
    m.require(m.dtype(m.value("w")) in FLOATS, "not floating point")
    channels = linear.output_channels(node, w)
    weight = m.value("w") if a is None else m.const(linear.scale_outputs(node, w, a), like=w)
    bias = bias_per_channel(m, node, b, channels)
    if b is None and c is None:
        bias_value = None
    else:
        total = (bias if a is None else a * bias) + (0 if c is None else c)
        bias_value = m.const(total, like=w, hint=(m.value("b") if b is not None else m.value("z")).name)
    return again(m, node, x, weight, bias_value)


@rewrite(op.Add(linear_call(), const("z")))
def fold_add(m: Match, x: Value, w: Array, b: Array | None, z: Array) -> Value:
    """Conv(x; W, b) + z = Conv(x; W, b + z)."""
    return affine_of(m, w, b, None, factors(m, z, w))


@rewrite(op.Sub(linear_call(), const("z")))
def fold_subtract(m: Match, x: Value, w: Array, b: Array | None, z: Array) -> Value:
    """Conv(x; W, b) - z = Conv(x; W, b - z)."""
    return affine_of(m, w, b, None, -factors(m, z, w))


@rewrite(op.Sub(const("z"), linear_call()))
def fold_subtract_from(m: Match, x: Value, w: Array, b: Array | None, z: Array) -> Value:
    """z - Conv(x; W, b) = Conv(x; -W, z - b)."""
    c = factors(m, z, w)
    return affine_of(m, w, b, np.full(c.shape, -1.0), c)


@rewrite(op.Mul(linear_call(), const("z")))
def fold_multiply(m: Match, x: Value, w: Array, b: Array | None, z: Array) -> Value:
    """Conv(x; W, b) * z = Conv(x; Wz, bz)."""
    return affine_of(m, w, b, factors(m, z, w), None)


@rewrite(op.Div(linear_call(), const("z")))
def fold_divide(m: Match, x: Value, w: Array, b: Array | None, z: Array) -> Value:
    """Conv(x; W, b) / z = Conv(x; W/z, b/z)."""
    a = factors(m, z, w)
    m.require(a.all(), "division by zero")
    return affine_of(m, w, b, 1.0 / a, None)


@rewrite(op.Conv(one_of("Mul", "Div")(var("x"), const("z"), name="scaling"), const("w"), const("b").opt(), name="conv"))
def fold_scaled_input(m: Match, x: Value, z: Array, w: Array, b: Array | None) -> Value:
    """Conv(x * z; W, b) = Conv(x; Wz, b), whatever the padding: zero stays zero."""
    bias = m.value("b") if b is not None else None
    return m.op.Conv(x, scaled(m, x, z, w), bias, like=m.conv)


def scaled(m: Match, x: Value, z: Array, w: Array) -> Value:
    """Return weights for input x instead of x * z, or x / z."""
    m.require(not ends_formula(x, z), "it ends a normalization or Gelu, which runtimes run as one operator")
    dims, group = m.shape(x), m.conv.attr("group")
    m.require(dims is not None and len(dims) == w.ndim, "the rank of the input is unknown or differs")
    m.require(not quantized(m, x), "the convolution is quantized")
    channels = w.shape[1] * group
    m.require(z.size == 1 or (dims or ())[1] == channels, "the constant may widen the input")
    a = linear.per_channel(z, w.ndim, 1 if z.size == 1 else channels)
    m.require(a is not None, "the constant is not one per channel")
    assert a is not None
    m.require(z.size == 1 or group == 1, "grouped convolution")
    m.require(np.isfinite(a).all() and a.all(), "the constant is zero or not finite")
    factor = 1.0 / a if m.scaling.op == "Div" else a
    weight = w.astype(np.float64) * factor[0] if z.size == 1 else linear.scale_inputs(m.conv, w, factor)
    return m.const(weight, like=w)


@rewrite(
    op.Conv(
        one_of("Add", "Sub")(one_of("Mul", "Div")(var("x"), const("z"), name="scaling"), const("t"), name="shift"),
        const("w"),
        const("b").opt(),
        name="conv",
    )
)
def fold_standardized_input(m: Match, x: Value, z: Array, t: Array, w: Array, b: Array | None) -> Value:
    """Conv(x * z + t; W, b) = Conv(x + t / z; Wz, b), also with padding: zeros are padded after the Add."""
    m.require(
        t.ndim <= w.ndim and linear.per_channel(t, w.ndim, w.shape[1] * m.conv.attr("group")) is not None,
        "the term is not one per channel",
    )
    weight = scaled(m, x, z, w)
    wide = t.astype(np.float64)
    term = m.const(wide * z if m.scaling.op == "Div" else wide / z, like=t)
    bias = m.value("b") if b is not None else None
    return m.op.Conv(m.op[m.shift.op](x, term, like=m.shift), weight, bias, like=m.conv)


_SHIFTED: Final = one_of("Add", "Sub")(var("x"), const("t"), name="shift")


@rewrite(op.Conv(_SHIFTED, const("w"), const("b").opt(), name="conv"))
def fold_shifted_input(m: Match, x: Value, t: Array, w: Array, b: Array | None) -> Value:
    """Conv(x + t; W, b) = Conv(x; W, b + sum Wt), without padding, which is zero behind the sum."""
    return m.op.Conv(x, m.value("w"), shifted(m, x, t, w, b), like=m.conv)


@rewrite(op.Conv(op.Add(var("y"), _SHIFTED, name="sum"), const("w"), const("b").opt(), name="conv"))
def fold_shifted_summand(m: Match, y: Value, x: Value, t: Array, w: Array, b: Array | None) -> Value:
    """Conv(y + (x + t); W, b) = Conv(y + x; W, b + sum Wt), as in global response normalization."""
    return m.op.Conv(m.op.Add(y, x, like=m.sum), m.value("w"), shifted(m, x, t, w, b), like=m.conv)


def shifted(m: Match, x: Value, t: Array, w: Array, b: Array | None) -> Value:
    """Return the bias of a Conv for input x instead of x + t."""
    m.require(linear.unpadded(m.conv), "the padding is not shifted")
    m.require(m.conv.attr("group") == 1, "grouped convolution")
    m.require(not quantized(m, x), "the convolution is quantized")
    m.require(not shifts_formula(x), "it is the bias of a normalization, which runtimes run as one operator")
    dims, channels = m.shape(x), linear.output_channels(m.conv, w)
    m.require(dims is not None and len(dims) == w.ndim and dims[1] == w.shape[1], "the term may widen the input")
    c, bias = linear.per_channel(t, w.ndim, w.shape[1]), linear.bias_of(m.conv, b, channels)
    m.require(c is not None and bias is not None, "the term is not one per channel")
    assert c is not None and bias is not None
    m.require(np.isfinite(c).all(), "the term is not finite")
    more = linear.sum_over_inputs(m.conv, w, c)
    m.require(linear.is_finite(more), "the weights are not finite")
    return m.const(bias + more if m.shift.op == "Add" else bias - more, like=w, hint=m.value("t").name)


@register
class ConvAddFolding(RewritePass):
    """Conv(x; W, b) + z = Conv(x; W, b + z), and - / * likewise; ConvTranspose and Gemm too.

    Applies when: the constant is a single number, or has an element for each output channel ([C,1,1] or [1,C,1,1] for
    images, [N] for Gemm), and the inner value has no other readers. Also a constant factor on the input of a Conv, and
    without padding a constant term of the input or of a summand, as in image standardization.
    Keeps: rank and shape of the result: [C] after a Conv of images is along the width, not the channels.
    Not done: constants along other axes, integers, quantized operators, division by zero, weights that overflow or
    underflow their type; the last factor of a decomposed Gelu, which runtimes fuse (4 % of HuBERT's time).
    """

    # After: separate weights would hide common subexpressions.
    info = PassInfo(
        "conv-add-folding", opt_level=2, after=("common-subexpressions",), ops=("Conv", "ConvTranspose", "Gemm")
    )
    rules = (
        fold_add,
        fold_subtract,
        fold_subtract_from,
        fold_multiply,
        fold_divide,
        fold_scaled_input,
        fold_standardized_input,
        fold_shifted_input,
        fold_shifted_summand,
    )
