"""Additions and normalizations folded into the weights of Conv, ConvTranspose and Gemm."""

from __future__ import annotations

from typing import Final

import numpy as np

from onnxopt.analysis import linear
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.element_types import FLOATS
from onnxopt.proto.messages import Array
from onnxopt.rewriting import (
    Call,
    Match,
    Pattern,
    const,
    either,
    ends_formula,
    one_of,
    op,
    quantized,
    rewrite,
    shifts_formula,
    var,
)
from onnxopt.rewriting.rule import FORMULA, again, bias_per_channel


def linear_call() -> Call:
    """Return the pattern of an operator with constant weights per output channel."""
    return one_of("Conv", "ConvTranspose", "Gemm")(var("x"), const("w"), const("b").opt(), name="linear")


def factors(m: Match, z: Array, w: Array) -> Array:
    """Return `z` as a float64 for each output channel; declines if it does not broadcast along channels."""
    result = m.known(
        linear.per_channel(z, w.ndim, linear.output_channels(m.linear, w)), "the constant is not one per channel"
    )
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


@rewrite(
    either(op.Add(linear_call(), const("z")), op.Sub(linear_call(), const("z")), op.Sub(const("z"), linear_call()))
)
def fold_add(m: Match, x: Value, w: Array, b: Array | None, z: Array) -> Value:
    """Conv(x; W, b) + z = Conv(x; W, b + z), z - Conv(x; W, b) = Conv(x; -W, z - b)."""
    c = factors(m, z, w)
    if m.anchor.op == "Sub" and m.anchor.inputs[0] is m.value("z"):
        return affine_of(m, w, b, np.full(c.shape, -1.0), c)
    return affine_of(m, w, b, None, c if m.anchor.op == "Add" else -c)


@rewrite(either(op.Mul(linear_call(), const("z")), op.Div(linear_call(), const("z"))))
def fold_multiply(m: Match, x: Value, w: Array, b: Array | None, z: Array) -> Value:
    """Conv(x; W, b) * z = Conv(x; Wz, bz); likewise /."""
    a, divides = factors(m, z, w), m.anchor.op == "Div"
    m.require(not divides or a.all(), "division by zero")
    return affine_of(m, w, b, 1.0 / a if divides else a, None)


_SCALED: Final = one_of("Mul", "Div")(var("x"), const("z"), name="scaling")
_SCALED_AND_SHIFTED: Final = one_of("Add", "Sub")(_SCALED, const("t"), name="shift")


@rewrite(op.Conv(either(_SCALED, _SCALED_AND_SHIFTED), const("w"), const("b").opt(), name="conv"))
def fold_scaled_input(m: Match, x: Value, z: Array, w: Array, b: Array | None, t: Array | None = None) -> Value:
    """Conv(x * z; W, b) = Conv(x; Wz, b), Conv(x * z + t; W, b) = Conv(x + t / z; Wz, b).

    Also with padding: zero stays zero, and zeros are padded after the Add.
    """
    if t is not None:
        per_channel = t.ndim <= w.ndim and linear.per_channel(t, w.ndim, w.shape[1] * m.conv.attr("group")) is not None
        m.require(per_channel, "the term is not one per channel")
    weight, bias = scaled(m, x, z, w), m.value("b") if b is not None else None
    if t is not None:
        wide = t.astype(np.float64)
        term = m.const(wide * z if m.scaling.op == "Div" else wide / z, like=t)
        x = m.op[m.shift.op](x, term, like=m.shift)
    return m.op.Conv(x, weight, bias, like=m.conv)


def scaled(m: Match, x: Value, z: Array, w: Array) -> Value:
    """Return weights for input x instead of x * z, or x / z."""
    m.require(not ends_formula(x, z), FORMULA)
    dims, group = m.shape(x), m.conv.attr("group")
    m.require(dims is not None and len(dims) == w.ndim, "the rank of the input is unknown or differs")
    m.require(not quantized(m, x), "the convolution is quantized")
    channels = w.shape[1] * group
    m.require(z.size == 1 or (dims or ())[1] == channels, "the constant may widen the input")
    a = m.known(linear.per_channel(z, w.ndim, 1 if z.size == 1 else channels), "the constant is not one per channel")
    m.require(z.size == 1 or group == 1, "grouped convolution")
    m.require(np.isfinite(a).all() and a.all(), "the constant is zero or not finite")
    factor = 1.0 / a if m.scaling.op == "Div" else a
    weight = w.astype(np.float64) * factor[0] if z.size == 1 else linear.scale_inputs(m.conv, w, factor)
    return m.const(weight, like=w)


