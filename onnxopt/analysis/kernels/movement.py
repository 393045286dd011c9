"""Kernels that move or repeat elements, or return their sizes or indices."""

from __future__ import annotations

import math

import numpy as np

from onnxopt.analysis.broadcasting import broadcast_shape
from onnxopt.analysis.kernels.registry import Inputs, axes_of, kernel
from onnxopt.analysis.shapes.sizes import listed_by
from onnxopt.analysis.shapes.slicing import cuts, indices
from onnxopt.graph.node import Node
from onnxopt.proto.element_types import element_kind, is_float, of
from onnxopt.proto.messages import Array


@kernel("Identity")
def _identity(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    return [x for x in inputs if x is not None]


@kernel("Shape")
def _shape(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    (x,) = inputs
    assert x is not None
    return [np.array(x.shape[listed_by(node)], np.int64)]


@kernel("Size")
def _size(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    (x,) = inputs
    assert x is not None
    return [np.array(x.size, np.int64)]


@kernel("Reshape")
def _reshape(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    if opset < 5:
        return None
    x, shape = inputs
    assert x is not None and shape is not None
    target = [int(d) for d in shape]
    if not node.attr("allowzero", 0):
        target = [x.shape[i] if d == 0 else d for i, d in enumerate(target)]
    if -1 in target and x.size == 0:
        return None
    return [x.reshape(target)]


@kernel("Flatten")
def _flatten(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    (x,) = inputs
    assert x is not None
    axis = node.attr("axis")
    axis = axis + x.ndim if axis < 0 else axis
    return [x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))]


@kernel("Squeeze")
def _squeeze(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    x, axes = inputs[0], axes_of(node, inputs, 13, opset)
    assert x is not None
    if axes is not None and not axes:
        return None  # for empty axes the standard drops nothing, runtimes drop all axes of size 1
    return [np.squeeze(x) if axes is None else np.squeeze(x, tuple(axes))]


@kernel("Unsqueeze")
def _unsqueeze(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    x, axes = inputs[0], axes_of(node, inputs, 13, opset)
    assert x is not None and axes is not None
    return [np.expand_dims(x, tuple(axes))]


@kernel("Transpose")
def _transpose(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    (x,) = inputs
    assert x is not None
    return [np.transpose(x, node.attr("perm"))]


@kernel("Concat")
def _concat(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    axis = node.attr("axis")
    return None if axis is None else [np.concatenate([x for x in inputs if x is not None], axis=axis)]


@kernel("Gather")
def _gather(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    x, indices = inputs
    assert x is not None and indices is not None
    axis = range(x.ndim)[node.attr("axis")]
    if element_kind(indices) not in "iu":
        return None
    return [x[(slice(None),) * axis + (indices,)]]  # np.take would materialize repeated elements


@kernel("Slice")
def _slice(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    x = inputs[0]
    assert x is not None
    if opset >= 10:
        given = [None if i is None else [int(v) for v in i.reshape(-1)] for i in (*inputs[1:], None, None, None)][:4]
        starts, ends, axes, steps = given
    else:
        starts, ends, axes, steps = node.attr("starts"), node.attr("ends"), node.attr("axes"), None
    if starts is None or ends is None:
        return None
    found = cuts(starts, ends, axes, steps, x.ndim)
    if found is None:
        return None
    index = [slice(None)] * x.ndim
    for axis, start, end, step in found:
        taken = indices(start, end, step, x.shape[axis])
        if taken is None:
            return None
        index[axis] = taken
    return [x[tuple(index)]]


@kernel("Expand")
def _expand(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    x, shape = inputs
    assert x is not None and shape is not None
    return [np.broadcast_to(x, broadcast_shape(x.shape, tuple(int(d) for d in shape)))]


@kernel("Tile")
def _tile(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    if opset < 6:
        return None
    x, repeats = inputs
    assert x is not None and repeats is not None
    if repeats.shape != (x.ndim,):
        return None
    return [np.tile(x, [int(r) for r in repeats])]


@kernel("ConstantOfShape")
def _constant_of_shape(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    (shape,) = inputs
    assert shape is not None
    value = node.attr("value")
    fill = value.reshape(()) if value is not None and value.size == 1 else np.zeros((), np.float32)
    return [np.broadcast_to(fill, tuple(int(d) for d in shape))]


@kernel("Range")
def _range(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    given = [x for x in inputs if x is not None]
    start, limit, delta = (x.item() for x in given)  # runtimes accept a single element of any rank as a scalar
    if delta == 0:
        return None
    if element_kind(given[0]) in "iu":
        return [np.arange(start, limit, delta, dtype=given[0].dtype)]
    if not _counts_exactly(given):
        return None  # accumulation in float ranges differs between runtimes
    return [np.arange(int(start), int(limit), int(delta)).astype(given[0].dtype)]


def _counts_exactly(operands: list[Array]) -> bool:
    """Whether float operands are integers whose sums are all exact; not for a start of -0, which the result
    would keep."""
    if any(not is_float(x) or not float(x.item()).is_integer() for x in operands):
        return False
    start, largest = operands[0].item(), 2 ** of(operands[0].dtype).digits
    return all(abs(x.item()) <= largest for x in operands) and (start != 0 or not np.signbit(start))


@kernel("Split")
def _split(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    x = inputs[0]
    assert x is not None
    axis, count = node.attr("axis"), len(node.outputs)
    given = inputs[1] if opset >= 13 and len(inputs) > 1 else node.attr("split")
    if given is None:
        size = -(-x.shape[axis] // count)
        given = [size] * (count - 1)
        given.append(x.shape[axis] - sum(given))
        if given[-1] < 0 or (opset < 18 and x.shape[axis] % count):
            return None
    sizes = [int(s) for s in given]
    if sum(sizes) != x.shape[axis] or len(sizes) != count:
        return None
    return list(np.split(x, np.cumsum(sizes)[:-1], axis=axis))


@kernel("NonZero")
def _nonzero(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    (x,) = inputs
    assert x is not None
    return [np.array(np.nonzero(np.atleast_1d(x)), np.int64)]
