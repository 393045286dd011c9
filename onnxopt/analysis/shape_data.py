"""Shapes, and the integers that are computed from shapes, as symbolic expressions.

onnx's inference knows the operators, but gives a new name to every dim it cannot express. One sweep in the order of the
nodes, over what it found, carries sums and products of symbols through the index arithmetic that exporters write:
Shape, Gather, Concat, Mul, …, and back into the shapes of Reshape, Expand, Range and Slice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.operator_shapes import RULES
from onnxopt.analysis.symbolic import (
    LARGEST,
    Expr,
    Size,
    TooComplex,
    differs,
    divide,
    is_nonnegative,
    symbol,
)
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.reader import function_label
from onnxopt.graph.value import Value
from onnxopt.protos import Array

_SMALL: Final = 64  # elements; what is larger is data, not a shape
_INTEGERS: Final = frozenset({TensorProto.INT64, TensorProto.INT32})
_ENDS: Final = 1 << 62  # from here on, the end of a Slice means all the way
_unnamed = itertools.count()

Dims = tuple[Size, ...]


@dataclass(eq=False)
class ShapeData:
    """`dims`: shapes of known rank, every dim an expression. `contents`: small integer tensors as arrays of int,
    Expr, bool, or None where an element is unknown."""

    dims: dict[Value, Dims] = field(default_factory=dict)
    contents: dict[Value, Array] = field(default_factory=dict)

    def shape(self, v: Value | None) -> Dims | None:
        """The dims of `v`, None while its rank is unknown. What has no name gets one, which becomes a fact."""
        if v is None:
            return None
        found = self.dims.get(v)
        if found is None:
            known = types.shape(v)
            if known is None:
                return None
            found = self.dims[v] = tuple(_size(d) for d in known)
            if None in known:
                v.shape = tuple(d if isinstance(d, int) else d.name for d in found)
        return found

    def content(self, v: Value | None) -> Array | None:
        if v is None:
            return None
        found = self.contents.get(v)
        if found is None and v.constant:
            data_type, dims = v.constant_type()
            if data_type in _INTEGERS and math.prod(dims) <= _SMALL:
                found = np.array(v.array.tolist(), dtype=object).reshape(dims)
                self.contents[v] = found
        return found

    def sweep(self, graph: Graph) -> Iterator[Node]:
        """Visits the nodes of `graph` in order; yields each when what it makes is known."""
        for node in graph:
            self._visit(node)
            yield node

    def _visit(self, node: Node) -> None:
        if node.has_references:
            return
        rule = RULES.get(node.op)
        if rule is not None and not (node.domain and _is_function(node)):
            with suppress(TooComplex):
                self._learn_all(node, rule(self, node) or [])
        if len(node.outputs) != 1 or node.outputs[0] is None:
            return
        value = node.outputs[0]
        with suppress(TooComplex):
            self._visit_shape(node, value)
        with suppress(TooComplex):
            self._visit_data(node, value)

    def _learn_all(self, node: Node, found: Sequence[tuple[Size | None, ...] | None]) -> None:
        for i, (v, dims) in enumerate(zip(node.outputs, found)):
            if v is not None and dims is not None:
                self._learn(v, dims)
                if node.domain == "com.microsoft" and not i and not v.dtype and node.inputs[0] is not None:
                    v.dtype = types.dtype(node.inputs[0])  # inference knows nothing of it

    def _visit_shape(self, node: Node, value: Value) -> None:
        rule = _SHAPES.get(node.op)
        dims = rule(self, node) if rule is not None else self._like_inputs(node) if node.op in _ELEMENTWISE else None
        if dims is not None:
            self._learn(value, dims)

    def _visit_data(self, node: Node, value: Value) -> None:
        data = _DATA.get(node.op)
        if data is not None and (node.op == "Shape" or types.dtype(value) in _CARRIED):
            content = data(self, node)
            if content is not None and content.size <= _SMALL:
                self.contents[value] = content

    def _learn(self, value: Value, dims: tuple[Size | None, ...]) -> None:
        """What was found out, where inference does not know a number; it becomes a fact of the value."""
        known = types.shape(value)
        if known == dims:  # numbers, all of them
            self.dims[value] = tuple(_size(d) for d in known)
            return
        if known is not None and len(known) != len(dims):
            return
        before: tuple[Any, ...] = known if known is not None else (None,) * len(dims)
        found = tuple(_better(k, d) for k, d in zip(before, dims))
        named = tuple(d if isinstance(d, Expr) else _size(d) for d in found)
        self.dims[value] = named
        facts = tuple(d if isinstance(d, int) else d.name for d in named)
        if facts != value.shape and not value.constant:
            types.learn(value, facts)

    def _like_inputs(self, node: Node) -> tuple[Size | None, ...] | None:
        shapes = [self.shape(v) for v in node.inputs if v is not None]
        return None if not shapes or any(s is None for s in shapes) else broadcast([s for s in shapes if s is not None])


def _is_function(node: Node) -> bool:
    """Does the model say itself what an operator of a foreign domain is?"""
    label = function_label(node.domain, node.proto.op_type, node.proto.overload)
    return node.graph is None or label in node.graph.model.functions


def _better(known: int | str | None, found: Size | None) -> int | str | Size | None:
    """Both are true: numbers say most, then what is made of the inputs' own symbols."""
    if isinstance(known, int) or found is None:
        return known
    if isinstance(found, int) or known is None:
        return found
    return known if "@" in found.name and "@" not in known else found


