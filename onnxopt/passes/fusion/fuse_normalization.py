"""Normalizations and Softmax as a single operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import linear, types
from onnxopt.analysis.constants import repeated
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.pipeline import PassInfo, RewritePass, option, register
from onnxopt.proto.element_types import FLOATS
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Call, Match, Pattern, const, either, one_of, op, rewrite, var
from onnxopt.rewriting.index_maps import inverse
from onnxopt.rewriting.rule import FOLDS, is_number, known_axes, listed_axes

_MAX_SCALE: Final = 1 << 18  # elements of a scale


def axis_of(m: Match, node: Node, rank: int) -> int:
    """Return the single axis reduced, and kept, by a Reduce* node; a pool reduces all axes from the third on."""
    if node.op == "GlobalAveragePool":
        m.require(rank == 3, "a mean over several axes")
        return 2
    axes = known_axes(m, node) or []
    one = len(axes) == 1 and -rank <= axes[0] < rank
    m.require(one and node.keeps_dims, "not the mean over one axis, kept")
    return axes[0] % rank


def mean_of(x: Pattern, name: str) -> Call:
    return one_of("GlobalAveragePool", "ReduceMean")(x, ..., name=name)


def moment(x: Pattern) -> Call:
    """Return the pattern of a mean of squares."""
    return mean_of(squared(x), "moment")


def squared(x: Pattern) -> Pattern:
    return either(op.Pow(x, 2), op.Mul(x, x))


_MEAN: Final = mean_of(var("x"), "mean")
_CENTERED: Final = op.Sub(var("x"), _MEAN, name="centered")
_DIFFERENCE_OF_MOMENTS: Final = op.Max(op.Sub(moment(var("x")), squared(_MEAN)), 0)


def over_root(x: Pattern, variance: Pattern) -> tuple[Call, ...]:
    """Return patterns of x / sqrt(variance + eps), perhaps scaled."""
    root, scale = op.Sqrt(op.Add(variance, const("eps"))), const("scale")
    return op.Div(x, root), op.Div(op.Mul(x, scale), root), op.Mul(x, op.Div(scale, root))


def to_power(x: Pattern, variance: Pattern) -> tuple[Call, ...]:
    """Return the same patterns with powers."""
    shifted = op.Add(variance, const("eps"))
    inverse = op.Pow(shifted, -0.5)
    return op.Div(x, op.Pow(shifted, 0.5)), op.Mul(x, inverse), op.Mul(x, op.Mul(inverse, const("scale")))


def width(m: Match, x: Value, eps: Array, axis: int = -1) -> int:
    """Return the size of the axis; declines for types and sizes the operators do not support."""
    dims = m.shape(x)
    known = dims is not None and len(dims) > 0 and isinstance(dims[axis], int)
    m.require(known, "the size of the axis is unknown")
    m.require(m.dtype(x) == TensorProto.FLOAT, "not float32")
    m.require(is_number(m, eps, x) and eps.item() > 0, "epsilon is not one positive number")
    size = (dims or ())[axis]
    assert isinstance(size, int)
    m.require(size, "the axis has no elements: the operators fail then, the formula gives none")
    m.require(size <= _MAX_SCALE, "the axis is long, and a scale for each of its elements would be stored")
    return size


@rewrite(
    either(
        *over_root(_CENTERED, moment(_CENTERED)),
        *to_power(_CENTERED, moment(_CENTERED)),
        *over_root(_CENTERED, _DIFFERENCE_OF_MOMENTS),
    )
)
def layer_normalization(m: Match, x: Value, eps: Array, scale: Array | None = None) -> Value:
    """(x - mean) / sqrt(mean((x - mean)²) + eps) = LayerNormalization(x, 1), or that of x and a scale.

    The mean may also be max(mean(x²) - mean², 0).
    """
    m.require(m.opset >= 17, "LayerNormalization is there from opset 17 on")
    rank = m.rank(x) or 0
    axis = axis_of(m, m.mean, rank)
    m.require(axis_of(m, m.moment, rank) == axis, "the means go over different axes")
    size = width(m, x, eps, axis)
    factor, last = factors(m, x, size, scale, axis), axis == rank - 1
    order = [*(i for i in range(rank) if i != axis), axis]
    rows = x if last else m.op.Transpose(x, perm=order)
    result: Value = m.op.LayerNormalization(rows, factor, axis=-1, epsilon=eps.item())
    return result if last else m.op.Transpose(result, perm=inverse(order))


def factors(m: Match, x: Value, size: int, scale: Array | None, axis: int = -1) -> Value:
    """Return a scale for each element of the axis, ones by default."""
    if scale is None:
        return m.const(np.ones(size, np.float32), hint=f"{x.name}_scale")
    m.require(is_along(m, scale, x, size, axis), "the factor is not one per element of the axis")
    return m.value("scale") if scale.shape == (size,) else m.const(np.broadcast_to(scale.reshape(-1), (size,)).copy())


def is_along(m: Match, c: Array, x: Value, size: int, axis: int) -> bool:
    """Whether the constant has an element for each of the axis of `x`, or a single one for all."""
    rank = m.rank(x)
    if not rank:  # unknown, as in functions: a constant of higher rank would widen x
        return False
    behind = rank - 1 - axis % rank
    lies = c.ndim > behind and c.shape[c.ndim - 1 - behind] == c.size
    return c.ndim <= rank and (c.size == 1 or (c.size == size and lies))


@rewrite(either(*over_root(var("x"), moment(var("x"))), *to_power(var("x"), moment(var("x")))))
def rms_normalization(m: Match, x: Value, eps: Array, scale: Array | None = None) -> Value:
    """x / sqrt(mean(x²) + eps) = RMSNormalization(x, 1), or that of x and a scale."""
    m.require(m.opset >= 23, "RMSNormalization is there from opset 23 on")
    rank = m.rank(x) or 0
    m.require(axis_of(m, m.moment, rank) == rank - 1, "not the mean over the last axis")
    size = width(m, x, eps)
    return m.op.RMSNormalization(x, factors(m, x, size, scale), axis=-1, epsilon=eps.item())


def written(kind: str) -> Call:
    return one_of(kind)(var("x"), const("scale"), name="norm")


_LAYER_NORM: Final = written("LayerNormalization")
_TURNED: Final = op.Transpose(_LAYER_NORM, name="turned")


@rewrite(op.Mul(either(_LAYER_NORM, written("RMSNormalization"), _TURNED), const("factor")))
def scale_of_normalization(m: Match, x: Value, scale: Array, factor: Array) -> Value:
    """LayerNormalization(x, s) f = LayerNormalization(x, s f), also before a Transpose; so is RMSNormalization."""
    along = is_along(m, factor, x, scale.size, last_axis(m, scale))
    m.require(along, "the factor is not one per element of the axis")
    wide = scale.astype(np.float64) * factor.reshape(-1)
    return turned(m, m.op[m.norm.op](x, m.const(wide, like=scale), like=m.norm))


@rewrite(op.Add(either(_LAYER_NORM, _TURNED), const("shift")))
def bias_of_normalization(m: Match, x: Value, scale: Array, shift: Array) -> Value:
    """LayerNormalization(x, s) + b = LayerNormalization(x, s, b), also before a Transpose."""
    along = is_along(m, shift, x, scale.size, last_axis(m, scale)) and shift.size == scale.size
    m.require(along, "the term is not one per element of the axis")
    bias = m.value("shift") if shift.ndim == 1 else m.const(shift.reshape(-1))
    return turned(m, m.op.LayerNormalization(x, m.value("scale"), bias, like=m.norm))


def last_axis(m: Match, scale: Array) -> int:
    """Return the position of the normalized last axis, which a Transpose may move."""
    m.require(m.norm.attr("axis") == -1 and scale.ndim == 1, "another axis")
    if "turned" not in m.bindings.nodes:
        return -1
    order = m.known(m.turned.attr("perm"), "the order is turned round, of unknown length")
    return list(order).index(len(order) - 1)


def turned(m: Match, x: Value) -> Value:
    return m.op.Transpose(x, like=m.turned) if "turned" in m.bindings.nodes else x


_ROWS: Final = op.Reshape(var("x"), ..., name="rows", shared=True)
_MEAN_OF_ROWS: Final = op.ReduceMean(_ROWS, ..., name="mean")


@rewrite(
    op.Reshape(
        op.BatchNormalization(
            _ROWS,
            var("ones"),
            var("zeros"),
            op.Squeeze(_MEAN_OF_ROWS, ...),
            op.ReduceMean(squared(op.Sub(_ROWS, _MEAN_OF_ROWS, name="centered")), ..., name="moment"),
            name="norm",
        ),
        ...,
        name="back",
    )
)
def batch_of_rows(m: Match, x: Value, ones: Value, zeros: Value) -> Value:
    """Reshape(BatchNormalization(r, 1, 0, mean(r), variance(r))) = LayerNormalization(x, 1).

    r = Reshape(x, [1, rows, width, 1])
    """
    m.require(m.opset >= 17, "LayerNormalization is there from opset 17 on")
    m.require(not m.norm.attr("training_mode", 0), "it trains")
    m.require(filled_with(ones, 1) and filled_with(zeros, 0), "a scale or shift for each row")
    size = width(m, x, np.array(m.norm.attr("epsilon")))
    dims = m.shape(m.rows.output)
    m.require(dims is not None and (*dims[:1], *dims[2:]) == (1, size, 1), "not one row after the other")
    m.require(m.mean.keeps_dims, "not the means of rows")
    axes = [sorted(a % 4 for a in listed_axes(n) or ()) for n in (m.mean, m.moment)]
    m.require(axes == [[0, 2, 3]] * 2, "not the means of rows")
    m.require(types.same_shape(x, m.back.output), "not provably the same shape")
    return m.op.LayerNormalization(x, factors(m, x, size, None), axis=-1, epsilon=m.norm.attr("epsilon"))


def filled_with(value: Value, number: int) -> bool:
    element = repeated(value)
    return element is not None and bool(element == number)


@rewrite(
    op.Add(
        op.Mul(
            op.Reshape(
                op.InstanceNormalization(
                    op.Reshape(var("x"), const("groups")), const("ones"), const("zeros"), name="norm"
                ),
                ...,
            ),
            const("scale"),
        ),
        const("shift"),
    )
)
def group_normalization(
    m: Match, x: Value, groups: Array, ones: Array, zeros: Array, scale: Array, shift: Array
) -> Value:
    """Reshape(InstanceNormalization(Reshape(x, [0, G, -1]))) s + b = GroupNormalization(x, s, b), of G groups."""
    if m.options is not None and not m.options.groups:
        m.skip()
    m.require(m.opset >= 21, "GroupNormalization is there from opset 21 on")
    dims = m.dims(x)
    m.require(len(dims) > 2 and isinstance(dims[1], int), "the number of channels is unknown")
    m.require(m.dtype(x) == TensorProto.FLOAT, "not float32")
    rank, channels = len(dims), types.length_of(x, 1) or 0
    m.require(groups.shape == (3,) and groups[0] in (0, dims[0]), "not the groups of each image")
    m.require(types.same_shape(x, m.anchor.output), "not provably the same shape")
    m.require((ones == 1).all() and not zeros.any() and ones.size == groups[1], "a scale or shift for each group")
    m.require(channels % (ones.size or 1) == 0, "a group ends within a channel")
    per = (linear.per_channel(z, rank, channels) for z in (scale, shift))
    s, b = (m.const(m.known(z, "the constants are not one per channel"), like=scale) for z in per)
    return m.op.GroupNormalization(x, s, b, num_groups=int(groups[1]), epsilon=m.norm.attr("epsilon"))


@register
@dataclass(eq=False, repr=False)
class FuseNormalization(RewritePass):
    """LayerNormalization (opset 17) and RMSNormalization (opset 23) in place of means, squares and roots;
    GroupNormalization (opset 21) in place of an InstanceNormalization of groups.

    Applies when: the means are over the last axis, of known size, and inner values have no other readers. A
    LayerNormalization over another axis (channels first) is placed between two Transposes. GroupNormalization only with
    the option `groups`: onnxruntime has no kernel for it, and takes 1.7 times as long.
    Not done: types other than float32, for which the operators compute in another precision.
    """

    info = PassInfo("fuse-normalization", opt_level=3, after=("simplify-arithmetic",), before=FOLDS)
    groups: bool = option(False, "GroupNormalization too")
    rules = (
        layer_normalization,
        rms_normalization,
        scale_of_normalization,
        bias_of_normalization,
        batch_of_rows,
        group_normalization,
    )


_MERGES: Final = "before opset 13 a Softmax is over all axes from one on"
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
    rank, axis = len(m.dims(x)), int(m.softmax.attr("axis"))
    axes = listed_axes(m.largest) or []
    m.require(rank and m.largest.keeps_dims and len(axes) == 1, "the largest along all axes, or the dims go")
    m.require(axes[0] % rank == axis % rank, "along another axis")
    m.require(m.opset >= 13 or axis % rank == rank - 1, _MERGES)
    return m.op.Softmax(x, axis=axis)


_LOG_OF_SUM: Final = op.Log(op.ReduceSum(op.Exp(_BELOW), ..., name="sum"))


@rewrite(either(op.Sub(_BELOW, _LOG_OF_SUM), op.Sub(var("x"), op.Add(_LOG_OF_SUM, _MAXIMUM))))
def log_softmax_of_sum(m: Match, x: Value) -> Value:
    """(x - max) - log(sum(exp(x - max))) = x - (log(sum(exp(x - max))) + max) = LogSoftmax(x)."""
    return m.op.LogSoftmax(x, axis=one_axis(m, x))


def one_axis(m: Match, x: Value) -> int:
    """Return the single axis reduced and kept; before opset 13 it must be the last, as Softmax merges later axes."""
    rank = len(m.dims(x))
    m.require(rank and m.dtype(x) in FLOATS, "the rank is unknown, or not floating point")
    found = set()
    for node in (m.sum, *([m.largest] if "largest" in m.bindings.nodes else [])):
        axes = listed_axes(node) or []
        m.require(len(axes) == 1, "not over one axis")
        m.require(node.keeps_dims, "the dims are not kept")
        found.add(axes[0] % rank)
    m.require(len(found) == 1, "not over one axis")
    axis = found.pop()
    m.require(m.opset >= 13 or axis == rank - 1, _MERGES)
    return axis if m.opset < 13 or axis < rank - 1 else -1


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

    info = PassInfo("fuse-softmax", opt_level=3, after=("simplify-arithmetic",), before=FOLDS, ops=("Exp", "Softmax"))
    rules = (softmax, softmax_of_differences, log_softmax_of_sum, log_softmax)
