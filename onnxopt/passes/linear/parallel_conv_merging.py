"""Parallel convolutions of the same input, added up and merged (branches of RepVGG, MobileOne, ACNet)."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from onnxopt.analysis.purity import may_train
from onnxopt.analysis.weights import linear
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Call, Match, const, op, quantized, rewrite, var


class _Window(NamedTuple):
    """The window of a kernel, by axis."""

    kernel: tuple[int, ...]
    begin: tuple[int, ...]  # padding in front
    end: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]


def window(m: Match, conv: Node, w: Array) -> _Window:
    """Return the window of a Conv; declines if the padding depends on the input."""
    n = w.ndim - 2
    m.require(conv.attr("auto_pad") in ("NOTSET", "VALID"), "the padding depends on the input")
    pads = conv.attr("pads") or [0] * (2 * n)
    strides, dilations = conv.attr("strides") or [1] * n, conv.attr("dilations") or [1] * n
    return _Window(w.shape[2:], tuple(pads[:n]), tuple(pads[n:]), tuple(strides), tuple(dilations))


def into(m: Match, w: Array, a: _Window, b: _Window) -> tuple[Array, list[int]]:
    """Return `w` zero-padded to cover both windows, and the padding of the combined window."""
    begin = [max(p, q) for p, q in zip(a.begin, b.begin)]
    end = [max(p, q) for p, q in zip(a.end, b.end)]
    around = [(0, 0), (0, 0)]
    for p, q, low, high, d in zip(a.begin, a.end, begin, end, a.dilations):
        m.require((low - p) % d == 0 and (high - q) % d == 0, "the taps of one kernel fall between those of the other")
        around.append(((low - p) // d, (high - q) // d))
    return np.pad(w.astype(np.float64), around), [*begin, *end]


def merged(m: Match, first: Node, second: Node, arrays: tuple[Array, Array | None, Array, Array | None]) -> Value:
    """Return the Conv equal to first(x) + second(x)."""
    w1, b1, w2, b2 = arrays
    x = m.value("x")
    m.require(not quantized(m, x), "the convolutions are quantized")
    m.require(w1.ndim == w2.ndim and w1.shape[:2] == w2.shape[:2], "the channels differ")
    a, b = window(m, first, w1), window(m, second, w2)
    m.require(a.strides == b.strides and a.dilations == b.dilations, "the strides or dilations differ")
    k1, pads = into(m, w1, a, b)
    k2, _ = into(m, w2, b, a)
    m.require(k1.shape == k2.shape, "the kernels are not aligned")
    m.require(prod(k1.shape[2:]) <= prod(w1.shape[2:]) + prod(w2.shape[2:]), "the kernel that holds both has more taps")
    bias = None
    if b1 is not None or b2 is not None:
        given = [z for z in (b1, b2) if z is not None]
        m.require(all(z.shape == w1.shape[:1] for z in given), "a bias is not one number per channel")
        total = sum(z.astype(np.float64) for z in given)
        bias = m.const(total, like=w1, hint=f"{first.output.name}_bias")
    weight = m.const(k1 + k2, like=w1, hint=f"{first.output.name}_weight")
    kernel = list(k1.shape[2:])
    return m.op.Conv(x, weight, bias, like=first, pads=pads, kernel_shape=kernel, auto_pad=None)


def branch(name: str, w: str, b: str) -> Call:
    return op.Conv(var("x"), const(w), const(b).opt(), name=name)


@rewrite(op.Add(branch("first", "w1", "b1"), branch("second", "w2", "b2")))
def merge_convs(m: Match, x: Value, w1: Array, b1: Array | None, w2: Array, b2: Array | None) -> Value:
    """Conv(x; W, b) + Conv(x; V, c) = Conv(x; W + V, b + c), the smaller kernel with zeros around it."""
    return merged(m, m.first, m.second, (w1, b1, w2, b2))


@rewrite(op.Add(op.Add(var("y"), branch("first", "w1", "b1")), branch("second", "w2", "b2")))
def merge_convs_in_sum(m: Match, y: Value, x: Value, w1: Array, b1: Array | None, w2: Array, b2: Array | None) -> Value:
    """(y + Conv(x; W, b)) + Conv(x; V, c) = y + Conv(x; W + V, b + c)."""
    return m.op.Add(y, merged(m, m.first, m.second, (w1, b1, w2, b2)), like=m.anchor)


def with_identity(m: Match, w: Array, b: Array | None, scale: Array | None, shift: Array | None) -> Value:
    """Return conv(x) + (scale x + shift) as a tap in the middle of the kernel; None is scale 1, or shift 0."""
    conv, x = m.conv, m.value("x")
    m.require(not quantized(m, x), "the convolutions are quantized")
    group = conv.attr("group")
    m.require(w.shape[0] == w.shape[1] * group, "the channel count changes")
    a = window(m, conv, w)
    m.require(set(a.strides) == {1}, "the convolution has strides")
    reach = [d * (k - 1) for d, k in zip(a.dilations, a.kernel)]
    m.require(all(p + q == r for p, q, r in zip(a.begin, a.end, reach)), "the size of the image changes")
    m.require(all(p % d == 0 for p, d in zip(a.begin, a.dilations)), "no tap looks at the position itself")
    middle = tuple(p // d for p, d in zip(a.begin, a.dilations))
    weight = w.astype(np.float64)
    channels = np.arange(w.shape[0])
    factor = np.ones(w.shape[0]) if scale is None else scale
    m.require(factor.size == w.shape[0], "channel count differs")
    weight[(channels, channels % w.shape[1], *middle)] += factor
    bias = m.value("b") if b is not None else None
    if shift is not None:
        bias = m.const(shift + (0 if b is None else b.astype(np.float64)), like=w, hint=f"{conv.output.name}_bias")
    return m.op.Conv(x, m.const(weight, like=w), bias, like=conv)


@rewrite(op.Add(op.Conv(var("x"), const("w"), const("b").opt(), name="conv"), var("x")))
def merge_identity(m: Match, x: Value, w: Array, b: Array | None) -> Value:
    """Conv(x; W, b) + x = Conv(x; W + I, b), I the identity as a kernel."""
    return with_identity(m, w, b, None, None)


@rewrite(
    op.Add(
        op.Conv(var("x"), const("w"), const("b").opt(), name="conv"),
        op.BatchNormalization(var("x"), const("scale"), const("shift"), const("mean"), const("var"), name="bn"),
    )
)
def merge_batch_norm(
    m: Match, x: Value, w: Array, b: Array | None, scale: Array, shift: Array, mean: Array, var: Array
) -> Value:
    """Conv(x; W, b) + BatchNormalization(x) = Conv(x; W + aI, b + c), BatchNormalization(x) = a x + c.

    I is the identity as a kernel.
    """
    m.require(not may_train(m.bn) and m.opset >= 9, "it is in training, or an old form")
    affine = linear.batch_norm_affine(scale, shift, mean, var, m.bn.attr("epsilon", 1e-5))
    m.require(affine is not None, "var + epsilon is not positive")
    assert affine is not None
    m.require(np.isfinite(affine[0]).all() and np.isfinite(affine[1]).all(), "the statistics are not finite")
    return with_identity(m, w, b, *affine)


@register
class ParallelConvMerging(RewritePass):
    """Conv(x; W, b) + Conv(x; V, c) = Conv(x; W + V, b + c); also with a BatchNormalization of x, or x, as a term.

    Applies when: strides, dilations, groups and channels are equal, and the zero-padded kernels cover the same
    positions without more taps than before.
    Not done: padding that depends on the input, quantized convolutions.
    """

    info = PassInfo("parallel-conv-merging", opt_level=3, after=("conv-bn-folding",), ops=("Conv",))
    rules = (merge_convs, merge_convs_in_sum, merge_identity, merge_batch_norm)
