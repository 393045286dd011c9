"""Convolutions over an axis inserted before and dropped afterwards."""

from __future__ import annotations

from typing import Any, Final

from onnxopt.analysis.shapes.sizes import order_of
from onnxopt.graph import Node, Value
from onnxopt.operators import ARITHMETIC, POOLS, UNARY
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Match, const, op, rewrite, var
from onnxopt.rewriting.forms import operands

_AXES: Final = const("put")
_CONV: Final = (const("w"), var("b").opt())
_WINDOWS: Final = POOLS | {"Conv"}
_CHAIN_OPERATORS: Final = _WINDOWS | UNARY | ARITHMETIC
_MAX_CHAIN: Final = 64  # nodes in a chain
_BESIDE: Final = "something else reads what is in between, or is beside it"


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


@rewrite(op.Squeeze(var("last"), const("taken"), reads=_WINDOWS))
def windows_over_one(m: Match, last: Value, taken: Array) -> Value:
    """Squeeze(MaxPool(f(Conv(Unsqueeze(x, i), w))), i) = MaxPool(f(Conv(x, Squeeze(w, i)))), f elementwise.

    Windows occur in any number and order; the inserted axis may be transposed.
    """
    rank, steps, value = m.rank(last), list[Node](), last
    m.require(rank is not None and taken.size == 1, "several axes are taken out, or the rank is unknown")
    axis = int(taken.item()) % (rank or 1)
    while (node := value.producer) is not None and node.op in _CHAIN_OPERATORS and len(steps) < _MAX_CHAIN:
        beside = node.inputs[1] if node.op in ARITHMETIC else None
        data = node.inputs[0] if beside is None or beside.constant else None
        alone = value.only_user is not None and not value.is_output and node.graph is m.graph
        alone = alone and len(node.outputs) == 1 and not node.has_references
        m.require(alone and data is not None and m.rank(data) == rank, _BESIDE)
        steps.append(node)
        assert data is not None
        value = data
    value = _before(m, value, axis)
    for step in reversed(steps):
        if step.op == "Conv":
            value = _conv_of(m, step, value, axis)
        elif step.op in _WINDOWS:
            value = m.op[step.op](value, like=step, **_pool(m, step, axis, rank or 0))
        else:
            value = m.op[step.op](value, *(_narrow(m, c, axis, rank or 0) for c in step.inputs[1:]), like=step)
    return value


def _before(m: Match, value: Value, axis: int) -> Value:
    """Return the input of the Unsqueeze, transposed if a Transpose follows."""
    node, perm = value.producer, list[int]()
    if node is not None and node.op == "Transpose" and node.inputs[0] is not None:
        perm = list(order_of(node, m.rank(value) or 0))
        node, axis = node.inputs[0].producer, perm[axis]
    found = operands(node) if node is not None and node.op == "Unsqueeze" else []
    put = found[1] if len(found) > 1 else None
    m.require(put is not None and put.constant and put.array.size == 1, "the axis is not put in for them")
    assert put is not None
    x, rank = found[0], m.rank(value) or 1
    m.require(x is not None and int(put.array.item()) % rank == axis, "another axis is put in")
    assert x is not None
    rest = [p - (p > axis) for p in perm if p != axis]
    return m.op.Transpose(x, perm=rest) if rest != sorted(rest) else x


def _narrow(m: Match, constant: Value | None, axis: int, rank: int) -> Value | None:
    """Return a constant operand of values of `rank` axes, without the dropped axis."""
    if constant is None or constant.constant_type()[1] == ():
        return constant
    at = axis - (rank - constant.array.ndim)
    if at < 0:
        return constant
    m.require(constant.array.shape[at] == 1, "a constant is longer than the axis")
    return m.const(constant.array.squeeze(at), like=constant)


def _pool(m: Match, pool: Node, axis: int, rank: int) -> dict[str, Any]:
    """Return the attributes of a pool without an axis along which its window has a single element."""
    spatial, i = rank - 2, axis - 2
    m.require(i >= 0 and spatial > 1, "it is batch, channels or the only axis of the window")
    kernel, strides = pool.attr("kernel_shape"), pool.attr("strides") or [1] * spatial
    pads = pool.attr("pads") or [0] * (2 * spatial)
    alone = kernel[i] == strides[i] == 1 and pads[i] == pads[i + spatial] == 0
    m.require(alone and pool.attr("auto_pad") in (None, "NOTSET"), "the window is wider than the axis")
    return _without(pool, i, spatial)


def _without(node: Node, i: int, spatial: int) -> dict[str, Any]:
    """Return the per-axis attributes of a window, without an axis."""
    given = {name: node.attr(name) for name in ("kernel_shape", "strides", "dilations", "pads")}
    return {name: [n for k, n in enumerate(v) if k % spatial != i] if v else None for name, v in given.items()}


def _conv(m: Match, x: Value, axis: int, w: Array, b: Value | None, taken: Array) -> Value:
    m.require(taken.size == 1 and axis == taken.item() % w.ndim, "another axis is taken out")
    return _conv_of(m, m.conv, x, axis)


def _conv_of(m: Match, conv: Node, x: Value, axis: int) -> Value:
    """Return the Conv of `x` without the axis."""
    weights = conv.inputs[1]
    m.require(weights is not None and weights.is_stored, "its weights are computed")
    assert weights is not None
    w = weights.array
    spatial, i = w.ndim - 2, axis - 2
    m.require(i >= 0 and spatial > 1, "it is batch, channels or the only axis of the window")
    m.require(w.shape[axis] == 1, "the window is wider than the axis")
    pads = conv.attr("pads") or [0] * (2 * spatial)
    m.require(pads[i] == pads[i + spatial] == 0, "the axis is padded")
    m.require(len(weights.users) == 1, "the weights are used elsewhere, and would be stored twice")
    narrow = m.const(w.squeeze(axis), like=weights)
    made: Value = m.op.Conv(x, narrow, conv.input(2), like=conv, **_without(conv, i, spatial))
    return made


@register
class ConvAxes(RewritePass):
    """Squeeze(Conv(Unsqueeze(x, i), w), i) = Conv(x, Squeeze(w, i)): TensorFlow writes a convolution along one axis
    as a convolution of images with one row, possibly with Transposes in between.

    Applies when: the window has a single tap along the axis, without padding. Pools, and elementwise operators between
    windows, are included.
    Keeps: weights that are quantized or have other readers.
    """

    info = PassInfo("conv-axes", opt_level=2, ops=("Squeeze",))
    rules = (conv_over_one, conv_over_turned, windows_over_one)
