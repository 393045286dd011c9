"""BatchNormalization in inference is an affine function of each channel, folded into neighbouring weights."""

from __future__ import annotations

import numpy as np

from onnxopt.analysis.weights import linear
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Match, Pattern, const, one_of, op, quantized, rewrite, var
from onnxopt.rewriting.guards import again, bias_per_channel

STATISTICS = (const("scale"), const("shift"), const("mean"), const("var"))


def batch_norm(x: Pattern) -> Pattern:
    return op.BatchNormalization(x, *STATISTICS, name="bn")


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
    result = linear.batch_norm_affine(scale, shift, mean, var, bn.attr("epsilon", 1e-5))
    m.require(result is not None, "var + epsilon is not positive")
    assert result is not None
    a, c = result
    if scale.dtype == np.float32:
        # Runtimes round the factor to float32 before multiplying. With the same factor, folded weights differ from the
        # original by independent roundings only: up to a third closer.
        a, c = a.astype(np.float32), c.astype(np.float32)
    m.require(linear.is_finite(a) and linear.is_finite(c), "the statistics are not finite")
    return a, c


def scaled(m: Match, node: Node, x: Value, w: Array, b: Array | None, a: Array, c: Array) -> Value:
    """Return the Conv or Gemm of x with outputs multiplied by a, plus c, for each output channel."""
    bias = c if b is None else a * bias_per_channel(m, node, b, a.size) + c
    weight = m.const(linear.scale_outputs(node, w, a), like=w)
    return again(m, node, x, weight, m.const(bias, like=w, hint=m.value("shift").name))


@rewrite(batch_norm(one_of("Conv", "ConvTranspose")(var("x"), const("w"), const("b").opt(), name="conv")))
def fold_conv_bn(
    m: Match, x: Value, w: Array, b: Array | None, scale: Array, shift: Array, mean: Array, var: Array
) -> Value:
    """BatchNormalization(Conv(x; W, b)) = Conv(x; aW, a(b - mean) + shift), a = scale / sqrt(var + eps)."""
    m.require(scale.size == linear.output_channels(m.conv, w), "channel count differs")
    m.require(not quantized(m, x), "the convolution is quantized")
    return scaled(m, m.conv, x, w, b, *affine(m, m.bn, scale, shift, mean, var))


@rewrite(batch_norm(op.Gemm(var("x"), const("w"), const("b").opt(), name="gemm")))
def fold_gemm_bn(
    m: Match, x: Value, w: Array, b: Array | None, scale: Array, shift: Array, mean: Array, var: Array
) -> Value:
    """BatchNormalization(Gemm(x, W, b)) = Gemm(x, aW, a(b - mean) + shift)."""
    m.require(scale.size == linear.output_channels(m.gemm, w), "channel count differs")
    return scaled(m, m.gemm, x, w, b, *affine(m, m.bn, scale, shift, mean, var))


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


@rewrite(one_of("Mul", "Add")(batch_norm(var("x")), const("z"), name="node"))
def fold_after_bn(m: Match, x: Value, scale: Array, shift: Array, mean: Array, var: Array, z: Array) -> Value:
    """BatchNormalization(x; scale, shift) * z + t = BatchNormalization(x; scale z, shift z + t), per channel."""
    affine(m, m.bn, scale, shift, mean, var)
    new_scale, new_shift = _changed(m, x, scale, shift, z)
    return m.op.BatchNormalization(x, new_scale, new_shift, m.value("mean"), m.value("var"), like=m.bn)


@rewrite(
    one_of("Mul", "Add")(
        op.InstanceNormalization(var("x"), const("scale"), const("shift"), name="norm"), const("z"), name="node"
    )
)
def fold_after_instance_norm(m: Match, x: Value, scale: Array, shift: Array, z: Array) -> Value:
    """InstanceNormalization(x; scale, shift) * z + t = InstanceNormalization(x; scale z, shift z + t), per channel.

    PyTorch exports a GroupNorm with one channel per group like this.
    """
    return m.op.InstanceNormalization(x, *_changed(m, x, scale, shift, z), like=m.norm)


def _changed(m: Match, x: Value, scale: Array, shift: Array, z: Array) -> tuple[Value, Value]:
    """Return scale and shift with the constant z of `m.node` folded in."""
    m.require(scale.shape == shift.shape == (scale.size,), "scale and shift are not one number per channel")
    rank = m.rank(x)
    m.require(rank is not None, "the rank of the input is unknown")
    assert rank is not None
    factor = linear.per_channel(z, rank, scale.size)
    m.require(factor is not None, "the constant is not one per channel")
    assert factor is not None
    m.require(np.isfinite(factor).all(), "the constant is not finite")
    product = m.node.op == "Mul"
    new_scale = m.const(scale * factor, like=scale) if product else m.value("scale")
    return new_scale, m.const(shift * factor if product else shift + factor, like=shift)


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
    rules = (fold_conv_bn, fold_gemm_bn, fold_matmul_bn, fold_bn_before, fold_after_bn, fold_after_instance_norm)
