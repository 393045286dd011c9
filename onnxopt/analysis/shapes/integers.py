"""Rules for integers computed from shapes: each returns the elements of a single output, None for unknown ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.shapes.rounding import rounded
from onnxopt.analysis.shapes.sizes import (
    axis_of,
    broadcast_together,
    cuts_of,
    indices,
    ints,
    listed_by,
    product,
    reduced,
)
from onnxopt.analysis.shapes.symbolic import LARGEST_INTEGERS, Size, differs, divide, fits, lowest, quotient
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.messages import Array

if TYPE_CHECKING:
    from onnxopt.analysis.shapes.sweep import ShapeData


SMALL: Final = 64  # elements; larger tensors are data, not shapes
INTEGERS: Final = frozenset(LARGEST_INTEGERS)
Rule = Callable[["ShapeData", Node], "Array | None"]


def _shape_of(s: ShapeData, n: Node) -> Array | None:
    x = s.shape(n.input(0))
    return None if x is None else _objects(x[listed_by(n)])


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
    if x is None and to in INTEGERS:
        return rounded(s, n)
    if x is None or to not in INTEGERS:
        return None
    result = np.empty(x.shape, dtype=object)
    for i in np.ndindex(x.shape):
        result[i] = int(x[i]) if isinstance(x[i], bool) else x[i]
    return result


def _of_its_type(rule: Rule) -> Rule:
    """Wrap a rule: elements that may overflow their type are unknown, since they wrap around."""

    def apply(s: ShapeData, n: Node) -> Array | None:
        made, data_type = rule(s, n), types.dtype(n.output)
        if made is None:
            return None
        result = np.empty(made.shape, dtype=object)
        for i in np.ndindex(made.shape):
            element: Any = made[i]
            result[i] = element if element is not None and fits(element, data_type, s.is_counted) else None
        return result

    return apply


def _arithmetic(function: Callable[[Any, Any], Any]) -> Rule:
    def apply(s: ShapeData, n: Node) -> Array | None:
        a, b = s.content(n.input(0)), s.content(n.input(1))
        if a is None or b is None:
            return None
        x, y = broadcast_together(a, b)
        result = np.empty(x.shape, dtype=object)
        for i in np.ndindex(x.shape):
            result[i] = None if x[i] is None or y[i] is None else function(x[i], y[i])
        return result

    return apply


def _negated(s: ShapeData, n: Node) -> Array | None:
    x = s.content(n.input(0))
    return None if x is None else _objects(tuple(None if e is None else -1 * e for e in x.reshape(-1))).reshape(x.shape)


def _divided(s: ShapeData, n: Node) -> Array | None:
    return _arithmetic(lambda a, b: _quotient(a, b, s.least))(s, n)


def _quotient(a: Any, b: Any, least: Mapping[str, int]) -> Any:
    """Return a / b truncated as in runtimes: equal to the floor if not negative."""
    if isinstance(a, int) and isinstance(b, int):
        return None if b == 0 else int(a / b) if abs(a) < 1 << 50 else None
    if not isinstance(b, int):
        return None
    even, low = divide(a, b), lowest(a, least)
    return quotient(a, b) if even is None and b > 0 and low is not None and low >= 0 else even


def _rest(a: Any, b: Any) -> Any:
    """Return a mod b, with the sign of b."""
    if not isinstance(b, int) or b <= 0:
        return None
    whole = quotient(a, b)
    return None if whole is None else a - whole * b


def _modulo(s: ShapeData, n: Node) -> Array | None:
    return None if n.attr("fmod", 0) else _arithmetic(_rest)(s, n)


def _equal(a: Any, b: Any) -> bool | None:
    return True if a == b else False if differs(a, b) else None


def _compared(s: ShapeData, n: Node) -> Array | None:
    """Return the results of Equal; a size read from a tensor never equals a negative number."""
    found = _arithmetic(_equal)(s, n)
    if found is None or None not in found.reshape(-1).tolist():
        return found
    for v, other in (n.inputs, n.inputs[::-1]):
        sizes, numbers = s.content(v), s.content(other)
        if sizes is None or numbers is None or v is None or not s.is_picked(v):
            continue
        x, y = broadcast_together(sizes, numbers)
        for i in np.ndindex(found.shape):
            if found[i] is None and isinstance(y[i], int) and y[i] < 0 and x[i] is not None:
                found[i] = False
    return found


def _larger(a: Any, b: Any, least: Mapping[str, int]) -> Any:
    """Return the element that is surely not smaller, or None."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    for one, other in ((a, b), (b, a)):
        low = lowest(one - other, least)
        if low is not None and low >= 0:
            return one
    return None


def _largest(s: ShapeData, n: Node) -> Array | None:
    return _arithmetic(lambda a, b: _larger(a, b, s.least))(s, n) if len(n.inputs) == 2 else None


def _where(s: ShapeData, n: Node) -> Array | None:
    condition, a, b = (s.content(n.input(i)) for i in range(3))
    if condition is None or a is None or b is None:
        return None
    c, x, y = broadcast_together(condition, a, b)
    result = np.empty(c.shape, dtype=object)
    for i in np.ndindex(c.shape):
        result[i] = None if c[i] is None else x[i] if c[i] else y[i]
    return result


def _gathered(s: ShapeData, n: Node) -> Array | None:
    x, indices = s.content(n.input(0)), s.content(n.input(1))
    if x is None or x.ndim == 0 or ints(indices) is None or indices is None:
        return None
    at = np.array(indices.tolist(), np.int64).reshape(indices.shape)
    axis = axis_of(n.attr("axis"), x.ndim)
    if ((at < -x.shape[axis]) | (at >= x.shape[axis])).any():
        return None
    taken = np.take(x, at, axis=axis)
    return taken if isinstance(taken, np.ndarray) and taken.dtype == object else _objects(taken)


