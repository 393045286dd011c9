"""Decomposed Softmax and LogSoftmax become standard operators."""

from __future__ import annotations

from typing import Final

from onnxopt.graph import Value
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.element_types import FLOATS
from onnxopt.rewriting import Match, either, op, rewrite, var
from onnxopt.rewriting.forms import listed_axes

_MAXIMUM: Final = op.ReduceMax(var("x"), ..., name="largest")
_BELOW: Final = op.Sub(var("x"), _MAXIMUM, name="below")
_POWERS: Final = op.Exp(either(_BELOW, var("x")), name="powers")


@rewrite(op.Div(_POWERS, op.ReduceSum(_POWERS, ..., name="sum")))
def softmax(m: Match, x: Value) -> Value:
    """exp(x - max) / sum(exp(x - max)) = Softmax(x), which also is finite where exp(x) is not."""
    return m.op.Softmax(x, axis=one_axis(m, x))


@rewrite(op.Softmax(_BELOW, name="softmax"))
def softmax_of_differences(m: Match, x: Value) -> Value:
    """Softmax(x - max(x)) = Softmax(x), which takes the largest off itself."""
    rank, axis = m.rank(x), int(m.softmax.attr("axis"))
    axes = listed_axes(m.largest) or []
    m.require(rank and m.largest.keeps_dims and len(axes) == 1, "the largest along all axes, or the dims go")
    m.require(axes[0] % (rank or 1) == axis % (rank or 1), "along another axis")
    m.require(
        m.opset >= 13 or axis % (rank or 1) == (rank or 0) - 1, "before opset 13 a Softmax is over all axes from one on"
    )
    return m.op.Softmax(x, axis=axis)


_LOG_OF_SUM: Final = op.Log(op.ReduceSum(op.Exp(_BELOW), ..., name="sum"))


@rewrite(either(op.Sub(_BELOW, _LOG_OF_SUM), op.Sub(var("x"), op.Add(_LOG_OF_SUM, _MAXIMUM))))
def log_softmax_of_sum(m: Match, x: Value) -> Value:
    """(x - max) - log(sum(exp(x - max))) = x - (log(sum(exp(x - max))) + max) = LogSoftmax(x)."""
    return m.op.LogSoftmax(x, axis=one_axis(m, x))


def one_axis(m: Match, x: Value) -> int:
    """Return the single axis reduced and kept; before opset 13 it must be the last, as Softmax merges later axes."""
    rank = m.rank(x)
    m.require(rank and m.dtype(x) in FLOATS, "the rank is unknown, or not floating point")
    found = set()
    for node in (m.sum, *([m.largest] if "largest" in m.bindings.nodes else [])):
        axes = listed_axes(node) or []
        m.require(len(axes) == 1, "not over one axis")
        m.require(node.keeps_dims, "the dims are not kept")
        found.add(axes[0] % (rank or 1))
    m.require(len(found) == 1, "not over one axis")
    axis = found.pop()
    m.require(m.opset >= 13 or axis == (rank or 0) - 1, "before opset 13 a Softmax is over all axes from one on")
    return axis if m.opset < 13 or axis < (rank or 0) - 1 else -1


@rewrite(op.Log(op.Softmax(var("x"), name="softmax")))
def log_softmax(m: Match, x: Value) -> Value:
    """log(Softmax(x)) = LogSoftmax(x), which also is finite where the probability is too small for a number."""
    return m.op.LogSoftmax(x, axis=m.softmax.attr("axis"))


@register
class FuseSoftmax(RewritePass):
    """exp(x - max) / sum(exp(x - max)) = Softmax(x); log(Softmax(x)) = x - max - log(sum(exp(x - max))) = LogSoftmax.

    Applies when: a single axis is reduced, and inner values have no other readers.
    Not done: before opset 13 along another axis than the last, as Softmax then covers all axes from there on.
    """

    # Before: otherwise a factor of the formula could be folded into weights.
    info = PassInfo(
        "fuse-softmax",
        opt_level=3,
        after=("simplify-arithmetic",),
        before=("conv-add-folding", "matmul-scale-folding", "scale-propagation"),
        ops=("Exp", "Softmax"),
    )
    rules = (softmax, softmax_of_differences, log_softmax_of_sum, log_softmax)
