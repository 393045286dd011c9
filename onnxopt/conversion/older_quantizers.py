"""Older forms of QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from onnx import NodeProto, TensorProto

from onnxopt.conversion.boundaries import before
from onnxopt.conversion.call import Call, Unsayable
from onnxopt.proto.element_types import BY_CODE
from onnxopt.proto.messages import numpy_dtype


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
        raise Unsayable("there is no zero point for each scale")
    zero = call.op.constant(0, numpy_dtype(kind))
    return call.rewritten(inputs=[*call.node.input[:2], zero], without=["output_dtype"])


@before(23, "DequantizeLinear")
def _of_its_scale(call: Call) -> list[NodeProto] | None:
    """DequantizeLinear(x, s; output_dtype) = DequantizeLinear(x, s), of the type of s."""
    given = call.attr("output_dtype")
    return call.rewritten(without=["output_dtype"]) if given and given == call.element_type(1) else None
