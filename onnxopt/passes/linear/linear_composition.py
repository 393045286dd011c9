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
from onnxopt.proto.element_types import FLOATS, is_float
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Call, Match, const, either, op, quantized, rewrite, var
from onnxopt.rewriting.rule import bias_per_channel


def conv(x: object, w: str, b: str, name: str) -> Call:
    return op.Conv(x, const(w), const(b).opt(), name=name)


_MULTIPLICATIONS: Final = 1 << 34  # about a second


def require_chain(m: Match, made: int, read: int) -> None:
    """Decline unless the second operator reads as many channels as the first makes, which onnx.checker does not
    check."""
    m.require(made == read, "no runtime takes these channels")


def require_finite(m: Match, composed: Array) -> None:
    """Decline for infinite weights: the sign of the inner value would decide, and the composed weights lose it."""
    m.require(linear.is_finite(composed), "the weights are not finite")


def require_cheaper(m: Match, composed: int, apart: int, multiplications: int) -> None:
    """Decline if the composed weights are larger, as for a bottleneck, or expensive to compute."""
    m.require(composed <= apart, "the composed weights are larger, and take more multiplications")
    most = _MULTIPLICATIONS if m.options is None else m.options.max_operations
    m.require(multiplications <= most, "composing the weights takes too many multiplications (max-operations)")


def is_pointwise(node: Node, w: Array, strides: bool = False) -> bool:
    """Whether a Conv has a single tap per channel, no padding, and (unless `strides`) stride 1."""
    return (
        set(w.shape[2:]) <= {1}
        and node.attr("group") == 1
        and not any(node.attr("pads") or ())
        and node.attr("auto_pad") in ("NOTSET", "VALID")
        and (strides or set(node.attr("strides") or [1]) == {1})
    )


def composed_conv(m: Match, like: Node, weight: Array, bias: Array | None, w: Array, **attributes: Any) -> Value:
    """Return the Conv with `weight` in the type of `w`; declines for quantized or infinite weights."""
    x = m.value("x")
    m.require(not quantized(m, x), "the convolutions are quantized")
    require_finite(m, weight)
    bias_value = None if bias is None else m.const(bias, like=w, hint=f"{m.outer.output.name}_bias")
    weight_value = m.const(weight, like=w, hint=f"{m.outer.output.name}_weight")
    result: Value = m.op.Conv(x, weight_value, bias_value, like=like, **attributes)
    return result


@rewrite(conv(conv(var("x"), "w1", "b1", "inner"), "w2", "b2", "outer"))
def compose_pointwise_after(m: Match, x: Value, w1: Array, b1: Array | None, w2: Array, b2: Array | None) -> Value:
    """Conv1x1(Conv(x; W, b); V, c) = Conv(x; V W, V b + c): V mixes the channels that W makes."""
    if w1.ndim != w2.ndim or not is_pointwise(m.outer, w2, strides=True):
        m.skip()
    m.require(m.inner.attr("group") == 1, "grouped convolution")
    strides = m.outer.attr("strides") or [1] * (w1.ndim - 2)
    depends = m.inner.attr("auto_pad") in ("SAME_UPPER", "SAME_LOWER")
    m.require(not depends or set(strides) == {1}, "the padding depends on the stride")
    require_chain(m, w1.shape[0], w2.shape[1])
    mix = w2.reshape(w2.shape[:2]).astype(np.float64)
    require_cheaper(m, prod(w1.shape[1:]) * w2.shape[0], w1.size + w2.size, w1.size * w2.shape[0])
    weight = np.tensordot(mix, w1.astype(np.float64), axes=1)
    bias = None
    if b1 is not None or b2 is not None:
        bias = mix @ bias_per_channel(m, m.inner, b1, w1.shape[0]) + bias_per_channel(m, m.outer, b2, w2.shape[0])
    # floor(floor(n / s) / t) = floor(n / (s t)): every t-th of every s-th position
    inner_strides = m.inner.attr("strides") or [1] * (w1.ndim - 2)
    product = [s * t for s, t in zip(inner_strides, strides)]
    changes = {} if product == list(inner_strides) else {"strides": product}
    return composed_conv(m, m.inner, weight, bias, w1, **changes)


