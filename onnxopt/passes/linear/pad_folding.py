"""Zero padding in front of an operator with its own padding, and crops behind it."""

from __future__ import annotations

import numpy as np

from onnxopt.analysis.shapes.sizes import order_of
from onnxopt.analysis.shapes.slicing import LARGEST, cuts, indices
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.operators import NONNEGATIVE
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.element_types import FLOATS, is_float
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Call, Match, const, one_of, only_read_by, op, rewrite, var
from onnxopt.rewriting.forms import operands


def padded() -> Call:
    return op.Pad(var("x"), const("pads"), const("value").opt(), const("axes").opt(), name="pad", shared=True)


def together(m: Match, node: Node, x: Value, pads: Array, axes: Array | None, turned: Node | None = None) -> list[int]:
    """Return the combined pads [begins, ends] of `node` and the Pad before it (or before the Transpose `turned`).

    Declines if the Pad does anything else than zero padding of spatial axes.
    """
    only_read_by(m, m.pad, turned.op if turned else node.op)
    if turned:
        only_read_by(m, turned, node.op)
    m.require(m.pad.attr("mode") == "constant", "the border is not of one value")
    m.require(node.attr("auto_pad") in ("NOTSET", "VALID"), "the padding depends on the input")
    rank = m.rank(x)
    m.require(rank is not None and rank > 2, "the rank is unknown")
    n = rank or 0
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


@rewrite(op.Conv(padded(), var("w"), var("b").opt(), name="conv"))
def pad_of_conv(
    m: Match, x: Value, pads: Array, value: Array | None, axes: Array | None, w: Value, b: Value | None
) -> Value:
    """Conv(Pad(x, p)) = Conv(x), pads larger by p."""
    m.require(value is None or not value.any(), "the border is not zero")
    return m.op.Conv(x, w, b, like=m.conv, pads=together(m, m.conv, x, pads, axes), auto_pad=None)


@rewrite(op.Conv(op.Transpose(padded(), name="turned", shared=True), var("w"), var("b").opt(), name="conv"))
def turned_pad_of_conv(
    m: Match, x: Value, pads: Array, value: Array | None, axes: Array | None, w: Value, b: Value | None
) -> Value:
    """Conv(Transpose(Pad(x, p))) = Conv(Transpose(x)), pads larger by p, turned."""
    m.require(value is None or not value.any(), "the border is not zero")
    more = together(m, m.conv, x, pads, axes, m.turned)
    return m.op.Conv(m.op.Transpose(x, like=m.turned), w, b, like=m.conv, pads=more, auto_pad=None)


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
    """MaxPool(Pad(x, p, -inf)) = MaxPool(x), with pads larger by p; likewise zeros around non-negative x.

    Padding by MaxPool is never the maximum, and each window holds at least one element of x.
    """
    least = value is not None and is_float(value) and np.isneginf(value).all()
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
        return _is_bound(low) and (high is None or _is_bound(high))  # below both bounds the higher one wins
    return maker.op in NONNEGATIVE


def _is_bound(bound: Value | None) -> bool:
    return bound is not None and bound.constant and bool((bound.array >= 0).all())


