"""Zeros put around an image in front of an operator that can pad by itself."""

from __future__ import annotations

from typing import Final

import numpy as np

from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.protos import FLOATS, Array
from onnxopt.rewriting import Call, Match, const, only_read_by, op, rewrite, var
from onnxopt.rewriting.forms import operands

_NONNEGATIVE: Final = ("Abs", "Exp", "HardSigmoid", "Relu", "Sigmoid", "Softmax", "Softplus")


def padded() -> Call:
    return op.Pad(var("x"), const("pads"), const("value").opt(), const("axes").opt(), name="pad", shared=True)


def together(m: Match, node: Node, x: Value, pads: Array, axes: Array | None) -> list[int]:
    """Pads of `node` and of the Pad in front of it, [begins, ends]; declines where the Pad does more than that."""
    only_read_by(m, m.pad, node.op)
    m.require(m.pad.attr("mode") in ("constant", b"constant"), "the border is not of one value")
    m.require(node.attr("auto_pad") in ("NOTSET", b"NOTSET", "VALID", b"VALID"), "the padding depends on the input")
    rank = m.rank(x)
    m.require(rank is not None and rank > 2, "the rank is unknown")
    n = rank or 0
    full = np.zeros((2, n), np.int64)
    full[:, slice(None) if axes is None else axes % n] = pads.reshape(2, -1)
    m.require(not full[:, :2].any(), "batch or channels are padded")
    m.require((full >= 0).all(), "negative pads cut off")
    own = np.array(node.attr("pads") or [0] * (2 * n - 4), np.int64)
    m.require(
        node.attr("auto_pad") in ("NOTSET", b"NOTSET") or not own.any(), "pads beside auto_pad, which overrules them"
    )
    return [int(p) for p in own + full[:, 2:].reshape(-1)]


@rewrite(op.Conv(padded(), var("w"), var("b").opt(), name="conv"))
def pad_of_conv(
    m: Match, x: Value, pads: Array, value: Array | None, axes: Array | None, w: Value, b: Value | None
) -> Value:
    """Conv(Pad(x, p)) = Conv(x), pads larger by p."""
    m.require(value is None or not value.any(), "the border is not zero")
    return m.op.Conv(x, w, b, like=m.conv, pads=together(m, m.conv, x, pads, axes), auto_pad=None)


@rewrite(op.AveragePool(padded(), name="pool"))
def pad_of_average(m: Match, x: Value, pads: Array, value: Array | None, axes: Array | None) -> Value:
    """AveragePool(Pad(x, p)) = AveragePool(x), pads larger by p, which count."""
    m.require(value is None or not value.any(), "the border is not zero")
    m.require(m.opset >= 7, "padding never counts before opset 7")
    m.require(
        m.pool.attr("count_include_pad") or not any(m.pool.attr("pads") or ()), "padding of its own does not count"
    )
    return m.op.AveragePool(x, like=m.pool, pads=_pooled(m, x, pads, axes), count_include_pad=1, auto_pad=None)


@rewrite(op.MaxPool(padded(), name="pool"))
def pad_of_max(m: Match, x: Value, pads: Array, value: Array | None, axes: Array | None) -> Value:
    """MaxPool(Pad(x, p, -inf)) = MaxPool(x), pads larger by p: it pads with what never is the largest. So are zeros
    around what is not negative, as each window sees some of that."""
    least = value is not None and value.dtype.kind == "f" and np.isneginf(value).all()
    zero = (value is None or not value.any()) and m.dtype(x) in FLOATS
    m.require(least or (zero and _is_nonnegative(x)), "the border may be the largest")
    dims, dilations = (m.shape(x) or ())[2:], m.pool.attr("dilations") or ()
    m.require(
        all(d == 1 or (isinstance(n, int) and n >= d) for n, d in zip(dims, dilations)),
        "the taps of a window may all be in the border, whose largest is the lowest number then",
    )
    return m.op.MaxPool(x, like=m.pool, pads=_pooled(m, x, pads, axes), auto_pad=None)


def _is_nonnegative(x: Value) -> bool:
    maker = x.producer
    if maker is None or maker.has_references:
        return False
    if maker.op == "Clip":
        low, high = [*operands(maker), None, None][1:3]
        return _is_bound(low) and (high is None or _is_bound(high))  # what is below both is the higher one
    return maker.op in _NONNEGATIVE


def _is_bound(bound: Value | None) -> bool:
    return bound is not None and bound.constant and bool((bound.array >= 0).all())


def _pooled(m: Match, x: Value, pads: Array, axes: Array | None) -> list[int]:
    total = together(m, m.pool, x, pads, axes)
    kernel = list(m.pool.attr("kernel_shape"))
    m.require(not m.pool.attr("ceil_mode", 0), "windows that start in the border are counted otherwise (ceil_mode)")
    m.require(all(p < k for p, k in zip(total, kernel * 2)), "runtimes refuse pads as large as the window")
    m.require(0 not in (m.shape(x) or ())[2:], "runtimes pool no image that is nothing but border")
    return total


@register
class PadFolding(RewritePass):
    """Conv(Pad(x, p)) = Conv(x), pads larger by p; AveragePool that counts its padding, and MaxPool of -inf, likewise;
    MaxPool of zeros around what is not negative.

    Applies when: the border is constant, zero (for MaxPool -inf), along spatial axes only, and nobody else reads it.
    Keeps: borders that reflect or repeat, cut off, or widen channels; MaxPool over zeros beside negative numbers.
    Not done: padding that depends on the input (auto_pad), ceil_mode; a MaxPool whose dilated window may have all
    taps in the border. An image of unknown size is taken for one that is not empty: runtimes pool no other.
    """

    info = PassInfo("pad-folding", opt_level=2)
    rules = (pad_of_conv, pad_of_average, pad_of_max)
