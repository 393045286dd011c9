"""Forms of operators absent from older opsets, as runtimes recognize the forms: norms, Gelu, Trilu and AffineGrid."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from onnxopt.conversion.boundaries import before
from onnxopt.conversion.call import Call, Unsayable
from onnxopt.proto.messages import numpy_dtype


class _Wide:
    """The operand of a norm in the element type of the statistics."""

    def __init__(self, call: Call) -> None:
        self.own = call.needed_type()
        stash = call.attr("stash_type") or TensorProto.FLOAT
        self.type = self.own if self.own == TensorProto.DOUBLE else stash
        self.x = call.cast(call.input(0), self.type)
        self._call = call

    def constant(self, number: Any) -> str:
        return self._call.op.constant(number, numpy_dtype(self.type))

    def scaled(self, x: str, scale: str, bias: str) -> list[NodeProto]:
        """x · s + b, in the call's own type."""
        op, made = self._call.op, self._call.made[0]
        if self.type != self.own:
            x = op("Cast", x, to=self.own)
        if bias:
            op("Add", op("Mul", x, scale), bias, name=made)
        else:
            op("Mul", x, scale, name=made)
        return op.nodes


def _last_axes(call: Call) -> list[int]:
    axis = call.attr("axis")
    return list(range(axis - call.rank() if axis >= 0 else axis, 0))


@before(17, "LayerNormalization")
def _layer_norm(call: Call) -> list[NodeProto]:
    """LayerNormalization(x, s, b) = d / √(mean d² + ε) · s + b, where d = x - mean x."""
    wide, axes, op = _Wide(call), _last_axes(call), call.op
    d = op("Sub", wide.x, op("ReduceMean", wide.x, axes=axes, name=call.output(1)))
    variance = op("ReduceMean", op("Pow", d, wide.constant(2)), axes=axes)
    deviation = op("Sqrt", op("Add", variance, wide.constant(call.attr("epsilon"))))
    if call.output(2):
        op("Reciprocal", deviation, name=call.output(2))
    return wide.scaled(op("Div", d, deviation), call.input(1), call.input(2))


@before(23, "RMSNormalization")
def _rms_norm(call: Call) -> list[NodeProto]:
    """RMSNormalization(x, s) = x / √(mean x² + ε) · s."""
    wide, op = _Wide(call), call.op
    square = op("ReduceMean", op("Pow", wide.x, wide.constant(2)), op.constant(_last_axes(call)))
    root = op("Sqrt", op("Add", square, wide.constant(call.attr("epsilon"))))
    return wide.scaled(op("Div", wide.x, root), call.input(1), "")


@before(18, "GroupNormalization")
@before(21, "GroupNormalization")
def _group_norm(call: Call) -> list[NodeProto]:
    """GroupNormalization(x, s, b) = InstanceNormalization(groups of x) · s + b; before opset 21 s, b are of a group."""
    wide, op, groups = _Wide(call), call.op, call.attr("num_groups")
    rows, dims = op("Reshape", wide.x, op.constant([0, groups, -1])), op("Shape", wide.x)
    by_channel = call.since > 18
    if by_channel:
        factors = [wide.constant(np.full(groups, n)) for n in (1, 0)]
    else:
        factors = [call.cast(call.input(i), wide.type) for i in (1, 2)]
    found = op("Reshape", op("InstanceNormalization", rows, *factors, epsilon=call.attr("epsilon")), dims)
    if by_channel:
        column = op.constant([-1] + [1] * (call.rank() - 2))
        return wide.scaled(found, *(op("Reshape", call.input(i), column) for i in (1, 2)))
    op("Cast", found, to=wide.own, name=call.made[0])
    return op.nodes


@before(14, "Trilu")
def _trilu(call: Call) -> list[NodeProto]:
    """Trilu(x, k) = Where(column ≥ row + k, x, 0); of the lower part column ≤ row + k."""
    op, x, kind = call.op, call.input(0), call.needed_type()
    dims, zero, one = op("Shape", x), op.constant(0), op.constant(1)
    places = [op("Range", zero, op("Gather", dims, op.constant(axis)), one) for axis in (-2, -1)]
    row, column = op("Unsqueeze", places[0], op.constant([1])), places[1]
    if call.input(1):
        row = op("Add", row, call.input(1))
    kept = op("Not", op("Less" if call.attr("upper") else "Greater", column, row))
    if kind == TensorProto.BOOL:
        op("And", x, kept, name=call.made[0])
    else:
        op("Where", kept, x, op.constant(0, numpy_dtype(kind)), name=call.made[0])
    return op.nodes


@before(20, "Gelu")
def _gelu(call: Call) -> list[NodeProto] | None:
    """Gelu(x) = x · (Erf(x / √2) + 1) · ½."""
    if call.attr("approximate") != "none":
        return None
    x, dtype = call.input(0), numpy_dtype(call.needed_type())
    root, one, half = (call.op.constant(number, dtype) for number in (2**0.5, 1, 0.5))
    phi = call.op("Add", call.op("Erf", call.op("Div", x, root)), one)
    call.op("Mul", call.op("Mul", x, phi), half, name=call.made[0])
    return call.op.nodes


@before(20, "AffineGrid")
def _affine_grid(call: Call) -> list[NodeProto]:
    """AffineGrid(θ, size) = Σ xₖ · θ[:, :, k] + θ[:, :, last], where xₖ are the places of pixels along an axis, from -1
    to 1. The definition of the standard takes no batch of 1."""
    op, kind, dims = call.op, call.needed_type(), call.size(0, 1)
    if dims is None:
        raise Unsayable("the number of axes of the grid is not known")
    axes = dims - 2
    between = op.constant(range(1, axes + 1))
    one, two = (op.constant(n, numpy_dtype(kind)) for n in (1, 2))
    last, *factors = (
        op("Unsqueeze", op("Gather", call.input(0), op.constant(k), axis=2), between) for k in (axes, *range(axes))
    )
    terms = [last]
    for k, factor in enumerate(factors):
        size = op("Gather", call.input(1), op.constant(dims - 1 - k))
        double = op("Mul", op("Cast", op("Range", op.constant(0), size, op.constant(1)), to=kind), two)
        size = op("Cast", size, to=kind)
        if call.attr("align_corners"):
            place = op("Div", double, op("Sub", size, one))
        else:
            place = op("Div", op("Add", double, one), size)
        column = op("Unsqueeze", op("Sub", place, one), op.constant(range(1, k + 2)))
        terms.append(op("Mul", column, factor))
    op("Sum", *terms, name=call.made[0])
    return op.nodes
