"""Windows of Conv and pooling: pads folded in, and axes of one element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sizes import LARGEST, cuts, indices, order_of
from onnxopt.graph import Value
from onnxopt.graph.node import Node, array_of, arrays_of, present, producer
from onnxopt.operators import ARITHMETIC, NONNEGATIVE, POOLS, UNARY
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.element_types import FLOATS, is_float
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Match, const, either, one_of, only_read_by, op, rewrite, var
from onnxopt.rewriting.rule import canonical_operands, listed_axes

_PADDED: Final = op.Pad(var("x"), const("pads"), const("value").opt(), const("axes").opt(), name="pad", shared=True)


def together(m: Match, node: Node, x: Value, pads: Array, axes: Array | None, turned: Node | None = None) -> list[int]:
    """Return the combined pads [begins, ends] of `node` and the Pad before it (or before the Transpose `turned`).

    Declines if the Pad does anything else than zero padding of spatial axes.
    """
    only_read_by(m, m.pad, turned.op if turned else node.op)
    if turned:
        only_read_by(m, turned, node.op)
    m.require(m.pad.attr("mode") == "constant", "the border is not of one value")
    m.require(node.attr("auto_pad") in ("NOTSET", "VALID"), "the padding depends on the input")
    n = len(m.dims(x))
    m.require(n > 2, "the rank is unknown")
    two = axes is None or axes.ndim == 1
    m.require(two and pads.size == 2 * (n if axes is None else axes.size), "two pads for each axis are not there")
    full = np.zeros((2, n), np.int64)
    full[:, slice(None) if axes is None else axes % n] = pads.reshape(2, -1)
    full = full[:, order_of(turned, n)] if turned else full
    m.require(not full[:, :2].any(), "batch or channels are padded")
    m.require((full >= 0).all(), "negative pads cut off")
    own = np.array(node.attr("pads") or [0] * (2 * n - 4), np.int64)
    m.require(node.attr("auto_pad") == "NOTSET" or not own.any(), "pads beside auto_pad, which overrules them")
    return [int(p) for p in own + full[:, 2:].reshape(-1)]


@rewrite(op.Conv(either(_PADDED, op.Transpose(_PADDED, shared=True)), var("w"), var("b").opt(), name="conv"))
def pad_of_conv(
    m: Match, x: Value, pads: Array, value: Array | None, axes: Array | None, w: Value, b: Value | None
) -> Value:
    """Conv(Pad(x, p)) = Conv(x), pads larger by p; likewise Conv(Transpose(Pad(x, p))) = Conv(Transpose(x))."""
    m.require(value is None or not value.any(), "the border is not zero")
    turned = producer(m.conv.inputs[0], "Transpose")
    more = together(m, m.conv, x, pads, axes, turned)
    moved = x if turned is None else m.op.Transpose(x, like=turned)
    return m.op.Conv(moved, w, b, like=m.conv, pads=more, auto_pad=None)


@rewrite(op.AveragePool(_PADDED, name="pool"))
def pad_of_average(m: Match, x: Value, pads: Array, value: Array | None, axes: Array | None) -> Value:
    """AveragePool(Pad(x, p)) = AveragePool(x), pads larger by p, which count."""
    m.require(value is None or not value.any(), "the border is not zero")
    m.require(m.opset >= 7, "padding never counts before opset 7")
    m.require(
        m.pool.attr("count_include_pad") or not any(m.pool.attr("pads") or ()), "padding of its own does not count"
    )
    return m.op.AveragePool(x, like=m.pool, pads=_pooled(m, x, pads, axes), count_include_pad=1, auto_pad=None)


@rewrite(op.MaxPool(_PADDED, name="pool"))
def pad_of_max(m: Match, x: Value, pads: Array, value: Array | None, axes: Array | None) -> Value:
    """MaxPool(Pad(x, p, -inf)) = MaxPool(x), with pads larger by p; likewise zeros around non-negative x.

    Padding by MaxPool is never the maximum, and each window holds at least one element of x.
    """
    least = value is not None and is_float(value) and np.isneginf(value).all()
    zero = (value is None or not value.any()) and m.dtype(x) in FLOATS
    m.require(least or (zero and _is_nonnegative(x)), "the border may be the largest")
    dims, dilations = m.dims(x)[2:], m.pool.attr("dilations") or ()
    m.require(
        all(d == 1 or (isinstance(n, int) and n >= d) for n, d in zip(dims, dilations)),
        "the taps of a window may all be in the border, whose largest is the lowest number then",
    )
    return m.op.MaxPool(x, like=m.pool, pads=_pooled(m, x, pads, axes), auto_pad=None)


def _is_nonnegative(x: Value) -> bool:
    maker = producer(x, "Clip", *NONNEGATIVE)
    if maker is None or maker.has_references:
        return False
    if maker.op != "Clip":
        return True
    low, high = [*canonical_operands(maker), None, None][1:3]
    bounds = arrays_of([low, *present([high])])  # below both bounds the higher one wins
    return bounds is not None and all((b >= 0).all() for b in bounds)


def _pooled(m: Match, x: Value, pads: Array, axes: Array | None) -> list[int]:
    total = together(m, m.pool, x, pads, axes)
    kernel = list(m.pool.attr("kernel_shape"))
    m.require(not m.pool.attr("ceil_mode", 0), "windows that start in the border are counted otherwise (ceil_mode)")
    m.require(all(p < k for p, k in zip(total, kernel * 2)), "runtimes refuse pads as large as the window")
    m.require(0 not in m.dims(x)[2:], "runtimes pool no image that is nothing but border")
    return total


@rewrite(
    op.Slice(
        one_of("Conv", "ConvTranspose")(var("x"), var("w"), var("b").opt(), name="conv"),
        const("starts"),
        var("ends"),
        const("axes").opt(),
        const("steps").opt(),
    )
)
def cut_of_conv(
    m: Match, x: Value, w: Value, b: Value | None, starts: Array, ends: Value, axes: Array | None, steps: Array | None
) -> Value:
    """Conv(x)[s:-c] = Conv(x), pads smaller by s and c strides; those of ConvTranspose larger by s and c."""
    node, rank = m.conv, len(m.dims(x))
    m.require(rank > 2, "the rank is unknown")
    m.require(node.attr("auto_pad") == "NOTSET", "the padding depends on the input")
    m.require(not node.attr("output_shape"), "the padding depends on what is made")
    kernel = np.array(node.attr("kernel_shape") or _spatial(m, w, 0))
    m.require(kernel.size == rank - 2 and kernel.all(), "the window is unknown")
    window, stride, own = _geometry(node, kernel)
    off = np.zeros_like(own)
    for axis, start, end in _bounds(m, starts, ends, axes, steps, rank):
        same = int(own[:, axis - 2].sum() - window[axis - 2] + 1) if stride[axis - 2] == 1 else None
        off[:, axis - 2] = _cut_off(m, axis, start, end, same if node.op == "Conv" else None)
    pads = own - off * stride if node.op == "Conv" else own + off
    m.require((pads >= 0).all(), "more is cut off than padding has made")
    least = np.array(_spatial(m, x, 1))
    if node.op == "Conv":
        left = least + pads.sum(axis=0) - window + 1
    else:
        left = stride * (least - 1) + np.array(node.attr("output_padding") or 0 * stride) + window - pads.sum(axis=0)
    m.require((left > 0).all(), "it may be that nothing is left")
    return m.op[node.op](x, w, b, like=node, pads=[int(p) for p in pads.reshape(-1)])


def _spatial(m: Match, x: Value, unknown: int) -> list[int]:
    """Return the sizes behind batch and channels, with a number for unknown ones."""
    return [d if isinstance(d, int) else unknown for d in m.dims(x)[2:]]


def _geometry(node: Node, kernel: Array) -> tuple[Array, Array, Array]:
    """Return (window with its gaps, strides, [pads before, pads behind]) of a Conv or ConvTranspose."""
    ones = [1] * kernel.size
    window = (kernel - 1) * np.array(node.attr("dilations") or ones) + 1
    pads = np.reshape(node.attr("pads") or [0, 0] * kernel.size, (2, -1))
    return window, np.array(node.attr("strides") or ones), pads


def _bounds(
    m: Match, starts: Array, ends: Value, axes: Array | None, steps: Array | None, rank: int
) -> list[tuple[int, int, int | None]]:
    """Return (axis, start, end) of spatial cuts; an end of None is the size of the Conv's input."""
    from onnxopt.analysis.shapes.index_tensors import dim_of  # few models cut behind a convolution

    along, by = (None if a is None else a.reshape(-1).tolist() for a in (axes, steps))
    first: list[int] = starts.reshape(-1).tolist()
    last = array_of(ends)
    found = cuts(first, first if last is None else last.reshape(-1).tolist(), along, by, rank) or []
    whole = len(found) == 1 and dim_of(ends) == m.dims(m.value("x"))[found[0][0]] is not None
    m.require(last is not None or whole, "an end is computed")
    m.require(found and all(axis > 1 and step == 1 for axis, _, _, step in found), "it is no run along spatial axes")
    return [(axis, start, None if last is None else end) for axis, start, end, _ in found]