def _pooled(m: Match, x: Value, pads: Array, axes: Array | None) -> list[int]:
    total = together(m, m.pool, x, pads, axes)
    kernel = list(m.pool.attr("kernel_shape"))
    m.require(not m.pool.attr("ceil_mode", 0), "windows that start in the border are counted otherwise (ceil_mode)")
    m.require(all(p < k for p, k in zip(total, kernel * 2)), "runtimes refuse pads as large as the window")
    m.require(0 not in (m.shape(x) or ())[2:], "runtimes pool no image that is nothing but border")
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
    m: Match,
    x: Value,
    w: Value,
    b: Value | None,
    starts: Array,
    ends: Value,
    axes: Array | None,
    steps: Array | None,
) -> Value:
    """Conv(x)[s:-c] = Conv(x), pads smaller by s and c strides; those of ConvTranspose larger by s and c."""
    node, rank = m.conv, m.rank(x) or 0
    m.require(rank > 2, "the rank is unknown")
    m.require(node.attr("auto_pad") == "NOTSET", "the padding depends on the input")
    m.require(not node.attr("output_shape"), "the padding depends on what is made")
    kernel = np.array(node.attr("kernel_shape") or [d if isinstance(d, int) else 0 for d in (m.shape(w) or ())[2:]])
    m.require(kernel.size == rank - 2 and kernel.all(), "the window is unknown")
    ones = [1] * kernel.size
    window = (kernel - 1) * np.array(node.attr("dilations") or ones) + 1
    stride, own = np.array(node.attr("strides") or ones), np.reshape(node.attr("pads") or [0, 0] * kernel.size, (2, -1))
    off = np.zeros_like(own)
    for axis, start, end in _bounds(m, starts, ends, axes, steps, rank):
        same = int(own[:, axis - 2].sum() - window[axis - 2] + 1) if stride[axis - 2] == 1 else None
        off[:, axis - 2] = _cut_off(m, axis, start, end, same if node.op == "Conv" else None)
    pads = own - off * stride if node.op == "Conv" else own + off
    m.require((pads >= 0).all(), "more is cut off than padding has made")
    least = np.array([d if isinstance(d, int) else 1 for d in (m.shape(x) or ())[2:]])
    if node.op == "Conv":
        left = least + pads.sum(axis=0) - window + 1
    else:
        left = stride * (least - 1) + np.array(node.attr("output_padding") or 0 * stride) + window - pads.sum(axis=0)
    m.require((left > 0).all(), "it may be that nothing is left")
    return m.op[node.op](x, w, b, like=node, pads=[int(p) for p in pads.reshape(-1)])


def _bounds(
    m: Match, starts: Array, ends: Value, axes: Array | None, steps: Array | None, rank: int
) -> list[tuple[int, int, int | None]]:
    """Return (axis, start, end) of spatial cuts; an end of None is the size of the Conv's input."""
    lists = [None if a is None else [int(i) for i in a.reshape(-1)] for a in (starts, axes, steps)]
    first, along, by = lists
    assert first is not None
    if ends.constant:
        found = cuts(first, [int(i) for i in ends.array.reshape(-1)], along, by, rank)
    else:
        found = cuts(first, first, along, by, rank)
        m.require(found and len(found) == 1 and _is_size(ends, m.value("x"), found[0][0]), "an end is computed")
    spatial = found is not None and all(axis > 1 and step == 1 for axis, _, _, step in found)
    m.require(spatial, "it is no run along spatial axes")
    assert found is not None
    return [(axis, start, end if ends.constant else None) for axis, start, end, _ in found]


def _is_size(vector: Value, x: Value, axis: int) -> bool:
    """Whether a vector is [size of x along the axis]."""
    node = vector.producer
    if node is not None and node.op == "Gather" and not node.attr("axis", 0):
        index, shape = node.inputs[1], node.inputs[0]
        node = shape.producer if shape is not None else None
        whole = node is not None and node.op == "Shape" and not node.attr("start", 0) and node.attr("end", None) is None
        picked = index is not None and index.constant and index.array.ndim == 1 and index.array.tolist() == [axis]
        return whole and picked and node is not None and node.inputs[0] is x
    if node is None or node.op != "Shape" or node.inputs[0] is not x or node.has_references:
        return False
    return (node.attr("start", 0), node.attr("end", None)) == (axis, axis + 1)


def _cut_off(m: Match, axis: int, start: int, end: int | None, same: int | None) -> tuple[int, int]:
    """Return the number of elements cropped in front and behind; `same`: by how much the output is longer than the
    input."""
    size = (m.shape(m.conv.output) or [None] * (axis + 1))[axis]
    if isinstance(size, int) and end is not None:
        taken = indices(start, end, 1, size)
        m.require(taken is not None and taken.start < taken.stop, "nothing is taken")
        assert taken is not None
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
    rules = (pad_of_conv, turned_pad_of_conv, pad_of_average, pad_of_max, cut_of_conv)
