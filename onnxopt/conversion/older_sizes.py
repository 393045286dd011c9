"""Older forms of operators that cut, fill and reshape."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest

import numpy as np
from onnx import NodeProto

from onnxopt.analysis.shapes.symbolic import vanishes_with
from onnxopt.conversion.boundaries import before
from onnxopt.conversion.call import Call, Unsayable
from onnxopt.proto.messages import Array, numpy_dtype


@before(18, "Split")
def _equal_parts(call: Call) -> list[NodeProto] | None:
    """Split(x; num_outputs) = Split(x) for equal parts, Split(x, sizes) for a smaller last part."""
    count = call.attr("num_outputs")
    if call.input(1) or count is None:
        return None
    size = call.size(call.attr("axis"))
    if size is not None and size % count == 0:
        return call.rewritten(without=["num_outputs"])
    op = call.op
    whole = op("Gather", op("Shape", call.input(0)), op.constant([call.attr("axis")]))
    part = op("Div", op("Add", whole, op.constant([count - 1])), op.constant([count]))
    rest = op("Sub", whole, op("Mul", part, op.constant(range(count))))
    sizes = op("Max", op("Min", rest, part), op.constant([0]))
    return call.rewritten(inputs=[call.input(0), sizes], without=["num_outputs"])


@before(13, "Split")
def _part_by_part(call: Call) -> list[NodeProto] | None:
    """Split(x, sizes) = Split(x; sizes), or a Slice for each part where the sizes are computed."""
    if not call.input(1):
        return None
    sizes = call.known.constant(call.input(1))
    if sizes is not None:
        return call.rewritten(inputs=[call.input(0)], split=sizes.tolist())
    op, axis, start = call.op, call.op.constant([call.attr("axis")]), call.op.constant([0])
    for i, name in enumerate(call.made):
        end = op("Add", start, op("Slice", call.input(1), op.constant([i]), op.constant([i + 1])))
        if name:
            op("Slice", call.input(0), start, end, axis, name=name)
        start = end
    return op.nodes


def _spread(call: Call, i: int, what: Array, around: Callable[[int], str], rank: int) -> str:
    """Return an operand with an entry for each axis. Entries of the axes `what` come from operand `i`, of others from
    `around`."""
    places = {int(a) % rank: k for k, a in enumerate(what)}
    piece = []
    for axis in range(rank):
        k = places.get(axis)
        bounds = () if k is None else (call.op.constant([k]), call.op.constant([k + 1]))
        piece.append(around(axis) if k is None else call.op("Slice", call.input(i), *bounds))
    return call.op("Concat", *piece, axis=0)


@before(18, "Pad")
def _pad_axes(call: Call) -> list[NodeProto] | None:
    """Pad(x, p, c, axes) = Pad(x, p with zeros for the other axes, c)."""
    if not call.input(3):
        return None
    axes, rank, zero = call.constant(3, "axes").reshape(-1), call.rank(), call.op.constant([0])
    both = np.concatenate([axes % rank, axes % rank + rank])
    pads = _spread(call, 1, both, lambda axis: zero, 2 * rank)
    return call.rewritten(inputs=[call.input(0), pads, *filter(None, [call.input(2)])])


@before(18, "Resize")
def _resize_axes(call: Call) -> list[NodeProto] | None:
    """Resize(x, s; axes) = Resize(x, s with ones, or the sizes of x, for the other axes)."""
    axes = call.attr("axes")
    if axes is None:
        return None
    if call.attr("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise Unsayable("`axes` of what is cropped, too, cannot be said")
    rank, (x, roi, scales, sizes) = call.rank(), (call.input(i) for i in range(4))
    if scales:
        one = call.op.constant([1], np.float32)
        scales = _spread(call, 2, axes, lambda axis: one, rank)
    if sizes:
        dims = call.op("Shape", x)
        own = [call.op("Slice", dims, call.op.constant([d]), call.op.constant([d + 1])) for d in range(rank)]
        sizes = _spread(call, 3, axes, lambda axis: own[axis], rank)
    return call.rewritten(inputs=[x, roi, scales, *filter(None, [sizes])], without=["axes"])


@before(13, "Resize")
def _all_operands(call: Call) -> list[NodeProto] | None:
    """Resize(x, , , sizes) = Resize(x, [], [], sizes)."""
    if call.input(1) and call.input(2):
        return None
    given = [call.input(i) or call.op.constant([], np.float32) for i in (1, 2)]
    return call.rewritten(inputs=[call.input(0), *given, *filter(None, [call.input(3)])])


@before(14, "Reshape")
def _without_zeros(call: Call) -> list[NodeProto] | None:
    """Reshape(x, s; allowzero) = Reshape(x, s), where no zero is in s, or x has one at the same place."""
    if not call.attr("allowzero"):
        return None
    if _copies_zeros(call):
        return call.rewritten(without=["allowzero"])
    return _filled(call)


def _copies_zeros(call: Call) -> bool:
    """Return whether each zero in the shape of a Reshape stands where the operand has a size of zero, too. The standard
    allows no zero beside a -1."""
    content, dims = call.known.content(call.input(1)), call.known.sizes(call.input(0)) or ()
    target = content.tolist() if content is not None else [None]
    if -1 in target or None in target:
        return -1 in target
    return all(vanishes_with(dim, size) for size, dim in zip_longest(target, dims[: len(target)], fillvalue=1))


def _filled(call: Call) -> list[NodeProto]:
    """Reshape(x, s; allowzero) = Slice(Reshape(Concat(x, fill), s with ones for zeros), s). `fill` is empty, and the
    Slice takes all, if s has no zero."""
    op, (x, shape) = call.op, call.node.input
    zero, one = op.constant([0]), op.constant([1])
    ones = op("Where", op("Equal", shape, zero), one, shape)
    less = op("Sub", op("ReduceProd", ones), op("Reshape", op("Size", x), one))
    fill = op("ConstantOfShape", op("Max", less, zero), value=np.zeros(1, numpy_dtype(call.needed_type())))
    filled = op("Reshape", op("Concat", op("Reshape", x, op.constant([-1])), fill, axis=0), ones)
    ends = op("Where", op("Less", shape, zero), op.constant([np.iinfo(np.int64).max]), shape)
    op("Slice", filled, op("Sub", shape, shape), ends, name=call.made[0])
    return op.nodes


@before(15, "Shape")
def _part_of_shape(call: Call) -> list[NodeProto] | None:
    """Shape(x; start, end) = Slice(Shape(x), start, end)."""
    start, end = call.attr("start"), call.attr("end")
    if not start and end is None:
        return None
    bounds = (call.op.constant([n]) for n in (start or 0, np.iinfo(np.int64).max if end is None else end))
    call.op("Slice", call.op("Shape", call.input(0)), *bounds, name=call.made[0])
    return call.op.nodes
