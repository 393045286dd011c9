"""Consecutive linear operators, composed into a single one."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from onnxopt.analysis import linear
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.pipeline import PassInfo, RewritePass, option, register
from onnxopt.proto.element_types import is_float
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Call, Match, const, either, op, quantized, rewrite, var
from onnxopt.rewriting.rule import bias_per_channel


def conv(x: object, w: str, b: str, name: str) -> Call:
    return op.Conv(x, const(w), const(b).opt(), name=name)


_MULTIPLICATIONS: Final = 1 << 34  # about a second


def require_cheaper(m: Match, made: int, read: int, composed: int, apart: int, multiplications: int) -> None:
    """Decline if the composed weights are larger, as for a bottleneck, or expensive to compute; or if the second
    operator reads fewer or more channels than the first makes, which onnx.checker does not check."""
    m.require(made == read, "no runtime takes these channels")
    m.require(composed <= apart, "the composed weights are larger, and take more multiplications")
    most = _MULTIPLICATIONS if m.options is None else m.options.max_operations
    m.require(multiplications <= most, "composing the weights takes too many multiplications (max-operations)")


def require_finite(m: Match, composed: Array) -> None:
    """Decline for infinite weights: the sign of the inner value would decide, and the composed weights lose it."""
    m.require(linear.is_finite(composed), "the weights are not finite")


def strides_of(node: Node, w: Array) -> list[int]:
    return list(node.attr("strides") or [1] * (w.ndim - 2))


def is_pointwise(node: Node, w: Array) -> bool:
    """Whether a Conv has a single tap per channel, and no padding."""
    return {*w.shape[2:]} <= {1} and node.attr("group") == 1 and linear.unpadded(node)


def _composed_bias(m: Match, w1: Array, b1: Array | None, w2: Array, b2: Array | None) -> Value | None:
    """Return V b + c, or None without biases."""
    if b1 is None and b2 is None:
        return None
    shift = linear.sum_over_inputs(m.outer, w2, bias_per_channel(m, m.inner, b1, w1.shape[0]))
    total = shift + bias_per_channel(m, m.outer, b2, w2.shape[0])
    return m.const(total, like=w1, hint=f"{m.outer.output.name}_bias")


@rewrite(conv(conv(var("x"), "w1", "b1", "inner"), "w2", "b2", "outer"))
def compose_convs(m: Match, x: Value, w1: Array, b1: Array | None, w2: Array, b2: Array | None) -> Value:
    """Conv1x1(Conv(x; W, b); V, c) = Conv(x; V W, V b + c): V mixes the channels that W makes.

    Conv(Conv1x1(x; W, b); V, c) = Conv(x; V W, c + sum V b): without padding where there is a b.
    """
    mixes = is_pointwise(m.outer, w2)
    if w1.ndim != w2.ndim or not (mixes or (is_pointwise(m.inner, w1) and {*strides_of(m.inner, w1)} == {1})):
        m.skip()
    node = m.inner if mixes else m.outer
    m.require(node.attr("group") == 1, "grouped convolution")
    m.require(not quantized(m, x), "the convolutions are quantized")
    size = w2.shape[0] * w1.shape[1] * prod((w1 if mixes else w2).shape[2:])
    multiplications = w1.size * w2.shape[0] if mixes else w2.size * w1.shape[1]
    require_cheaper(m, w1.shape[0], w2.shape[1], size, w1.size + w2.size, multiplications)
    first, second = w1.astype(np.float64), w2.astype(np.float64)
    strides = strides_of(m.outer, w2)
    if mixes:
        depends = node.attr("auto_pad") in ("SAME_UPPER", "SAME_LOWER")
        m.require(not depends or {*strides} == {1}, "the padding depends on the stride")
        composed = np.tensordot(second.reshape(w2.shape[:2]), first, axes=1)
        # floor(floor(n / s) / t) = floor(n / (s t)): every t-th of every s-th position
        strides = [s * t for s, t in zip(strides_of(node, w1), strides)]
    else:
        m.require(b1 is None or not b1.any() or linear.unpadded(m.outer), "the padding is zero, and not the bias")
        composed = np.moveaxis(np.tensordot(second, first.reshape(w1.shape[:2]), axes=(1, 0)), -1, 1)
    require_finite(m, composed)
    weight = m.const(composed, like=w1, hint=f"{m.outer.output.name}_weight")
    bias = _composed_bias(m, w1, b1, w2, b2)
    changes: dict[str, Any] = {} if strides == strides_of(node, w1) else {"strides": strides}
    made: Value = m.op.Conv(x, weight, bias, like=node, **changes)
    return made


_INNER: Final = op.MatMul(var("x"), const("w1"), name="inner")
_GEMM: Final = op.Gemm(var("x"), const("w1"), const("b1").opt(), name="inner")


@rewrite(
    either(
        op.MatMul(either(_INNER, op.Add(_INNER, const("b1"), name="add")), const("w2"), name="outer"),
        op.Gemm(_GEMM, const("w2"), const("b2").opt(), name="outer"),
    )
)
def compose_products(
    m: Match, x: Value, w1: Array, w2: Array, b1: Array | None = None, b2: Array | None = None
) -> Value:
    """(x W + b) V + c = x (W V) + (b V + c), b and c along the columns, or none."""
    m.require(is_float(w1) and not quantized(m, x), "not floating point products")
    m.require(w1.ndim == w2.ndim == 2, "the weights are no matrices")
    m.require(not m.outer.attr("transA"), "the result in between is transposed")
    first, second = matrix(m.inner, w1), matrix(m.outer, w2)
    columns = first.shape[1]
    if b1 is not None and m.outer.op == "MatMul":
        m.require(b1.ndim <= (m.rank(x) or 0), "the rank is unknown, or would rise")
        # otherwise it may widen the result
        m.require(b1.shape[-1:] == (columns,) and b1.size == columns, "the bias is not one per column")
    size, rows = first.shape[0] * second.shape[1], first.shape[0]
    require_cheaper(m, columns, second.shape[0], size, w1.size + w2.size, rows * second.size)
    composed = first @ second
    require_finite(m, composed)
    weight = m.const(composed, like=w1)
    if m.outer.op == "Gemm":
        total = bias_per_channel(m, m.inner, b1, columns) @ second
        total = total + bias_per_channel(m, m.outer, b2, second.shape[1])
        has_bias = b1 is not None or b2 is not None
        bias = m.const(total, like=w1, hint=f"{m.outer.output.name}_bias") if has_bias else None
        return m.op.Gemm(x, weight, bias, like=m.inner, transB=None, alpha=None, beta=None)
    made = m.op.MatMul(x, weight, like=m.outer)
    if b1 is None:
        return made
    return m.op.Add(made, m.const(b1.reshape(-1).astype(np.float64) @ second, like=w1), like=m.add)


def matrix(product: Node, w: Array) -> Array:
    """Return the matrix by which a MatMul or Gemm multiplies, in float64."""
    return (w.T if product.attr("transB") else w).astype(np.float64) * float(product.attr("alpha", 1.0))


@register
@dataclass(eq=False, repr=False)
class LinearComposition(RewritePass):
    """Conv1x1(Conv(x; W)) = Conv(x; V W), (x W) V = x (W V): merges consecutive linear operators.

    Applies when: the inner value has no other readers, and the composed weights are no larger than both, so that
    neither bytes nor multiplications increase: bottlenecks stay.
    Keeps: inner biases before padding, where the composition is not linear.
    Not done: groups, quantized operators.
    """

    info = PassInfo(
        "linear-composition", opt_level=3, after=("conv-bn-folding", "conv-add-folding"), ops=("Conv", "Gemm", "MatMul")
    )
    max_operations: int = option(_MULTIPLICATIONS, "one composition may take this many multiplications")
    rules = (compose_convs, compose_products)