def _size(d: int | str | None) -> Size:
    if isinstance(d, int):
        return d
    return symbol(d if d is not None else f"?{next(_unnamed)}@")


def broadcast(shapes: list[Dims]) -> tuple[Size | None, ...]:
    """The shape of an elementwise result; None where it is one of two symbols."""
    rank = max(map(len, shapes))
    result: list[Size | None] = []
    for i in range(rank):
        sizes = {s[i - rank + len(s)] for s in shapes if i - rank + len(s) >= 0} - {1}
        numbers = [d for d in sizes if isinstance(d, int)]
        # A symbol beside a number other than one is either one or that number.
        result.append(numbers[0] if numbers else next(iter(sizes), 1) if len(sizes) <= 1 else None)
    return tuple(result)


# -- shapes of results -----------------------------------------------------------------------------------


def _axis(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis


def _ints(content: Array | None) -> list[int] | None:
    """A known vector of plain numbers."""
    if content is None:
        return None
    values = content.reshape(-1).tolist()
    return values if all(isinstance(v, int) for v in values) else None


def _same(s: ShapeData, n: Node) -> tuple[Size | None, ...] | None:
    return s.shape(n.inputs[0])


def _matmul(s: ShapeData, n: Node) -> tuple[Size | None, ...] | None:
    a, b = s.shape(n.input(0)), s.shape(n.input(1))
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return None
    return (*broadcast([a[:-2], b[:-2]]), a[-2], b[-1]) if len(a) > 2 or len(b) > 2 else (a[0], b[1])


def _transpose(s: ShapeData, n: Node) -> tuple[Size | None, ...] | None:
    x = s.shape(n.input(0))
    if x is None:
        return None
    perm = n.attr("perm") or list(range(len(x)))[::-1]
    return tuple(x[i] for i in perm)


def _axes(s: ShapeData, n: Node) -> list[int] | None:
    given = n.attr("axes")
    return list(given) if given else _ints(s.content(n.input(1)))


def _unsqueeze(s: ShapeData, n: Node) -> tuple[Size | None, ...] | None:
    x, axes = s.shape(n.input(0)), _axes(s, n)
    if x is None or axes is None:
        return None
    rank = len(x) + len(axes)
    at = {_axis(a, rank) for a in axes}
    rest = iter(x)
    return tuple(1 if i in at else next(rest) for i in range(rank))


def _squeeze(s: ShapeData, n: Node) -> tuple[Size | None, ...] | None:
    x, axes = s.shape(n.input(0)), _axes(s, n)
    if x is None or not axes:  # without axes the sizes decide
        return None
    at = {_axis(a, len(x)) for a in axes}
    return tuple(d for i, d in enumerate(x) if i not in at)


def _concat(s: ShapeData, n: Node) -> tuple[Size | None, ...] | None:
    shapes = [s.shape(v) for v in n.inputs]
    known = [x for x in shapes if x is not None]
    if len(known) < len(shapes) or not known:
        return None
    axis = _axis(n.attr("axis"), len(known[0]))
    total: Size = 0
    for x in known:
        total = total + x[axis]
    numbers = ([d for d in (x[i] for x in known) if isinstance(d, int)] for i in range(len(known[0])))
    others: list[Size] = [next(iter(ints), known[0][i]) for i, ints in enumerate(numbers)]
    return (*others[:axis], total, *others[axis + 1 :])


def _gather(s: ShapeData, n: Node) -> tuple[Size | None, ...] | None:
    x, indices = s.shape(n.input(0)), s.shape(n.input(1))
    if x is None or indices is None:
        return None
    axis = _axis(n.attr("axis"), len(x))
    return (*x[:axis], *indices, *x[axis + 1 :])


def _gather_nd(s: ShapeData, n: Node) -> tuple[Size | None, ...] | None:
    x, indices = s.shape(n.input(0)), s.shape(n.input(1))
    if x is None or not indices or not isinstance(indices[-1], int):
        return None
    return (*indices[:-1], *x[n.attr("batch_dims") + indices[-1] :])


def _like_indices(s: ShapeData, n: Node) -> tuple[Size | None, ...] | None:
    return s.shape(n.input(1))


def _gemm(s: ShapeData, n: Node) -> tuple[Size | None, ...] | None:
    a, b = s.shape(n.input(0)), s.shape(n.input(1))
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return None
    return a[1 if n.attr("transA") else 0], b[0 if n.attr("transB") else 1]


def _slice(s: ShapeData, n: Node) -> tuple[Size | None, ...] | None:
    x = s.shape(n.input(0))
    starts, ends = s.content(n.input(1)), s.content(n.input(2))
    if x is None or starts is None or ends is None:
        return None
    given = n.input(3)
    axes = list(range(starts.size)) if given is None else _ints(s.content(given))
    steps = [1] * starts.size if n.input(4) is None else _ints(s.content(n.input(4)))
    if axes is None or steps is None:
        return None
    result: list[Size | None] = list(x)
    for start, end, axis, step in zip(starts.reshape(-1), ends.reshape(-1), axes, steps, strict=True):
        axis = _axis(axis, len(x))
        result[axis] = _extent(x[axis], start, end, step)
    return tuple(result)


def _extent(size: Size, start: Size | None, end: Size | None, step: int) -> Size | None:
    """Elements of [start:end:step]; None where that depends on how they compare."""
    if step != 1 or start is None or end is None:
        if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
            return len(range(size)[slice(start, None if step < 0 and end < -size else end, step)])
        return None
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        return len(range(size)[start:end])
    if isinstance(end, int) and end >= _ENDS:
        end = size
    if isinstance(end, int) and end < 0:
        end = size + end
    if isinstance(start, int) and start < 0:
        start = size + start
    if start == 0 and end == size:
        return size
    # The clamped form is the plain one only where 0 ≤ start ≤ end ≤ size is proven.
    inside = is_nonnegative(start) and is_nonnegative(end - start) and is_nonnegative(size - end)
    return end - start if inside else None


def _reshape(s: ShapeData, n: Node) -> tuple[Size | None, ...] | None:
    x, target = s.shape(n.input(0)), s.content(n.input(1))
    if target is None:
        return None
    result: list[Size | None] = []
    for i, t in enumerate(target.reshape(-1).tolist()):
        if t == 0 and not n.attr("allowzero", 0):
            t = x[i] if x is not None and i < len(x) else None
        result.append(t)
    if -1 in result and x is not None:
        others = [t for t in result if t != -1]
        result[result.index(-1)] = None if None in others else divide(product(x), product(others))
    return tuple(None if t == -1 else t for t in result)


def product(sizes: Any) -> Size:
    total: Size = 1
    for d in sizes:
        total = total * d
    return total


def _expand(s: ShapeData, n: Node) -> tuple[Size | None, ...] | None:
    x, target = s.shape(n.input(0)), s.content(n.input(1))
    if x is None or target is None or None in target.reshape(-1).tolist():
        return None
    return broadcast([x, tuple(target.reshape(-1).tolist())])


def _filled(s: ShapeData, n: Node) -> tuple[Size | None, ...] | None:
    target = s.content(n.input(0))
    return None if target is None else tuple(target.reshape(-1).tolist())


def _range(s: ShapeData, n: Node) -> tuple[Size | None, ...] | None:
    start, limit, delta = (s.content(n.input(i)) for i in range(3))
    if start is None or limit is None or delta is None or delta.item() != 1:
        return None
    if start.item() is None or limit.item() is None:
        return None
    count = limit.item() - start.item()
    return (count,) if is_nonnegative(count) else None


def _reduce(s: ShapeData, n: Node) -> tuple[Size | None, ...] | None:
    x, axes = s.shape(n.input(0)), _axes(s, n)
    if x is None or axes is None:
        return None
    at = {_axis(a, len(x)) for a in axes}
    if n.attr("keepdims", 1):
        return tuple(1 if i in at else d for i, d in enumerate(x))
    return tuple(d for i, d in enumerate(x) if i not in at)


# -- integers computed from shapes -----------------------------------------------------------------------


def _shape_of(s: ShapeData, n: Node) -> Array | None:
    x = s.shape(n.input(0))
    if x is None:
        return None
    stop = n.attr("end")
    return _objects(x[slice(int(n.attr("start") or 0), None if stop is None else int(stop))])


def _size_of(s: ShapeData, n: Node) -> Array | None:
    x = s.shape(n.input(0))
    return None if x is None else _objects(product(x))


def _objects(values: Any) -> Array:
    result = np.empty(len(values) if isinstance(values, tuple) else (), dtype=object)
    result[...] = values if not isinstance(values, tuple) else list(values) if values else result
    return result


def _handed_on(s: ShapeData, n: Node) -> Array | None:
    return s.content(n.input(0))


def _cast(s: ShapeData, n: Node) -> Array | None:
    x, to = s.content(n.input(0)), n.attr("to")
    if x is None or to not in _INTEGERS:
        return None
    result = np.empty(x.shape, dtype=object)
    for i in np.ndindex(x.shape):
        result[i] = _as_integer(x[i], to)
    return result


def _as_integer(element: Any, to: int) -> Any:
    """A size fits 32 bits, which is what runtimes index with; other numbers have to be looked at."""
    if isinstance(element, (bool, int)):
        return int(element) if to == TensorProto.INT64 or abs(int(element)) < 1 << 31 else None
    return element if to == TensorProto.INT64 or element is None or len(element.terms) == 1 else None


def _arithmetic(function: Callable[[Any, Any], Any]) -> Callable[[ShapeData, Node], Array | None]:
    def apply(s: ShapeData, n: Node) -> Array | None:
        a, b = s.content(n.input(0)), s.content(n.input(1))
        if a is None or b is None:
            return None
        x, y = np.broadcast_arrays(a, b)
        result = np.empty(x.shape, dtype=object)
        for i in np.ndindex(x.shape):
            made = None if x[i] is None or y[i] is None else function(x[i], y[i])
            result[i] = None if isinstance(made, int) and abs(made) >= LARGEST else made
        return result

    return apply


def _quotient(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return None if b == 0 else int(a / b) if abs(a) < 1 << 50 else None
    return divide(a, b) if isinstance(b, int) else None


def _equal(a: Any, b: Any) -> bool | None:
    return True if a == b else False if differs(a, b) else None


def _where(s: ShapeData, n: Node) -> Array | None:
    condition, a, b = (s.content(n.input(i)) for i in range(3))
    if condition is None or a is None or b is None:
        return None
    c, x, y = np.broadcast_arrays(condition, a, b)
    result = np.empty(c.shape, dtype=object)
    for i in np.ndindex(c.shape):
        result[i] = None if c[i] is None else x[i] if c[i] else y[i]
    return result


def _gathered(s: ShapeData, n: Node) -> Array | None:
    x, indices = s.content(n.input(0)), s.content(n.input(1))
    if x is None or x.ndim == 0 or _ints(indices) is None or indices is None:
        return None
    at = np.array(indices.tolist(), np.int64).reshape(indices.shape)
    axis = _axis(n.attr("axis"), x.ndim)
    if ((at < -x.shape[axis]) | (at >= x.shape[axis])).any():
        return None
    taken = np.take(x, at, axis=axis)
    return taken if isinstance(taken, np.ndarray) and taken.dtype == object else _objects(taken)


def _sliced(s: ShapeData, n: Node) -> Array | None:
    x = s.content(n.input(0))
    parameters = [None if n.input(i) is None else _ints(s.content(n.input(i))) for i in (1, 2, 3, 4)]
    missing = any(n.input(i) is not None and p is None for i, p in zip((1, 2, 3, 4), parameters))
    if x is None or missing or x.ndim != 1 or parameters[0] is None or parameters[1] is None:
        return None
    if len(parameters[0]) != 1 or (parameters[2] is not None and parameters[2] not in ([0], [-1])):
        return None
    step = 1 if parameters[3] is None else parameters[3][0]
    start, end = parameters[0][0], parameters[1][0]
    return x[slice(start, None if step < 0 and end < -len(x) else end, step)]


def _joined(s: ShapeData, n: Node) -> Array | None:
    parts = [s.content(v) for v in n.inputs]
    known = [p for p in parts if p is not None]
    if not known or any(p.ndim == 0 for p in known):
        return None
    if len(known) < len(parts):  # a part is unknown: its elements are, if their number is known
        if n.attr("axis") not in (0, -1) or any(p.ndim != 1 for p in known):
            return None
        known = []
        for v, part in zip(n.inputs, parts):
            dims = s.shape(v)
            length = dims[0] if dims is not None and len(dims) == 1 else None
            if not isinstance(length, int) or length > _SMALL:
                return None
            known.append(np.full(length, None, dtype=object) if part is None else part)
    return np.concatenate(known, axis=n.attr("axis"))


def _reshaped(s: ShapeData, n: Node) -> Array | None:
    x, dims = s.content(n.input(0)), s.shape(n.outputs[0])
    numbers = [d for d in dims if isinstance(d, int)] if dims is not None else []
    if x is None or dims is None or len(numbers) < len(dims) or int(np.prod(numbers)) != x.size:
        return None
    return x.reshape(numbers)


def _filled_with(s: ShapeData, n: Node) -> Array | None:
    target = _ints(s.content(n.input(0)))
    value = n.attr("value")
    if target is None or value is None or value.dtype.kind not in "iu" or int(np.prod(target)) > _SMALL:
        return None
    result = np.empty(target, dtype=object)
    result[...] = int(value.reshape(-1)[0])
    return result


def _multiplied(s: ShapeData, n: Node) -> Array | None:
    x = s.content(n.input(0))
    if x is None or x.ndim != 1 or None in x.tolist() or _axes(s, n) not in (None, [0], [-1]):
        return None
    total = _objects(product(x.tolist()))
    return total.reshape(1) if n.attr("keepdims", 1) else total


Rule = Callable[[ShapeData, Node], "tuple[Size | None, ...] | None"]

_ELEMENTWISE: Final = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "And", "Or", "Xor", "Equal", "Less", "LessOrEqual"),
        *("Greater", "GreaterOrEqual", "Where", "PRelu"),
    }
)
_SHAPES: Final[dict[str, Rule]] = {
    **dict.fromkeys(
        (
            *("Abs", "Cast", "Ceil", "Clip", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish"),
            *("Identity", "IsNaN", "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "Neg", "Not", "Reciprocal"),
            *("Relu", "Round", "ScatterElements", "ScatterND", "Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Sqrt"),
            *("CumSum", "Tanh", "Trilu"),
        ),
        _same,
    ),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"), _reduce),
    "Concat": _concat,
    "ConstantOfShape": _filled,
    "Expand": _expand,
    "Gather": _gather,
    "GatherElements": _like_indices,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Range": _range,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
_CARRIED: Final = _INTEGERS | {TensorProto.BOOL}
_DATA: Final[dict[str, Callable[[ShapeData, Node], Array | None]]] = {
    "Add": _arithmetic(lambda a, b: a + b),
    "Cast": _cast,
    "Concat": _joined,
    "ConstantOfShape": _filled_with,
    "Div": _arithmetic(_quotient),
    "Equal": _arithmetic(_equal),
    "Gather": _gathered,
    "Identity": _handed_on,
    "Mul": _arithmetic(lambda a, b: a * b),
    "ReduceProd": _multiplied,
    "Reshape": _reshaped,
    "Shape": _shape_of,
    "Size": _size_of,
    "Slice": _sliced,
    "Squeeze": _reshaped,
    "Sub": _arithmetic(lambda a, b: a - b),
    "Unsqueeze": _reshaped,
    "Where": _where,
}
