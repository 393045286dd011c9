"""Convolutions over an axis that is put in for them, and taken out behind them."""

from __future__ import annotations

from typing import Final

from onnxopt.analysis.shapes.sizes import order_of
from onnxopt.graph import Value
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.protos import Array
from onnxopt.rewriting import Match, const, op, rewrite, var

_AXES: Final = const("put")
_CONV: Final = (const("w"), var("b").opt())


@rewrite(op.Squeeze(op.Conv(op.Unsqueeze(var("x"), _AXES, shared=True), *_CONV, name="conv"), const("taken")))
def conv_over_one(m: Match, x: Value, put: Array, w: Array, b: Value | None, taken: Array) -> Value:
    """Squeeze(Conv(Unsqueeze(x, i), w), i) = Conv(x, Squeeze(w, i))."""
    m.require(put.size == 1, "several axes are put in")
    return _conv(m, x, int(put.item()) % w.ndim, w, b, taken)


@rewrite(
    op.Squeeze(
        op.Conv(
            op.Transpose(op.Unsqueeze(var("x"), _AXES, shared=True), name="turned", shared=True), *_CONV, name="conv"
        ),
        const("taken"),
    )
)
def conv_over_turned(m: Match, x: Value, put: Array, w: Array, b: Value | None, taken: Array) -> Value:
    """Squeeze(Conv(Transpose(Unsqueeze(x, i), p), w), j) = Conv(Transpose(x, p without i), Squeeze(w, j)), p[j] = i."""
    m.require(put.size == 1, "several axes are put in")
    axis, perm = int(put.item()) % w.ndim, order_of(m.turned, w.ndim)
    rest = [p - (p > axis) for p in perm if p != axis]
    turned = m.op.Transpose(x, perm=rest) if rest != sorted(rest) else x
    return _conv(m, turned, perm.index(axis), w, b, taken)


def _conv(m: Match, x: Value, axis: int, w: Array, b: Value | None, taken: Array) -> Value:
    """The Conv of `x`, which has the axis no more."""
    spatial, i = w.ndim - 2, axis - 2
    m.require(taken.size == 1 and axis == taken.item() % w.ndim, "another axis is taken out")
    m.require(i >= 0 and spatial > 1, "it is batch, channels or the only axis of the window")
    m.require(w.shape[axis] == 1, "the window is wider than the axis")
    pads = m.conv.attr("pads") or [0] * (2 * spatial)
    m.require(pads[i] == pads[i + spatial] == 0, "the axis is padded")
    m.require(len(m.value("w").users) == 1, "the weights are used elsewhere, and would be stored twice")

    def rest(name: str) -> list[int] | None:
        given: list[int] | None = m.conv.attr(name)
        return [n for k, n in enumerate(given) if k % spatial != i] if given else None

    return m.op.Conv(
        x,
        m.const(w.squeeze(axis), like=w),
        b,
        like=m.conv,
        kernel_shape=rest("kernel_shape"),
        strides=rest("strides"),
        dilations=rest("dilations"),
        pads=rest("pads"),
    )


@register
class ConvAxes(RewritePass):
    """Squeeze(Conv(Unsqueeze(x, i), w), i) = Conv(x, Squeeze(w, i)): TensorFlow writes a convolution along one axis as
    one over images of one row, maybe turned in between.

    Applies when: the window has one tap along the axis, which is not padded.
    Keeps: weights that are used elsewhere, or quantized.
    """

    info = PassInfo("conv-axes", opt_level=2, ops=("Conv",))
    rules = (conv_over_one, conv_over_turned)
