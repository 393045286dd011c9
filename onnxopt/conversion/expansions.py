"""Forms of operators absent from older opsets: norms, Gelu, Trilu, AffineGrid, Einsum, quantizers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeAlias

import numpy as np
from onnx import NodeProto, TensorProto

from onnxopt.analysis.shapes.symbolic import Size
from onnxopt.conversion.call import Call, Inexpressible, before
from onnxopt.operators.operands import Equation, Letters, read_equation
from onnxopt.proto.element_types import BY_CODE
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
        raise Inexpressible("the number of axes of the grid is not known")
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


# -- Einsum, as products of matrices ----------------------------------------------------------------------------------

Operand: TypeAlias = tuple[str, Letters]  # name and axes of a value


@before(12, "Einsum")
def _einsum(call: Call) -> list[NodeProto]:
    """Einsum(x, y) = Transpose(ReduceSum(MatMul(x', y'))), where x' and y' have the axes in one order."""
    names = [call.input(i) for i in range(len(call.node.input))]
    equation = read_equation(call.attr("equation"), [call.rank(i) for i in range(len(names))])
    if equation is None or equation.has_diagonal:
        raise Inexpressible(f"the equation {call.attr('equation')} is not said by other operators")
    steps, result = _Steps(call, equation), equation.result
    found, *others = zip(names, equation.terms)
    for i, other in enumerate(others):
        found = steps.product(found, other, {*result}.union(*equation.terms[i + 2 :]))
    x, letters = steps.summed(found, result)
    call.op("Transpose", x, perm=[letters.index(c) for c in result], name=call.made[0])
    return call.op.nodes


class _Steps:
    """The nodes of one Einsum. `_sizes`: the sizes of each letter's axes, None for an unknown size."""

    def __init__(self, call: Call, equation: Equation) -> None:
        self._op = call.op
        self._sizes: dict[str, set[Size | None]] = {}
        for name, letters in zip(call.node.input, equation.terms):
            for letter, size in zip(letters, call.known.sizes(name) or [None] * len(letters)):
                self._sizes.setdefault(letter, set()).add(size)

    def product(self, x: Operand, y: Operand, kept: Collection[str]) -> Operand:
        """Return the product of two operands, summed over all axes but the `kept` letters."""
        x, y = self.summed(x, {*kept, *y[1]}), self.summed(y, {*kept, *x[1]})
        both = [c for c in x[1] if c in y[1]]
        row = [c for c in x[1] if c not in both][-1:]
        column = [c for c in y[1] if c not in both][-1:]
        # MatMul repeats no axis of one element: all axes of a letter have the same known size.
        same = [c for c in both if len(self._sizes[c]) == 1 and None not in self._sizes[c]]
        inner = [c for c in same if c not in kept][-1:]
        outer = [c for c in dict.fromkeys(x[1] + y[1]) if c not in row + column + inner]
        row, column, inner = row or [""], column or [""], inner or [""]
        made = self._op("MatMul", self._ordered(x, outer + row + inner), self._ordered(y, outer + inner + column))
        return self.summed((made, (*outer, *row, *column)), kept)

    def summed(self, x: Operand, kept: Collection[str]) -> Operand:
        """Return the sum over all axes but the `kept` letters."""
        name, letters = x
        axes = [i for i, c in enumerate(letters) if c not in kept]
        left = tuple(c for c in letters if c in kept)
        return (self._op("ReduceSum", name, axes=axes, keepdims=0), left) if axes else x

    def _ordered(self, x: Operand, order: list[str]) -> str:
        """Return the value with the axes in this order; letters that the value lacks get an axis of one element."""
        name, letters = x
        perm = [letters.index(c) for c in order if c in letters]
        if perm != sorted(perm):
            name = self._op("Transpose", name, perm=perm)
        axes = [i for i, c in enumerate(order) if c not in letters]
        return self._op("Unsqueeze", name, axes=axes) if axes else name


# -- QuantizeLinear and DequantizeLinear ------------------------------------------------------------------------------


@before(13, "DequantizeLinear")
def _dequantized(call: Call) -> list[NodeProto]:
    """DequantizeLinear(x, s, z; axis) = (x - z) · s; before, no attribute `axis`."""
    if _is_single(call):
        return call.rewritten(without=["axis"])
    x, scale, zero = (call.input(i) for i in range(3))
    kind = call.needed_type(1)
    found = call.cast(x, kind)
    if zero:
        found = call.op("Sub", found, _column(call, call.cast(zero, kind)))
    call.op("Mul", found, _column(call, scale), name=call.made[0])
    return call.op.nodes


@before(13, "QuantizeLinear")
def _quantized(call: Call) -> list[NodeProto]:
    """QuantizeLinear(x, s, z; axis) = Cast(Clip(Round(x / s) + z)); before, no attribute `axis`."""
    if _is_single(call):
        return call.rewritten(without=["axis"])
    x, scale, zero = (call.input(i) for i in range(3))
    kind, own = call.needed_type(2) if zero else TensorProto.UINT8, call.needed_type(0)
    found = call.op("Round", call.op("Div", x, _column(call, scale)))
    if zero:
        found = call.op("Add", found, _column(call, call.cast(zero, own)))
    bounds = BY_CODE[kind].integers
    limits = [call.op.constant(n, numpy_dtype(own)) for n in bounds]
    call.op("Cast", call.op("Clip", found, *limits), to=kind, name=call.made[0])
    return call.op.nodes


def _is_single(call: Call) -> bool:
    """Return whether a single scale applies to all elements."""
    return call.rank(1) == 0 or call.size(0, 1) == 1


def _column(call: Call, name: str) -> str:
    """Return the value with a size for each axis from `axis` on, to broadcast along `axis`."""
    rank = call.rank()
    return call.op("Reshape", name, call.op.constant([-1] + [1] * (rank - 1 - call.attr("axis") % rank)))


@before(21, "QuantizeLinear")
def _zero_point(call: Call) -> list[NodeProto] | None:
    """QuantizeLinear(x, s; output_dtype) = QuantizeLinear(x, s, 0)."""
    kind = call.attr("output_dtype")
    if not kind:
        return None
    if call.input(2):
        return call.rewritten(without=["output_dtype"])
    if call.rank(1) > 0:
        raise Inexpressible("there is no zero point for each scale")
    zero = call.op.constant(0, numpy_dtype(kind))
    return call.rewritten(inputs=[*call.node.input[:2], zero], without=["output_dtype"])


@before(23, "DequantizeLinear")
def _of_its_scale(call: Call) -> list[NodeProto] | None:
    """DequantizeLinear(x, s; output_dtype) = DequantizeLinear(x, s), of the type of s."""
    given = call.attr("output_dtype")
    return call.rewritten(without=["output_dtype"]) if given and given == call.element_type(1) else None