@rewrite(conv(conv(var("x"), "w1", "b1", "inner"), "w2", "b2", "outer"))
def compose_pointwise_before(m: Match, x: Value, w1: Array, b1: Array | None, w2: Array, b2: Array | None) -> Value:
    """Conv(Conv1x1(x; W, b); V, c) = Conv(x; V W, c + sum V b): without padding where there is a b."""
    if w1.ndim != w2.ndim or not is_pointwise(m.inner, w1) or set(w2.shape[2:]) <= {1}:
        m.skip()
    m.require(m.outer.attr("group") == 1, "grouped convolution")
    m.require(b1 is None or not b1.any() or linear.unpadded(m.outer), "the padding is zero, and not the bias")
    require_chain(m, w1.shape[0], w2.shape[1])
    mix = w1.reshape(w1.shape[:2]).astype(np.float64)
    require_cheaper(m, w2.shape[0] * prod(w2.shape[2:]) * w1.shape[1], w1.size + w2.size, w2.size * w1.shape[1])
    weight = np.moveaxis(np.tensordot(w2.astype(np.float64), mix, axes=(1, 0)), -1, 1)
    bias = None
    if b1 is not None or b2 is not None:
        shift = linear.sum_over_inputs(m.outer, w2, bias_per_channel(m, m.inner, b1, w1.shape[0]))
        bias = shift + bias_per_channel(m, m.outer, b2, w2.shape[0])
    return composed_conv(m, m.outer, weight, bias, w1)


def product(m: Match, w1: Array, w2: Array) -> Array:
    """Return W V in float64; declines if larger than both together."""
    m.require(w1.ndim == 2 and w2.ndim == 2, "the weights are no matrices")
    m.require(is_float(w1), "not a floating point product")
    require_chain(m, w1.shape[1], w2.shape[0])
    require_cheaper(m, w1.shape[0] * w2.shape[1], w1.size + w2.size, w1.shape[0] * w2.size)
    result: Array = w1.astype(np.float64) @ w2.astype(np.float64)
    require_finite(m, result)
    return result


_INNER: Final = op.MatMul(var("x"), const("w1"))


@rewrite(op.MatMul(either(_INNER, op.Add(_INNER, const("b1"), name="add")), const("w2"), name="outer"))
def compose_products(m: Match, x: Value, w1: Array, w2: Array, b1: Array | None = None) -> Value:
    """(x W + b) V = x (W V) + b V, b along the columns, or none."""
    m.require(not quantized(m, x), "the products are quantized")
    if b1 is None:
        return m.op.MatMul(x, m.const(product(m, w1, w2), like=w1), like=m.outer)
    rank = m.rank(x)
    m.require(rank is not None and b1.ndim <= rank, "the rank is unknown, or would rise")
    columns = w1.shape[-1]
    # otherwise it may widen the result
    m.require(b1.shape[-1:] == (columns,) and b1.size == columns, "the bias is not one per column")
    weight = product(m, w1, w2)
    bias = b1.reshape(-1).astype(np.float64) @ w2.astype(np.float64)
    scaled = m.op.MatMul(x, m.const(weight, like=w1), like=m.outer)
    return m.op.Add(scaled, m.const(bias, like=w1), like=m.add)


@rewrite(
    op.Gemm(
        op.Gemm(var("x"), const("w1"), const("b1").opt(), name="inner"), const("w2"), const("b2").opt(), name="outer"
    )
)
def compose_gemms(m: Match, x: Value, w1: Array, b1: Array | None, w2: Array, b2: Array | None) -> Value:
    """Gemm(Gemm(x, W, b), V, c) = Gemm(x, W V, b V + c)."""
    m.require(not m.outer.attr("transA"), "the result in between is transposed")
    m.require(m.dtype(x) in FLOATS and not quantized(m, x), "not floating point products")
    first = (w1.T if m.inner.attr("transB") else w1).astype(np.float64) * float(m.inner.attr("alpha"))
    second = (w2.T if m.outer.attr("transB") else w2).astype(np.float64) * float(m.outer.attr("alpha"))
    b, c = (linear.bias_of(m.inner, b1, first.shape[1]), linear.bias_of(m.outer, b2, second.shape[1]))
    m.require(b is not None and c is not None, "a bias is not one per column")
    require_chain(m, first.shape[1], second.shape[0])
    require_cheaper(m, first.shape[0] * second.shape[1], w1.size + w2.size, first.shape[0] * second.size)
    assert b is not None and c is not None
    composed = first @ second
    require_finite(m, composed)
    weight = m.const(composed, like=w1)
    has_bias = b1 is not None or b2 is not None
    bias = m.const(b @ second + c, like=w1, hint=f"{m.outer.output.name}_bias") if has_bias else None
    return m.op.Gemm(x, weight, bias, like=m.inner, transB=None, alpha=None, beta=None)


@register
@dataclass(frozen=True, eq=False, repr=False)
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
    rules = (
        compose_pointwise_after,
        compose_pointwise_before,
        compose_products,
        compose_gemms,
    )