_SHIFTED: Final = one_of("Add", "Sub")(var("x"), const("t"), name="shift")


@rewrite(op.Conv(either(op.Add(var("y"), _SHIFTED, name="sum"), _SHIFTED), const("w"), const("b").opt(), name="conv"))
def fold_shifted_input(m: Match, x: Value, t: Array, w: Array, b: Array | None, y: Value | None = None) -> Value:
    """Conv(x + t; W, b) = Conv(x; W, b + sum Wt), without padding, which is zero behind the sum.

    Likewise Conv(y + (x + t); W, b), as in global response normalization.
    """
    m.require(linear.unpadded(m.conv), "the padding is not shifted")
    m.require(m.conv.attr("group") == 1, "grouped convolution")
    m.require(not quantized(m, x), "the convolution is quantized")
    m.require(not shifts_formula(x), "it is the bias of a normalization, which runtimes run as one operator")
    dims, channels = m.shape(x), linear.output_channels(m.conv, w)
    m.require(dims is not None and len(dims) == w.ndim and dims[1] == w.shape[1], "the term may widen the input")
    c = m.known(linear.per_channel(t, w.ndim, w.shape[1]), "the term is not one per channel")
    m.require(np.isfinite(c).all(), "the term is not finite")
    more, bias = linear.sum_over_inputs(m.conv, w, c), bias_per_channel(m, m.conv, b, channels)
    m.require(linear.is_finite(more), "the weights are not finite")
    total = m.const(bias + more if m.shift.op == "Add" else bias - more, like=w, hint=m.value("t").name)
    return m.op.Conv(x if y is None else m.op.Add(y, x, like=m.sum), m.value("w"), total, like=m.conv)


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
    rules = (fold_add, fold_multiply, fold_scaled_input, fold_shifted_input)


def batch_norm(x: Pattern) -> Pattern:
    return op.BatchNormalization(x, const("scale"), const("shift"), const("mean"), const("var"), name="bn")


def affine(m: Match, bn: Node, scale: Array, shift: Array, mean: Array, var: Array) -> tuple[Array, Array]:
    """Return (a, c) of y = a x + c for each channel, float32 or float64; declines for BatchNormalization in
    training."""
    opset = m.opset
    m.require(not bn.attr("training_mode", 0), "training_mode is set")
    if opset < 14:
        m.require(opset >= 7 or bn.attr("is_test", 0), "is_test is not set")
        m.require(opset >= 9 or bn.attr("spatial", 1), "the statistics are not per channel (spatial = 0)")
        m.require(len(bn.outputs) == 1, "the training outputs are there")
    vectors = scale.ndim == 1 and scale.shape == shift.shape == mean.shape == var.shape
    m.require(vectors, "the statistics are no vectors of one length")
    result = m.known(
        linear.batch_norm_affine(scale, shift, mean, var, bn.attr("epsilon", 1e-5)), "var + epsilon is not positive"
    )
    a, c = result
    if scale.dtype == np.float32:
        # Runtimes round the factor to float32 before multiplying. With the same factor, folded weights differ from the
        # original by independent roundings only: up to a third closer.
        a, c = a.astype(np.float32), c.astype(np.float32)
    m.require(linear.is_finite(a) and linear.is_finite(c), "the statistics are not finite")
    return a, c


@rewrite(batch_norm(linear_call()))
def fold_conv_bn(
    m: Match, x: Value, w: Array, b: Array | None, scale: Array, shift: Array, mean: Array, var: Array
) -> Value:
    """BatchNormalization(Conv(x; W, b)) = Conv(x; aW, a(b - mean) + shift), a = scale / sqrt(var + eps); also Gemm."""
    m.require(scale.size == linear.output_channels(m.linear, w), "channel count differs")
    m.require(m.linear.op == "Gemm" or not quantized(m, x), "the convolution is quantized")
    a, c = affine(m, m.bn, scale, shift, mean, var)
    bias = c if b is None else a * bias_per_channel(m, m.linear, b, a.size) + c
    weight = m.const(linear.scale_outputs(m.linear, w, a), like=w)
    return again(m, m.linear, x, weight, m.const(bias, like=w, hint=m.value("shift").name))


