"""The table of older forms: for an operator and the opset that changed the operator, the form before."""

from __future__ import annotations

from typing import Final

import numpy as np
from onnx import NodeProto

from onnxopt.conversion.boundaries import before
from onnxopt.conversion.call import Call, Unsayable
from onnxopt.operators import REDUCTIONS
from onnxopt.rewriting.rule import FORMS as ATTRIBUTES

_SELECTIVE: Final = frozenset({"ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"})  # of one: that one
_CONSTANT_ATTRIBUTES: Final = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}
# Values of attributes that the opset brought.
_NEW_VALUES: Final = {
    ("Pad", 19): ("mode", ("wrap",)),
    ("Resize", 19): ("coordinate_transformation_mode", ("half_pixel_symmetric",)),
    ("ScatterElements", 18): ("reduction", ("max", "min")),
    ("ScatterND", 18): ("reduction", ("max", "min")),
}


@before(19, "Pad", "Resize")
@before(18, "ScatterElements", "ScatterND")
def _new_value(call: Call) -> None:
    """f(x, mode) = f(x, mode), but for the new modes."""
    name, values = _NEW_VALUES[call.node.op_type, call.since]
    if call.attr(name) in values:
        raise Unsayable(f"`{name}` cannot be {call.attr(name)} before opset {call.since}")


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
        raise Unsayable(f"without axes it is no reduction from opset {call.since} on")
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
        raise Unsayable(f"it trains, which it could not before opset {call.since}")
    (dropout,) = call.rewritten(inputs=[call.input(0)], without=["seed"])
    del dropout.output[1:]
    if call.output(1):
        call.op("ConstantOfShape", call.op("Shape", call.input(0)), value=np.array([True]), name=call.made[1])
    return [*call.op.nodes, dropout]


@before(16, "RoiAlign")
def _shifted_later(call: Call) -> list[NodeProto]:
    """RoiAlign(x; output_half_pixel) = RoiAlign(x)."""
    mode = call.attr("coordinate_transformation_mode")
    if mode != "output_half_pixel":
        raise Unsayable(f"`coordinate_transformation_mode` cannot be {mode} before opset {call.since}")
    return call.rewritten(without=["coordinate_transformation_mode"])


@before(20, "GridSample")
def _mode_names(call: Call) -> list[NodeProto]:
    """GridSample(x; linear) = GridSample(x; bilinear)."""
    if call.rank() != 4:
        raise Unsayable(f"it takes images alone before opset {call.since}")
    mode = call.attr("mode")
    return call.rewritten(mode={"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode))


@before(20, "DFT")
def _axis_of_dft(call: Call) -> list[NodeProto]:
    """DFT(x, n, axis) = DFT(x, n; axis)."""
    axis = int(call.constant(2, "axis").reshape(())) if call.input(2) else -2
    inputs = [n for n in call.node.input[:2] if n]
    return call.rewritten(inputs=inputs, axis=axis % call.rank())