def _sliced(s: ShapeData, n: Node) -> Array | None:
    x = s.content(n.input(0))
    found = cuts_of(s, n, x.ndim) if x is not None else None
    if x is None or not found:
        return None
    for axis, start, end, step in found:
        taken = indices(start, end, step, x.shape[axis]) if isinstance(start, int) and isinstance(end, int) else None
        if taken is None:
            return None
        x = x[(slice(None),) * axis + (taken,)]
    return x


def parts(s: ShapeData, n: Node) -> list[Array] | None:
    """Return the contents of each output of a Split of a vector."""
    x, lengths = s.content(n.input(0)), [s.shape(v) for v in n.outputs]
    sizes = [d[0] for d in lengths if d is not None and len(d) == 1 and isinstance(d[0], int)]
    if x is None or x.ndim != 1 or len(sizes) < len(lengths) or sum(sizes) != x.size:
        return None
    return np.split(x, np.cumsum(sizes)[:-1])


def _joined(s: ShapeData, n: Node) -> Array | None:
    parts = [s.content(v) for v in n.inputs]
    known = [p for p in parts if p is not None]
    if not known or any(p.ndim == 0 for p in known):
        return None
    if len(known) < len(parts):  # elements of an unknown part are unknown, if their number is known
        if n.attr("axis") not in (0, -1) or any(p.ndim != 1 for p in known):
            return None
        known = []
        for v, part in zip(n.inputs, parts):
            dims = s.shape(v)
            length = dims[0] if dims is not None and len(dims) == 1 else None
            if not isinstance(length, int) or length > SMALL:
                return None
            known.append(np.full(length, None, dtype=object) if part is None else part)
    return np.concatenate(known, axis=n.attr("axis"))


def _reshaped(s: ShapeData, n: Node) -> Array | None:
    x, dims = s.content(n.input(0)), s.shape(n.outputs[0])
    numbers = [d for d in dims if isinstance(d, int)] if dims is not None else []
    if x is None or dims is None or len(numbers) < len(dims) or math.prod(numbers) != x.size:
        return None
    return x.reshape(numbers)


def _filled_with(s: ShapeData, n: Node) -> Array | None:
    target = ints(s.content(n.input(0)))
    value = n.attr("value")
    if target is None or value is None or element_kind(value) not in "iu" or math.prod(target) > SMALL:
        return None
    result = np.empty(target, dtype=object)
    result[...] = int(value.reshape(-1)[0])
    return result


def _multiplied(s: ShapeData, n: Node) -> Array | None:
    x = s.content(n.input(0))
    at = reduced(s, n, x.ndim) if x is not None else None
    if x is None or x.ndim != 1 or None in x.tolist() or at is None:
        return None
    if not at:
        return x
    total = _objects(product(x.tolist()))
    return total.reshape(1) if n.keeps_dims else total


CARRIED: Final = INTEGERS | {TensorProto.BOOL}
CONTENTS: Final[dict[str, Rule]] = {
    "Add": _of_its_type(_arithmetic(lambda a, b: a + b)),
    "Cast": _of_its_type(_cast),
    "Concat": _joined,
    "ConstantOfShape": _filled_with,
    "Div": _of_its_type(_divided),
    "Equal": _compared,
    "Gather": _gathered,
    "Identity": _handed_on,
    "Max": _largest,
    "Mod": _of_its_type(_modulo),
    "Mul": _of_its_type(_arithmetic(lambda a, b: a * b)),
    "Neg": _of_its_type(_negated),
    "ReduceProd": _of_its_type(_multiplied),
    "Reshape": _reshaped,
    "Shape": _shape_of,
    "Size": _size_of,
    "Slice": _sliced,
    "Squeeze": _reshaped,
    "Sub": _of_its_type(_arithmetic(lambda a, b: a - b)),
    "Unsqueeze": _reshaped,
    "Where": _where,
}


# -- parts of a Where on concatenated vectors ------------------------------------------------------------------

Part = tuple[Value, list[Size | None]]  # (value, its contents)


def chosen_parts(s: ShapeData, where: Node, content: Sequence[Size | None]) -> list[Value | list[int]] | None:
    """Return the parts of a Where's result, in order: numbers, and values taken from concatenated operands.

    None if further elements are needed.
    """
    joined = [v.producer for v in where.inputs[1:] if v is not None and v.producer is not None]
    there: dict[int, list[Part]] = {}
    for node in joined:
        if node.op == "Concat":
            _place(s, node, there)
    found: list[Value | list[int]] = []
    at = 0
    while at < len(content):
        element = content[at]
        if isinstance(element, int):
            if found and isinstance(found[-1], list):
                found[-1].append(element)
            else:
                found.append([element])
            at += 1
            continue
        part = next((p for p in there.get(at, ()) if None not in p[1] and _stands_at(p, at, content)), None)
        if part is None:
            return None
        found.append(part[0])
        at += len(part[1])
    return found


def _place(s: ShapeData, concat: Node, there: dict[int, list[Part]]) -> None:
    """Add the start offsets of a Concat's parts, as far as their lengths are known."""
    at = 0
    for v in concat.inputs:
        held = s.content(v)
        if v is None or held is None or held.ndim != 1:
            return
        if held.size:
            there.setdefault(at, []).append((v, held.tolist()))
        at += held.size


def _stands_at(part: Part, at: int, content: Sequence[Size | None]) -> bool:
    return list(content[at : at + len(part[1])]) == part[1]
