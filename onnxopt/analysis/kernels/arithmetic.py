"""Kernels for integers, comparisons, and the correctly rounded + - * / sqrt of IEEE 754."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis.kernels.registry import KERNELS, NUMBERS, Inputs, Invalid, Kernel, axes_of, kernel
from onnxopt.graph.node import Node
from onnxopt.proto.element_types import element_kind, is_float, of
from onnxopt.proto.messages import Array, numpy_dtype

_MAX_EXACT_FLOAT64: Final = (1 << 53) - 1  # largest integer up to which float64 is exact


def _elementwise(function: Callable[..., Any], kinds: str = NUMBERS) -> Kernel:
    def run(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
        operands = [x for x in inputs if x is not None]
        if (opset < 7 and len(operands) > 1) or any(element_kind(x) not in kinds for x in operands):
            return None
        return [function(*operands)]

    return run


for _op, _function, _kinds in (
    ("Add", np.add, "iuf"),
    ("Sub", np.subtract, "iuf"),
    ("Mul", np.multiply, "iuf"),
    ("Neg", np.negative, "if"),
    ("Abs", np.abs, "iuf"),
    ("Sqrt", np.sqrt, "f"),
    ("Floor", np.floor, "f"),
    ("Ceil", np.ceil, "f"),
    ("Not", np.logical_not, "b"),
    ("And", np.logical_and, "b"),
    ("Or", np.logical_or, "b"),
    ("Xor", np.logical_xor, "b"),
    ("Equal", np.equal, NUMBERS),
    ("Less", np.less, "iuf"),
    ("LessOrEqual", np.less_equal, "iuf"),
    ("Greater", np.greater, "iuf"),
    ("GreaterOrEqual", np.greater_equal, "iuf"),
):
    KERNELS[_op] = _elementwise(_function, _kinds)


@kernel("Where")
def _where(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    c, x, y = inputs
    assert c is not None and x is not None and y is not None
    result = np.where(c, x, y)
    if is_float(result) and ((result == 0) & np.signbit(result)).any():
        return None  # runtimes that select by addition turn -0.0 into 0.0
    return [result]


@kernel("Reciprocal")
def _reciprocal(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    (x,) = inputs
    assert x is not None
    return [np.divide(x.dtype.type(1), x)]


def _overflows(a: Array, b: Array) -> bool:
    """Whether an integer quotient overflows; processors trap and runtimes crash."""
    return element_kind(a) == "i" and bool((b == -1).any() and ((a == of(a.dtype).low) & (b == -1)).any())


@kernel("Div")
def _div(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    a, b = inputs
    assert a is not None and b is not None
    if opset < 7:
        return None
    if is_float(a):
        return [np.divide(a, b)]
    if not b.all():
        raise Invalid("division by zero")
    if _overflows(a, b):
        raise Invalid("the smallest integer divided by -1")
    quotient = np.floor_divide(a, b)  # ONNX truncates, numpy floors
    return [(quotient + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0)))).astype(a.dtype)]


@kernel("Mod")
def _mod(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    a, b = inputs
    assert a is not None and b is not None
    if element_kind(a) in "iu" and not b.all():
        raise Invalid("division by zero")
    if _overflows(a, b):
        raise Invalid("the smallest integer divided by -1")
    if element_kind(a) not in "iu" or node.attr("fmod", 0):
        return None
    return [np.remainder(a, b)]


@kernel("Max", "Min")
def _extremum(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    operands = [x for x in inputs if x is not None]
    if any(element_kind(x) not in "iu" for x in operands):
        return None  # NaN handling differs between runtimes
    function = np.maximum if node.op == "Max" else np.minimum
    result = operands[0]
    for x in operands[1:]:
        result = function(result, x)
    return [result]


@kernel("Cast")
def _cast(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    (x,) = inputs
    assert x is not None
    to = node.attr("to")
    if to == TensorProto.STRING or to >= TensorProto.COMPLEX64:
        return None
    dtype = numpy_dtype(to)
    if is_float(x) and element_kind(dtype) in "iu":
        limits = of(dtype)
        # Out-of-range conversion is undefined in C, and differs between runtimes; NaN fails both comparisons.
        if x.size and not limits.low - 1 < float(x.min()) <= float(x.max()) < float(limits.high) + 1:
            return None
    if x.dtype == np.float64 and dtype == np.float16:
        return None  # some runtimes round twice
    return [x.astype(dtype)]


_REDUCE: Final[dict[str, Any]] = {
    "ReduceProd": np.multiply,
    "ReduceSum": np.add,
    "ReduceMax": np.maximum,
    "ReduceMin": np.minimum,
}


@kernel("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin")
def _reduce(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    x, axes = inputs[0], axes_of(node, inputs, 13 if node.op == "ReduceSum" else 18, opset)
    assert x is not None
    if element_kind(x) not in "iu" or x.size == 0:
        return None  # the summation order of floats depends on the runtime
    if not axes:
        if node.attr("noop_with_empty_axes", 0) == 1:
            return [x]
        axes = list(range(x.ndim))
    how = {"axis": tuple(axes), "keepdims": node.keeps_dims}
    result = _REDUCE[node.op].reduce(x, **how)
    wide = _REDUCE[node.op].reduce(np.abs(x).view(f"u{x.itemsize}"), dtype=np.float64, **how)
    if (wide > min(of(x.dtype).high, _MAX_EXACT_FLOAT64)).any():
        return None  # on overflow runtimes wrap or saturate; some sum in float64
    return [result.astype(x.dtype)]
