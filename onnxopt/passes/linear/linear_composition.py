"""Consecutive linear operators, composed into a single one."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from onnxopt.analysis import linear
from onnxopt.graph import Value
from onnxopt.pipeline import PassInfo, RewritePass, option, register
from onnxopt.proto.element_types import is_float
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Call, Match, const, op, quantized, rewrite, var
from onnxopt.rewriting.rule import bias_per_channel


def conv(x: object, w: str, b: str, name: str) -> Call:
    return op.Conv(x, const(w), const(b).opt(), name=name)


_MULTIPLICATIONS: Final = 1 << 34  # about a second


# Infinite weights stay: the sign of the inner value would decide, and composed weights lose it.
_INFINITE: Final = "the weights are not finite"


def require_cheaper(m: Match, made: int, read: int, composed: int, apart: int, multiplications: int) -> None:
    """Decline if the composed weights are larger, as for a bottleneck, or expensive to compute, or if the second
    operator reads fewer or more channels than the first makes, which onnx.checker does not check."""
    m.require(made == read, "no runtime takes these channels")
    m.require(composed <= apart, "the composed weights are larger, and take more multiplications")
    most = _MULTIPLICATIONS if m.options is None else m.options.max_operations
    m.require(multiplications <= most, "composing the weights takes too many multiplications (max-operations)")


@rewrite(conv(conv(var("x"), "w1", "b1", "inner"), "w2", "b2", "outer"))
def compose_pointwise(m: Match, x: Value, w1: Array, b1: Array | None, w2: Array, b2: Array | None) -> Value:
    """Conv1x1(Conv(x; W, b); V, c) = Conv(x; V W, V b + c): V mixes the channels that W makes."""
    if w1.ndim != w2.ndim or not {*w2.shape[2:]} <= {1} or m.outer.attr("group") != 1 or not linear.unpadded(m.outer):
        m.skip()
    m.require(m.inner.attr("group") == 1, "grouped convolution")
    m.require(not quantized(m, x), "the convolutions are quantized")
    strides = m.outer.attr("strides") or [1] * (w1.ndim - 2)
    depends = m.inner.attr("auto_pad") in ("SAME_UPPER", "SAME_LOWER")
    m.require(not depends or set(strides) == {1}, "the padding depends on the stride")
    size = prod(w1.shape[1:]) * w2.shape[0]
    require_cheaper(m, w1.shape[0], w2.shape[1], size, w1.size + w2.size, w1.size * w2.shape[0])
    mix, bias = w2.reshape(w2.shape[:2]).astype(np.float64), None
    composed = np.tensordot(mix, w1.astype(np.float64), axes=1)
    m.require(linear.is_finite(composed), _INFINITE)
    if b1 is not None or b2 is not None:
        total = mix @ bias_per_channel(m, m.inner, b1, w1.shape[0]) + bias_per_channel(m, m.outer, b2, w2.shape[0])
        bias = m.const(total, like=w1, hint=f"{m.outer.output.name}_bias")
    weight = m.const(composed, like=w1, hint=f"{m.outer.output.name}_weight")
    # floor(floor(n / s) / t) = floor(n / (s t)): every t-th of every s-th position
    inner_strides = m.inner.attr("strides") or [1] * (w1.ndim - 2)
    product = [s * t for s, t in zip(inner_strides, strides)]
    changes: dict[str, Any] = {} if product == list(inner_strides) else {"strides": product}
    made: Value = m.op.Conv(x, weight, bias, like=m.inner, **changes)
    return made


@rewrite(op.MatMul(op.MatMul(var("x"), const("w1")), const("w2"), name="outer"))
def compose_products(m: Match, x: Value, w1: Array, w2: Array) -> Value:
    """(x W) V = x (W V)."""
    m.require(not quantized(m, x), "the products are quantized")
    m.require(w1.ndim == 2 and w2.ndim == 2, "the weights are no matrices")
    m.require(is_float(w1), "not a floating point product")
    size = w1.shape[0] * w2.shape[1]
    require_cheaper(m, w1.shape[1], w2.shape[0], size, w1.size + w2.size, w1.shape[0] * w2.size)
    weight = w1.astype(np.float64) @ w2.astype(np.float64)
    m.require(linear.is_finite(weight), _INFINITE)
    return m.op.MatMul(x, m.const(weight, like=w1), like=m.outer)


@register
@dataclass(frozen=True, eq=False, repr=False)
class LinearComposition(RewritePass):
    """Conv1x1(Conv(x; W)) = Conv(x; V W), (x W) V = x (W V): merges consecutive linear operators.

    Applies when: the inner value has no other readers, and the composed weights are no larger than both, so that
    neither bytes nor multiplications increase: bottlenecks stay.
    Not done: groups, quantized operators; a pointwise Conv in front, Gemms.
    """

    info = PassInfo(
        "linear-composition", opt_level=3, after=("conv-bn-folding", "conv-add-folding"), ops=("Conv", "MatMul")
    )
    max_operations: int = option(_MULTIPLICATIONS, "one composition may take this many multiplications")
    rules = (compose_pointwise, compose_products)