def _cut_off(m: Match, axis: int, start: int, end: int | None, same: int | None) -> tuple[int, int]:
    """Return the number of elements cropped in front and behind; `same`: by how much the output is longer than the
    input."""
    size = types.length_of(m.conv.output, axis)
    if size is not None and end is not None:
        taken = indices(start, end, 1, size) or slice(0, 0)
        m.require(taken.start < taken.stop, "nothing is taken")
        return taken.start, size - taken.stop
    m.require(start >= 0, "a start is counted from an unknown end")
    if end is None:
        m.require(same is not None, "an end is computed")
        return start, max(same or 0, 0)
    m.require(end < 0 or end in LARGEST, "an end is counted from the front of an unknown size")
    return start, -end if end < 0 else 0


@register
class PadFolding(RewritePass):
    """Conv(Pad(x, p)) = Conv(x), with pads larger by p; likewise AveragePool with counted padding, MaxPool with a
    Pad of -inf, and MaxPool with a Pad of zeros around non-negative values.

    Applies when: the border is constant, zero (for MaxPool -inf), along spatial axes only, and has no other readers.
    Cropped elements were made of padding, and are cropped by constant bounds or to the size of the Conv's input.
    Keeps: borders that reflect or repeat, crop, or widen channels; MaxPool over zeros next to negative numbers.
    Not done: padding that depends on the input (auto_pad), ceil_mode; a MaxPool whose dilated window may lie completely
    in the border. An image of unknown size is assumed not to be empty, as runtimes pool no empty image.
    """

    info = PassInfo("pad-folding", opt_level=2, ops=("Pad", "Conv", "ConvTranspose"))
    rules = (pad_of_conv, pad_of_average, pad_of_max, cut_of_conv)


