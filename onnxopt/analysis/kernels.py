"""Numpy kernels for the operators that shape arithmetic and weight reshuffling are made of.

Only operations whose result is the same bits in every correct implementation: data movement, integers, and the
correctly rounded + - * / sqrt of IEEE 754. Everything else is left to a real runtime. They exist so that folding
a model's index arithmetic needs neither a session nor the import of a runtime.

A kernel takes (node, inputs, opset) and returns one array per output, or None where it will not answer.
Results may be zero-stride views (Expand, ConstantOfShape): nothing big is made before it is known to be wanted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis.slicing import cuts, indices
from onnxopt.graph.node import Node
from onnxopt.protos import Array, numpy_dtype, tensor_bytes

Inputs = Sequence[Array | None]
Kernel = Callable[[Node, Inputs, int], "list[Array] | None"]
_KERNELS: Final[dict[str, Kernel]] = {}
_NUMBERS: Final = "iufb"
_EXACT: Final = (1 << 53) - 1  # up to this float64 tells all integers apart
# Their kernels return views.
_VIEWS: Final = frozenset(
    {"Expand", "ConstantOfShape", "Shape", "Size", "Identity", "Transpose", "Slice", "Squeeze", "Unsqueeze"}
)


class Invalid(Exception):
    """These operands are an error at run time; no runtime should be asked (some die of it)."""


def exists(op: str) -> bool:
    return op in _KERNELS


def evaluate(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    """The node's outputs, or None if there is no kernel for these operands.

    Raises Invalid where the node would fail at run time: it stays as it was, and fails where it always did.
    """
    kernel = _KERNELS.get(node.op)
    if kernel is None or any(x is not None and x.dtype.kind not in _NUMBERS for x in inputs):
        return None
    try:
        with np.errstate(all="ignore"):
            results = kernel(node, inputs, opset)
    except (ValueError, IndexError, TypeError, KeyError, AssertionError, ZeroDivisionError, OverflowError):
        return None  # odd operands: let a runtime decide
    return None if results is None else [np.asarray(r) for r in results]


def result_bytes(node: Node, inputs: Inputs) -> int:
    """Bytes that `evaluate` will make. Views cost nothing; what has no kernel is measured by its shape."""
    if node.op in _VIEWS or not exists(node.op):
        return 0
    arrays = [x for x in inputs if x is not None]
    if node.op == "Range":
        return _range_bytes(arrays)
    if node.op == "NonZero":
        return sum(8 * x.size * max(1, x.ndim) for x in arrays)
    if node.op == "Tile":
        return arrays[0].nbytes * max(0, math.prod(int(r) for r in arrays[-1].reshape(-1)))
    if node.op == "Gather" and len(arrays) == 2:
        axis = int(node.attr("axis"))
        size = arrays[0].shape[axis] if -arrays[0].ndim <= axis < arrays[0].ndim else 1
        return arrays[0].nbytes // max(1, size) * arrays[1].size
    try:
        shape = np.broadcast_shapes(*(x.shape for x in arrays))
    except ValueError:
        return sum(x.nbytes for x in arrays)
    if node.op == "Cast":
        return tensor_bytes(node.attr("to"), shape)
    return max(math.prod(shape) * max(x.itemsize for x in arrays), sum(x.nbytes for x in arrays)) if arrays else 0


def _range_bytes(operands: Sequence[Array]) -> int:
    """What Range makes of (start, limit, delta); 0 where they are no integers."""
    if len(operands) != 3 or any(x.size != 1 or x.dtype.kind not in "iu" for x in operands):
        return 0
    start, limit, delta = (int(x.item()) for x in operands)
    return max(0, -((start - limit) // delta)) * operands[0].itemsize if delta else 0


def _kernel(*ops: str) -> Callable[[Kernel], Kernel]:
    def add(function: Kernel) -> Kernel:
        for op in ops:
            _KERNELS[op] = function
        return function

    return add


def _axes(node: Node, inputs: Inputs, since: int, opset: int) -> list[int] | None:
    """`axes` as an input from opset `since` on, as an attribute before."""
    if opset >= since:
        given = inputs[1] if len(inputs) > 1 else None
        return None if given is None else [int(a) for a in given.reshape(-1)]
    axes = node.attr("axes")
    return None if axes is None else list(axes)


def _elementwise(function: Callable[..., Any], kinds: str = _NUMBERS) -> Kernel:
    def kernel(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
        operands = [x for x in inputs if x is not None]
        if (opset < 7 and len(operands) > 1) or any(x.dtype.kind not in kinds for x in operands):
            return None
        return [function(*operands)]

    return kernel


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
    _KERNELS[_op] = _elementwise(_function, _kinds)


@_kernel("Where")
def _where(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    c, x, y = inputs
    assert c is not None and x is not None and y is not None
    result = np.where(c, x, y)
    if result.dtype.kind == "f" and ((result == 0) & np.signbit(result)).any():
        return None  # in runtimes that choose by adding, -0.0 and the other's 0.0 are 0.0
    return [result]


@_kernel("Reciprocal")
def _reciprocal(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    (x,) = inputs
    assert x is not None
    return [np.divide(x.dtype.type(1), x)]


def _overflows(a: Array, b: Array) -> bool:
    """Is the quotient of two integers somewhere larger than any? Processors trap, runtimes die."""
    return a.dtype.kind == "i" and bool((b == -1).any() and ((a == np.iinfo(a.dtype).min) & (b == -1)).any())


@_kernel("Div")
def _div(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    a, b = inputs
    assert a is not None and b is not None
    if opset < 7:
        return None
    if a.dtype.kind == "f":
        return [np.divide(a, b)]
    if not b.all():
        raise Invalid("division by zero")
    if _overflows(a, b):
        raise Invalid("the smallest integer divided by -1")
    quotient = np.floor_divide(a, b)  # ONNX truncates, numpy floors
    return [(quotient + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0)))).astype(a.dtype)]


@_kernel("Mod")
def _mod(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    a, b = inputs
    assert a is not None and b is not None
    if a.dtype.kind in "iu" and not b.all():
        raise Invalid("division by zero")
    if _overflows(a, b):
        raise Invalid("the smallest integer divided by -1")
    if a.dtype.kind not in "iu" or node.attr("fmod", 0):
        return None
    return [np.remainder(a, b)]


@_kernel("Max", "Min")
def _extremum(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    operands = [x for x in inputs if x is not None]
    if any(x.dtype.kind not in "iu" for x in operands):
        return None  # which NaN wins is not for us to say
    function = np.maximum if node.op == "Max" else np.minimum
    result = operands[0]
    for x in operands[1:]:
        result = function(result, x)
    return [result]


@_kernel("Identity")
def _identity(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    return [x for x in inputs if x is not None]


@_kernel("Cast")
def _cast(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    (x,) = inputs
    assert x is not None
    to = node.attr("to")
    if to == TensorProto.STRING or to >= TensorProto.COMPLEX64:
        return None
    dtype = numpy_dtype(to)
    if x.dtype.kind == "f" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        whole = np.trunc(x.astype(np.float64))
        # Out of range is undefined in C, and runtimes differ.
        if not (np.isfinite(whole).all() and (whole >= limits.min).all() and (whole < float(limits.max) + 1).all()):
            return None
    if x.dtype == np.float64 and dtype == np.float16:
        return None  # some round twice
    return [x.astype(dtype)]


@_kernel("Shape")
def _shape(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    (x,) = inputs
    assert x is not None
    return [np.array(x.shape[slice(node.attr("start") or 0, node.attr("end"))], np.int64)]


@_kernel("Size")
def _size(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    (x,) = inputs
    assert x is not None
    return [np.array(x.size, np.int64)]


@_kernel("Reshape")
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


@_kernel("Flatten")
def _flatten(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    (x,) = inputs
    assert x is not None
    axis = node.attr("axis")
    axis = axis + x.ndim if axis < 0 else axis
    return [x.reshape(int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:])))]


@_kernel("Squeeze")
def _squeeze(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    x, axes = inputs[0], _axes(node, inputs, 13, opset)
    assert x is not None
    if axes is not None and not axes:
        return None  # the standard says nothing goes, runtimes that all ones do
    return [np.squeeze(x) if axes is None else np.squeeze(x, tuple(axes))]


@_kernel("Unsqueeze")
def _unsqueeze(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    x, axes = inputs[0], _axes(node, inputs, 13, opset)
    assert x is not None and axes is not None
    return [np.expand_dims(x, tuple(axes))]


@_kernel("Transpose")
def _transpose(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    (x,) = inputs
    assert x is not None
    return [np.transpose(x, node.attr("perm"))]


@_kernel("Concat")
def _concat(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    axis = node.attr("axis")
    return None if axis is None else [np.concatenate([x for x in inputs if x is not None], axis=axis)]


@_kernel("Gather")
def _gather(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    x, indices = inputs
    assert x is not None and indices is not None
    return [np.take(x, indices, axis=node.attr("axis"))]


@_kernel("Slice")
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


@_kernel("Expand")
def _expand(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    x, shape = inputs
    assert x is not None and shape is not None
    return [np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(d) for d in shape)))]


@_kernel("Tile")
def _tile(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    if opset < 6:
        return None
    x, repeats = inputs
    assert x is not None and repeats is not None
    if repeats.shape != (x.ndim,):
        return None
    return [np.tile(x, [int(r) for r in repeats])]


@_kernel("ConstantOfShape")
def _constant_of_shape(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    (shape,) = inputs
    assert shape is not None
    value = node.attr("value")
    fill = value.reshape(()) if value is not None and value.size == 1 else np.zeros((), np.float32)
    return [np.broadcast_to(fill, tuple(int(d) for d in shape))]


@_kernel("Range")
def _range(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    given = [x for x in inputs if x is not None]
    start, limit, delta = (x.item() for x in given)  # runtimes take one element of any rank for a scalar
    if given[0].dtype.kind not in "iu" or delta == 0:
        return None  # a float range accumulates differently here and there
    return [np.arange(start, limit, delta, dtype=given[0].dtype)]


@_kernel("Split")
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


@_kernel("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin")
def _reduce(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    x, axes = inputs[0], _axes(node, inputs, 13 if node.op == "ReduceSum" else 18, opset)
    assert x is not None
    if x.dtype.kind not in "iu" or x.size == 0:
        return None  # the order of a float sum is the runtime's
    if not axes:
        if node.attr("noop_with_empty_axes", 0) == 1:
            return [x]
        axes = list(range(x.ndim))
    function: Any = {"ReduceProd": np.prod, "ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMin": np.min}[node.op]
    result, wide = (
        function(y, axis=tuple(axes), keepdims=bool(node.attr("keepdims", 1))) for y in (x, abs(x.astype(np.float64)))
    )
    if (wide > min(np.iinfo(x.dtype).max, _EXACT)).any():
        return None  # what does not fit runtimes wrap around, or cut off; and they may add up in float64
    return [result.astype(x.dtype)]


@_kernel("NonZero")
def _nonzero(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    (x,) = inputs
    assert x is not None
    return [np.array(np.nonzero(np.atleast_1d(x)), np.int64)]
