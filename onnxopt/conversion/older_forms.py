"""Forms of operators before an opset that changed their attributes, element types or operands."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Final

import numpy as np
from onnx import NodeProto, TensorProto

from onnxopt.analysis.shapes.symbolic import vanishes_with
from onnxopt.conversion.call import Call, Inexpressible, before
from onnxopt.operators import REDUCTIONS
from onnxopt.proto.element_types import BY_CODE, FLOATS, INTEGERS
from onnxopt.proto.messages import Array, numpy_dtype
from onnxopt.rewriting.rule import FORMS as ATTRIBUTES

_SELECTIVE: Final = frozenset({"ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"})  # of one: that one
_CONSTANT_ATTRIBUTES: Final = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}
_NEW_VALUES: Final = {  # of attributes, by the opset that brought the values
    ("Pad", 19): ("mode", ("wrap",)),
    ("Resize", 19): ("coordinate_transformation_mode", ("half_pixel_symmetric",)),
    ("RoiAlign", 16): ("coordinate_transformation_mode", ("half_pixel",)),  # a new attribute
    ("ScatterElements", 18): ("reduction", ("max", "min")),
    ("ScatterND", 18): ("reduction", ("max", "min")),
}


@before(19, "Pad", "Resize")
@before(18, "ScatterElements", "ScatterND")
@before(16, "RoiAlign")
def _new_value(call: Call) -> list[NodeProto] | None:
    """f(x, mode) = f(x, mode), but for the new modes."""
    name, values = _NEW_VALUES[call.node.op_type, call.since]
    if call.attr(name) in values:
        raise Inexpressible(f"`{name}` cannot be {call.attr(name)} before opset {call.since}")
    return call.rewritten(without=[name]) if call.node.op_type == "RoiAlign" else None


@before(13, "Squeeze", "Unsqueeze")
def _attributes(call: Call) -> list[NodeProto] | None:
    """f(x, axes) = f(x; axes)."""
    if not call.input(1):
        return None
    (name,) = ATTRIBUTES[call.node.op_type].names
    return call.rewritten(inputs=[call.input(0)], **{name: call.constant(1, name).reshape(-1).tolist()})


@before(13, "ReduceSum")
@before(18, *(op for op in REDUCTIONS if op != "ReduceSum"))
def _axes(call: Call) -> list[NodeProto]:
    """Reduce(x, axes) = Reduce(x; axes); of no axes: x where nothing is to be done then."""
    axes = call.constant(1, "axes").reshape(-1).tolist() if call.input(1) else []
    if axes or not call.attr("noop_with_empty_axes"):
        return call.rewritten(inputs=[call.input(0)], without=["noop_with_empty_axes"], axes=axes or None)
    if call.node.op_type not in _SELECTIVE:
        raise Inexpressible(f"without axes it is no reduction from opset {call.since} on")
    call.op("Identity", call.input(0), name=call.made[0])
    return call.op.nodes


@before(19, "AveragePool")
@before(18, "LpPool")
def _undilated(call: Call) -> list[NodeProto] | None:
    """f(x; dilations = 1) = f(x)."""
    given = call.attr("dilations")
    return call.rewritten(without=["dilations"]) if given is not None and set(given) <= {1} else None


@before(13, "Softmax", "LogSoftmax", "Hardmax")
def _along_the_last(call: Call) -> list[NodeProto]:
    """f(x; axis) = Transpose(f(Transpose x; -1)); before, all axes from `axis` on were joined."""
    axis = call.attr("axis")
    if axis == -1 or (axis >= 0 and call.rank() - 1 == axis):
        return call.rewritten(axis=-1)
    perm = list(range(call.rank()))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    turned = call.op("Transpose", call.input(0), perm=perm)
    found = call.op(call.node.op_type, turned, axis=-1)
    call.op("Transpose", found, perm=perm, name=call.made[0])
    return call.op.nodes


@before(12, "Constant")
def _as_tensor(call: Call) -> list[NodeProto] | None:
    """Constant(value_ints) = Constant(value)."""
    (said,) = call.node.attribute
    if said.name in _CONSTANT_ATTRIBUTES:
        return call.rewritten(
            without=[said.name], value=np.array(call.attr(said.name), _CONSTANT_ATTRIBUTES[said.name])
        )
    if said.name in ("value_string", "value_strings"):
        return call.rewritten(without=[said.name], value=np.array(call.attr(said.name), np.object_))
    return None


@before(12, "Dropout")
def _inference(call: Call) -> list[NodeProto]:
    """Dropout(x, ratio, False) = Dropout(x), and a mask of true."""
    if call.input(2) and call.constant(2, "training_mode").any():
        raise Inexpressible(f"it trains, which it could not before opset {call.since}")
    (dropout,) = call.rewritten(inputs=[call.input(0)], without=["seed"])
    del dropout.output[1:]
    if call.output(1):
        call.op("ConstantOfShape", call.op("Shape", call.input(0)), value=np.array([True]), name=call.made[1])
    return [*call.op.nodes, dropout]


@before(20, "GridSample")
def _mode_names(call: Call) -> list[NodeProto]:
    """GridSample(x; linear) = GridSample(x; bilinear)."""
    if call.rank() != 4:
        raise Inexpressible(f"it takes images alone before opset {call.since}")
    mode = call.attr("mode")
    return call.rewritten(mode={"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode))


@before(20, "DFT")
def _axis_of_dft(call: Call) -> list[NodeProto]:
    """DFT(x, n, axis) = DFT(x, n; axis)."""
    axis = int(call.constant(2, "axis").reshape(())) if call.input(2) else -2
    inputs = [n for n in call.node.input[:2] if n]
    return call.rewritten(inputs=inputs, axis=axis % call.rank())


# -- element types ----------------------------------------------------------------------------------------------------

_NARROW: Final = frozenset(code for code in INTEGERS if BY_CODE[code].bits < 32)


@before(20, "ReduceMax", "ReduceMin")
@before(13, "Pad")
def _of_booleans(call: Call) -> list[NodeProto] | None:
    """f(x) = Cast(f(Cast x)), of booleans as int32."""
    return call.in_wider_type(TensorProto.INT32, (0, 2)) if call.element_type() == TensorProto.BOOL else None


@before(14, "Add", "Sub", "Mul", "Div")
def _of_small_integers(call: Call) -> list[NodeProto] | None:
    """a + b = Cast(Cast a + Cast b), of 8 and 16 bits in 64."""
    return call.in_wider_type(TensorProto.INT64, (0, 1)) if call.element_type() in _NARROW else None


@before(12, "Max", "Min")
def _chosen(call: Call) -> list[NodeProto] | None:
    """Max(a, b) = Where(a > b, a, b), of integers."""
    if call.element_type() in FLOATS | {0}:
        return None
    compare = "Greater" if call.node.op_type == "Max" else "Less"
    first, *others = call.node.input
    if not others:
        call.op("Identity", first, name=call.made[0])
    for i, other in enumerate(others):
        name = call.made[0] if i == len(others) - 1 else ""
        first = call.op("Where", call.op(compare, first, other), first, other, name=name)
    return call.op.nodes


@before(12, "Clip")
def _clipped(call: Call) -> list[NodeProto] | None:
    """Clip(x, a, b) = Min(Max(x, a), b), of integers."""
    if call.element_type() in FLOATS | {0}:
        return None
    x, low, high = (call.input(i) for i in range(3))
    if low:
        x = call.op("Where", call.op("Less", x, low), low, x)
    if high:
        x = call.op("Where", call.op("Greater", x, high), high, x)
    call.op("Identity", x, name=call.made[0])
    return call.op.nodes


@before(12, "Pow")
def _one_type(call: Call) -> list[NodeProto] | None:
    """xⁿ = Cast(Cast(x)^Cast(n)): both of the same float type."""
    base, power = call.element_type(0), call.element_type(1)
    if 0 in (base, power) or (base == power and base in FLOATS):
        return None
    if base in FLOATS:
        return call.rewritten(inputs=[call.input(0), call.cast(call.input(1), base)])
    return call.in_wider_type(TensorProto.DOUBLE, (0, 1))


@before(28, "Mod")
def _of_floats(call: Call) -> list[NodeProto] | None:
    """Mod(a, b) = r + b where r and b are of different sign, else r, where r = Mod(a, b; fmod)."""
    if call.attr("fmod") or call.element_type() not in FLOATS:
        return None
    op, (a, b) = call.op, call.node.input
    r = op("Mod", a, b, fmod=1)
    zero = op.constant(0, numpy_dtype(call.needed_type()))
    turns = op("Less", op("Mul", op("Sign", r), op("Sign", b)), zero)
    op("Where", turns, op("Add", r, b), r, name=call.made[0])
    return op.nodes


# -- operands and attributes that cut, fill and reshape ---------------------------------------------------------------


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
    """Return an operand with an entry for each axis: of operand `i` for the axes `what`, of `around` for others."""
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
        raise Inexpressible("`axes` of what is cropped, too, cannot be said")
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
    """Return whether each zero in the shape of a Reshape is a size of zero of the operand, too; a -1 excludes zeros."""
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