@rewrite(batch_norm(op.MatMul(var("x"), const("w"), name="matmul")))
def fold_matmul_bn(m: Match, x: Value, w: Array, scale: Array, shift: Array, mean: Array, var: Array) -> Value:
    """BatchNormalization(x W) = Gemm(x, aW, shift - a mean), for matrices."""
    m.require(w.ndim == 2 and m.rank(x) == 2, "not matrices")
    m.require(scale.size == w.shape[1], "channel count differs")
    a, c = affine(m, m.bn, scale, shift, mean, var)
    weight = m.const(w.astype(np.float64) * a, like=w)
    return m.op.Gemm(x, weight, m.const(c, like=w, hint=m.value("shift").name))


@rewrite(one_of("Conv", "Gemm")(batch_norm(var("x")), const("w"), const("b").opt(), name="linear"))
def fold_bn_before(
    m: Match, x: Value, w: Array, b: Array | None, scale: Array, shift: Array, mean: Array, var: Array
) -> Value:
    """Conv(BatchNormalization(x); W, b) = Conv(x; Wa, b + sum Wc), y = a x + c, without padding; Gemm likewise."""
    node = m.linear
    m.require(linear.unpadded(node), "the padding is not normalised")
    m.require(node.op == "Gemm" or node.attr("group") == 1, "grouped convolution")
    m.require(not node.attr("transA", 0), "x is transposed")
    a, c = affine(m, m.bn, scale, shift, mean, var)
    inputs = w.shape[1] if node.op == "Conv" or node.attr("transB") else w.shape[0]
    m.require(a.size == inputs, "channel count differs")
    bias = bias_per_channel(m, node, b, linear.output_channels(node, w))
    shift_of_sum = linear.sum_over_inputs(node, w, c)
    m.require(linear.is_finite(shift_of_sum), "the weights are not finite")
    weight = m.const(linear.scale_inputs(node, w, a), like=w)
    return again(m, node, x, weight, m.const(bias + shift_of_sum, like=w, hint=m.value("shift").name))


_INSTANCE_NORM: Final = op.InstanceNormalization(var("x"), const("scale"), const("shift"), name="norm")


@rewrite(one_of("Mul", "Add")(either(batch_norm(var("x")), _INSTANCE_NORM), const("z"), name="node"))
def fold_after_norm(
    m: Match, x: Value, scale: Array, shift: Array, z: Array, mean: Array | None = None, var: Array | None = None
) -> Value:
    """BatchNormalization(x; scale, shift) * z + t = BatchNormalization(x; scale z, shift z + t), per channel.

    Likewise InstanceNormalization: PyTorch exports a GroupNorm with one channel per group like this.
    """
    if mean is not None and var is not None:
        affine(m, m.bn, scale, shift, mean, var)
    m.require(scale.shape == shift.shape == (scale.size,), "scale and shift are not one number per channel")
    rank = m.known(m.rank(x), "the rank of the input is unknown")
    factor = m.known(linear.per_channel(z, rank, scale.size), "the constant is not one per channel")
    m.require(np.isfinite(factor).all(), "the constant is not finite")
    product = m.node.op == "Mul"
    new_scale = m.const(scale * factor, like=scale) if product else m.value("scale")
    new_shift = m.const(shift * factor if product else shift + factor, like=shift)
    if mean is None:
        return m.op.InstanceNormalization(x, new_scale, new_shift, like=m.norm)
    return m.op.BatchNormalization(x, new_scale, new_shift, m.value("mean"), m.value("var"), like=m.bn)


@register
class ConvBnFolding(RewritePass):
    """BatchNormalization(Conv(x; W, b)) = Conv(x; aW, a(b - mean) + shift), a = scale / sqrt(var + eps).

    Applies when: the normalization is in inference mode, all parameters are constant, and the inner value has no other
    readers. Conv and ConvTranspose with groups, Gemm, MatMul; also a BatchNormalization before a Conv without padding
    or a Gemm, and constants behind a remaining BatchNormalization or InstanceNormalization. A decomposed
    BatchNormalization (Sub, Mul, Div, Add) is folded by `conv-add-folding`.
    Keeps: shared weights (the fold makes a copy); the type of the weights: computed in float64, rounded once.
    Not done: training mode, spatial = 0, quantized convolutions, weights that overflow or underflow their type.
    """

    # After: separate weights would hide common subexpressions.
    info = PassInfo(
        "conv-bn-folding",
        opt_level=2,
        after=("common-subexpressions",),
        ops=("BatchNormalization", "InstanceNormalization"),
    )
    rules = (fold_conv_bn, fold_matmul_bn, fold_bn_before, fold_after_norm)
