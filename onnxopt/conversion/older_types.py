"""Older forms of operators with fewer, or different, element types."""

from __future__ import annotations

from typing import Final

from onnx import NodeProto, TensorProto

from onnxopt.conversion.boundaries import before
from onnxopt.conversion.call import Call
from onnxopt.proto.element_types import BY_CODE, FLOATS, INTEGERS
from onnxopt.proto.messages import numpy_dtype

_NARROW: Final = frozenset(code for code in INTEGERS if BY_CODE[code].bits < 32)


@before(20, "ReduceMax", "ReduceMin")
@before(13, "Pad")
def _of_booleans(call: Call) -> list[NodeProto] | None:
    """f(x) = Cast(f(Cast x)), of booleans as int32."""
    return call.widely(TensorProto.INT32, (0, 2)) if call.element_type() == TensorProto.BOOL else None


@before(14, "Add", "Sub", "Mul", "Div")
def _of_small_integers(call: Call) -> list[NodeProto] | None:
    """a + b = Cast(Cast a + Cast b), of 8 and 16 bits in 64."""
    return call.widely(TensorProto.INT64, (0, 1)) if call.element_type() in _NARROW else None


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
    return call.widely(TensorProto.DOUBLE, (0, 1))


@before(15, "CastLike")
@before(19, "CastLike")
def _cast(call: Call) -> list[NodeProto]:
    """CastLike(x, y) = Cast(x), to the type of y."""
    saturate = 1 if call.attr("saturate") is None else call.attr("saturate")
    extra = {} if saturate else {"saturate": saturate}
    call.op("Cast", call.input(0), to=call.needed_type(1), name=call.made[0], **extra)
    return call.op.nodes


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