_WINDOWS: Final = POOLS | {"Conv"}
_CHAIN_OPERATORS: Final = _WINDOWS | UNARY | ARITHMETIC
_MAX_CHAIN: Final = 64  # nodes in a chain
_BESIDE: Final = "something else reads what is in between, or is beside it"


@rewrite(op.Squeeze(var("last"), const("taken"), reads=_WINDOWS))
def windows_over_one(m: Match, last: Value, taken: Array) -> Value:
    """Squeeze(MaxPool(f(Conv(Unsqueeze(x, i), w))), i) = MaxPool(f(Conv(x, Squeeze(w, i)))), f elementwise.

    Windows occur in any number and order; the inserted axis may be transposed.
    """
    rank = len(m.dims(last))
    m.require(rank and taken.size == 1, "several axes are taken out, or the rank is unknown")
    axis = int(taken.item()) % rank
    steps, value = _steps(m, last, rank)
    value = _before(m, value, axis)
    for step in reversed(steps):
        if step.op == "Conv":
            value = _conv_of(m, step, value, axis)
        elif step.op in _WINDOWS:
            value = m.op[step.op](value, like=step, **_without(m, step, step.attr("kernel_shape"), axis))
        else:
            value = m.op[step.op](value, *(_narrow(m, c, axis, rank) for c in step.inputs[1:]), like=step)
    return value


def _steps(m: Match, value: Value, rank: int) -> tuple[list[Node], Value]:
    """Return (windows and elementwise operators, last first; the value before them)."""
    steps: list[Node] = []
    while (node := producer(value, *_CHAIN_OPERATORS)) is not None and len(steps) < _MAX_CHAIN:
        data = _data(node) if value.only_user is not None and node.graph is m.graph else None
        value = m.known(data if len(m.dims(data)) == rank else None, _BESIDE)
        steps.append(node)
    return steps, value


def _data(node: Node) -> Value | None:
    """Return the only computed operand of a node with one result; None for others."""
    beside = node.inputs[1] if node.op in ARITHMETIC else None
    plain = len(node.outputs) == 1 and not node.has_references
    return node.inputs[0] if plain and (beside is None or beside.constant) else None


def _before(m: Match, value: Value, axis: int) -> Value:
    """Return the input of the Unsqueeze, transposed if a Transpose follows."""
    turned, rank, perm = producer(value, "Transpose"), len(m.dims(value)), list[int]()
    if turned is not None:
        perm = list(order_of(turned, rank))
        axis = perm[axis]
    node = producer(value if turned is None else turned.inputs[0], "Unsqueeze")
    put = listed_axes(node) or [] if node is not None else []
    x = m.known(node.inputs[0] if node is not None and len(put) == 1 else None, "the axis is not put in for them")
    m.require(put[0] % rank == axis, "another axis is put in")
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


def _without(m: Match, node: Node, kernel: Sequence[int], axis: int) -> dict[str, Any]:
    """Return the attributes of a window without an axis of one element, along which it has one element."""
    spatial, i = len(kernel), axis - 2
    m.require(i >= 0 and spatial > 1, "it is batch, channels or the only axis of the window")
    pads = node.attr("pads") or [0] * (2 * spatial)
    m.require(kernel[i] == 1 and pads[i] == pads[i + spatial] == 0, "the window is wider than the axis")
    given = {name: node.attr(name) for name in ("kernel_shape", "strides", "dilations", "pads")}
    return {name: [n for k, n in enumerate(v) if k % spatial != i] if v else None for name, v in given.items()}


def _conv_of(m: Match, conv: Node, x: Value, axis: int) -> Value:
    """Return the Conv of `x` without the axis."""
    weights = conv.inputs[1]
    weights = m.known(weights if weights is not None and weights.is_stored else None, "its weights are computed")
    changes = _without(m, conv, weights.array.shape[2:], axis)
    m.require(len(weights.users) == 1, "the weights are used elsewhere, and would be stored twice")
    narrow = m.const(weights.array.squeeze(axis), like=weights)
    made: Value = m.op.Conv(x, narrow, conv.input(2), like=conv, **changes)
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
    rules = (windows_over_one,)
