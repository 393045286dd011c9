"""Numpy kernels of operators, for constants: index arithmetic, weight layout, integers.

Every correct implementation computes the same bits: data movement, integers, comparisons, and the correctly rounded
+ - * / sqrt of IEEE 754. All other operators are left to a runtime. Kernels fold index arithmetic without a session and
without importing a runtime.

A kernel takes (node, opset, *operands), and returns an array for each output, or None for unsupported operands. Results
may be views with stride 0 (Expand, ConstantOfShape): large arrays are materialized only when needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis.shapes.sizes import broadcast_shape, cuts, indices, listed_by
from onnxopt.graph.node import Node
from onnxopt.proto.element_types import element_kind, is_float, of
from onnxopt.proto.messages import Array, numpy_dtype, tensor_bytes

Results = list[Array] | None
Kernel = Callable[..., Results]
KERNELS: Final[dict[str, Kernel]] = {}
_SIZES: Final[dict[str, Callable[..., int]]] = {}  # bytes of the results, by operator
_NUMBERS: Final = "iufb"
# Operands that no kernel accepts; a runtime reports the error.
_UNUSUAL: Final = (ValueError, IndexError, TypeError, KeyError, AttributeError, ArithmeticError)


class Invalid(Exception):
    """The operands are an error at run time; no runtime must run them (some crash)."""


def evaluate(node: Node, inputs: Sequence[Array | None], opset: int) -> Results:
    """Return the node's outputs, or None if no kernel supports the operands.

    Raises Invalid if the node would fail at run time: it must stay, and fail as before.
    """
    kernel, operands = KERNELS.get(node.op), _operands(node, inputs)
    if kernel is None or operands is None:
        return None
    try:
        with np.errstate(all="ignore"):
            results = kernel(node, opset, *operands)
    except _UNUSUAL:
        return None
    return None if results is None else [np.asarray(r) for r in results]


def _operands(node: Node, inputs: Sequence[Array | None]) -> list[Array | None] | None:
    """Return the operands without absent ones at the end; None if a kernel takes no such types, or lacks an operand."""
    operands = list(inputs)
    while operands and operands[-1] is None:
        operands.pop()
    present = [x for x in operands if x is not None]
    if len(present) < len(operands) and node.op != "Slice":  # only a Slice has an optional operand between others
        return None
    return operands if all(element_kind(x) in _NUMBERS for x in present) else None


def result_bytes(node: Node, inputs: Sequence[Array | None]) -> int:
    """Return the bytes allocated by `evaluate`: 0 for views and without a kernel."""
    if node.op not in KERNELS:
        return 0
    return _SIZES.get(node.op, _broadcast_bytes)(node, *(x for x in inputs if x is not None))


def _kernel(*ops: str, size: Callable[..., int] | None = None) -> Callable[[Kernel], Kernel]:
    def add(function: Kernel) -> Kernel:
        KERNELS.update(dict.fromkeys(ops, function))
        if size is not None:
            _SIZES.update(dict.fromkeys(ops, size))
        return function

    return add


def _view(node: Node, *operands: Array) -> int:
    return 0


def _broadcast_bytes(node: Node, *operands: Array) -> int:
    """Return the bytes of the broadcast of all operands, but at least their sum."""
    total, widest = sum(x.nbytes for x in operands), max((x.itemsize for x in operands), default=0)
    try:
        return max(math.prod(broadcast_shape(*(x.shape for x in operands))) * widest, total)
    except ValueError:
        return total


def _cast_bytes(node: Node, *operands: Array) -> int:
    return tensor_bytes(node.attr("to"), operands[0].shape) if operands else 0


def _range_bytes(node: Node, *operands: Array) -> int:
    """Return the bytes of Range(start, limit, delta); 0 if they are not integers."""
    if len(operands) != 3 or any(x.size != 1 or element_kind(x) not in "iuf" for x in operands):
        return 0
    if not all(float(x.item()).is_integer() for x in operands):
        return 0
    start, limit, delta = (int(x.item()) for x in operands)
    return max(0, -((start - limit) // delta)) * operands[0].itemsize if delta else 0


def _tiled_bytes(node: Node, *operands: Array) -> int:
    if len(operands) != 2:
        return _broadcast_bytes(node, *operands)
    return operands[0].nbytes * max(0, math.prod(int(r) for r in operands[1].reshape(-1)))


def _gathered_bytes(node: Node, *operands: Array) -> int:
    if len(operands) != 2:
        return _broadcast_bytes(node, *operands)
    (x, places), axis = operands, int(node.attr("axis"))
    size = x.shape[axis] if -x.ndim <= axis < x.ndim else 1
    return x.nbytes // max(1, size) * places.size


def _elementwise(function: Callable[..., Any], kinds: str) -> Kernel:
    def run(node: Node, opset: int, *operands: Array) -> Results:
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
    ("Equal", np.equal, _NUMBERS),
    ("Less", np.less, "iuf"),
    ("LessOrEqual", np.less_equal, "iuf"),
    ("Greater", np.greater, "iuf"),
    ("GreaterOrEqual", np.greater_equal, "iuf"),
):
    KERNELS[_op] = _elementwise(_function, _kinds)


@_kernel("Where")
def _where(node: Node, opset: int, c: Array, x: Array, y: Array) -> Results:
    result = np.where(c, x, y)
    if is_float(result) and ((result == 0) & np.signbit(result)).any():
        return None  # runtimes that select by addition turn -0.0 into 0.0
    return [result]


@_kernel("Reciprocal")
def _reciprocal(node: Node, opset: int, x: Array) -> Results:
    return [np.divide(x.dtype.type(1), x)]


def _check_divisor(a: Array, b: Array) -> None:
    """Raise Invalid if an integer quotient has no value, or overflows: processors trap, and runtimes crash."""
    if element_kind(a) in "iu" and not b.all():
        raise Invalid("division by zero")
    if element_kind(a) == "i" and ((b == -1) & (a == of(a.dtype).low)).any():
        raise Invalid("the smallest integer divided by -1")


@_kernel("Div")
def _div(node: Node, opset: int, a: Array, b: Array) -> Results:
    if opset < 7:
        return None
    if is_float(a):
        return [np.divide(a, b)]
    _check_divisor(a, b)
    quotient = np.floor_divide(a, b)  # ONNX truncates, numpy floors
    return [(quotient + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0)))).astype(a.dtype)]


@_kernel("Mod")
def _mod(node: Node, opset: int, a: Array, b: Array) -> Results:
    _check_divisor(a, b)
    return None if element_kind(a) not in "iu" or node.attr("fmod", 0) else [np.remainder(a, b)]


@_kernel("Max", "Min")
def _extremum(node: Node, opset: int, result: Array, *others: Array) -> Results:
    if any(element_kind(x) not in "iu" for x in (result, *others)):
        return None  # NaN handling differs between runtimes
    for x in others:
        result = np.maximum(result, x) if node.op == "Max" else np.minimum(result, x)
    return [result]


@_kernel("Cast", size=_cast_bytes)
def _cast(node: Node, opset: int, x: Array) -> Results:
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


def _axes(node: Node, opset: int, since: int, given: Array | None) -> list[int] | None:
    """Return `axes`, an operand from opset `since` on and an attribute before."""
    axes: Any = node.attr("axes") if opset < since else None if given is None else given.reshape(-1)
    return None if axes is None else [int(a) for a in axes]


@_kernel("Identity", size=_view)
def _identity(node: Node, opset: int, x: Array) -> Results:
    return [x]


@_kernel("Shape", size=_view)
def _shape(node: Node, opset: int, x: Array) -> Results:
    return [np.array(x.shape[listed_by(node)], np.int64)]


@_kernel("Size", size=_view)
def _size(node: Node, opset: int, x: Array) -> Results:
    return [np.array(x.size, np.int64)]


@_kernel("Reshape")
def _reshape(node: Node, opset: int, x: Array, shape: Array) -> Results:
    if opset < 5:
        return None
    target = [int(d) for d in shape]
    if not node.attr("allowzero", 0):
        target = [x.shape[i] if d == 0 else d for i, d in enumerate(target)]
    return None if -1 in target and x.size == 0 else [x.reshape(target)]


@_kernel("Flatten")
def _flatten(node: Node, opset: int, x: Array) -> Results:
    axis = node.attr("axis")
    axis = axis + x.ndim if axis < 0 else axis
    return [x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))]


@_kernel("Squeeze", size=_view)
def _squeeze(node: Node, opset: int, x: Array, given: Array | None = None) -> Results:
    axes = _axes(node, opset, 13, given)
    if axes is not None and not axes:
        return None  # for empty axes the standard drops nothing, runtimes drop all axes of size 1
    return [np.squeeze(x) if axes is None else np.squeeze(x, tuple(axes))]


@_kernel("Unsqueeze", size=_view)
def _unsqueeze(node: Node, opset: int, x: Array, given: Array | None = None) -> Results:
    axes = _axes(node, opset, 13, given)
    return None if axes is None else [np.expand_dims(x, tuple(axes))]


@_kernel("Transpose", size=_view)
def _transpose(node: Node, opset: int, x: Array) -> Results:
    return [np.transpose(x, node.attr("perm"))]


@_kernel("Concat")
def _concat(node: Node, opset: int, *operands: Array) -> Results:
    axis = node.attr("axis")
    return None if axis is None else [np.concatenate(operands, axis=axis)]


@_kernel("Gather", size=_gathered_bytes)
def _gather(node: Node, opset: int, x: Array, places: Array) -> Results:
    axis = range(x.ndim)[node.attr("axis")]
    if element_kind(places) not in "iu":
        return None
    return [x[(slice(None),) * axis + (places,)]]  # np.take would materialize repeated elements


@_kernel("Slice", size=_view)
def _slice(node: Node, opset: int, x: Array, *given: Array | None) -> Results:
    if opset >= 10:
        bounds = [None if i is None else [int(v) for v in i.reshape(-1)] for i in (*given, None, None, None)]
    else:
        bounds = [node.attr("starts"), node.attr("ends"), node.attr("axes"), None]
    starts, ends, axes, steps = bounds[:4]
    found = None if starts is None or ends is None else cuts(starts, ends, axes, steps, x.ndim)
    if found is None:
        return None
    index: list[slice | None] = [slice(None)] * x.ndim
    for axis, start, end, step in found:
        index[axis] = indices(start, end, step, x.shape[axis])
    return None if None in index else [x[tuple(index)]]


@_kernel("Expand", size=_view)
def _expand(node: Node, opset: int, x: Array, shape: Array) -> Results:
    return [np.broadcast_to(x, broadcast_shape(x.shape, tuple(int(d) for d in shape)))]


@_kernel("Tile", size=_tiled_bytes)
def _tile(node: Node, opset: int, x: Array, repeats: Array) -> Results:
    if opset < 6 or repeats.shape != (x.ndim,):
        return None
    return [np.tile(x, [int(r) for r in repeats])]


@_kernel("ConstantOfShape", size=_view)
def _constant_of_shape(node: Node, opset: int, shape: Array) -> Results:
    value = node.attr("value")
    fill = value.reshape(()) if value is not None and value.size == 1 else np.zeros((), np.float32)
    return [np.broadcast_to(fill, tuple(int(d) for d in shape))]


@_kernel("Range", size=_range_bytes)
def _range(node: Node, opset: int, *operands: Array) -> Results:
    start, limit, delta = (x.item() for x in operands)  # runtimes accept a single element of any rank as a scalar
    dtype = operands[0].dtype
    if delta == 0:
        return None
    if element_kind(dtype) in "iu":
        return [np.arange(start, limit, delta, dtype=dtype)]
    if not _counts_exactly(operands):
        return None  # accumulation in float ranges differs between runtimes
    return [np.arange(int(start), int(limit), int(delta)).astype(dtype)]


def _counts_exactly(operands: Sequence[Array]) -> bool:
    """Whether float operands are integers with exact sums; not for a start of -0, which the result would keep."""
    if any(not is_float(x) or not float(x.item()).is_integer() for x in operands):
        return False
    start, largest = operands[0].item(), 2 ** of(operands[0].dtype).digits
    return all(abs(x.item()) <= largest for x in operands) and (start != 0 or not np.signbit(start))


@_kernel("Split")
def _split(node: Node, opset: int, x: Array, given: Array | None = None) -> Results:
    axis, count = node.attr("axis"), len(node.outputs)
    lengths: Any = given if opset >= 13 and given is not None else node.attr("split")
    if lengths is None:
        size = -(-x.shape[axis] // count)
        lengths = [size] * (count - 1)
        lengths.append(x.shape[axis] - sum(lengths))
        if lengths[-1] < 0 or (opset < 18 and x.shape[axis] % count):
            return None
    sizes = [int(s) for s in lengths]
    if sum(sizes) != x.shape[axis] or len(sizes) != count:
        return None
    return list(np.split(x, np.cumsum(sizes)[:-1], axis=axis))
