"""Rules for integers computed from shapes.

A rule takes (known sizes, node) and returns the elements of the output, or a list with those of each output; None for
unknown ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import kernels, types
from onnxopt.analysis.shapes.sizes import elementwise, ints, listed_by, product, reduced, registrar, where_known
from onnxopt.analysis.shapes.symbolic import LARGEST_INTEGERS, Size, differs, divide, fits, is_at_least, quotient
from onnxopt.graph.node import Node, producer
from onnxopt.graph.value import Value
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.messages import Array

if TYPE_CHECKING:
    from onnxopt.analysis.shapes.sweep import ShapeData

SMALL: Final = 64  # elements; larger tensors are data, not shapes
INTEGERS: Final = frozenset(LARGEST_INTEGERS)
CARRIED: Final = INTEGERS | {TensorProto.BOOL}
_MAX_EXACT_QUOTIENT: Final = 1 << 50  # below, a quotient of integers as float64 truncates right
Rule = Callable[["ShapeData", Node], "Array | list[Array] | None"]
CONTENTS: Final[dict[str, Rule]] = {}
_rule: Final = registrar(CONTENTS)
Part = tuple[Value, list[Size | None]]  # (value, its contents)


def _computing(*ops: str) -> Callable[[Callable[[ShapeData, Node], Array | None]], None]:
    """Register a rule. Elements that may overflow their type are unknown, since they wrap around."""

    def add(rule: Callable[[ShapeData, Node], Array | None]) -> None:
        def checked(s: ShapeData, n: Node) -> Array | None:
            made, data_type = rule(s, n), types.dtype(n.output)
            if made is None:
                return None
            return where_known(lambda e: e if fits(e, data_type, s.is_counted) else None, made)

        CONTENTS.update(dict.fromkeys(ops, checked))

    return add


def _array(values: Any) -> Array:
    """Return elements as an array: a vector for a tuple, else a scalar."""
    result = np.empty(len(values) if isinstance(values, tuple) else (), dtype=object)
    result[...] = values if not isinstance(values, tuple) else list(values) if values else result
    return result


# -- sizes ----------------------------------------------------------------------------------------------------


@_rule("Shape")
def _shape_of(s: ShapeData, n: Node) -> Array | None:
    return _array(s.dims_in(n, 0)[listed_by(n)])


@_rule("Size")
def _size_of(s: ShapeData, n: Node) -> Array | None:
    return _array(product(s.dims_in(n, 0)))


# -- arithmetic -----------------------------------------------------------------------------------------------


@_computing("Cast", "CastLike")
def _cast(s: ShapeData, n: Node) -> Array | None:
    v, x = n.input(0), s.content(n.input(0))
    if types.dtype(n.output) not in INTEGERS:
        return None
    if x is None:
        from onnxopt.analysis.shapes.rounding import rounded  # few sizes are computed in floats

        return _truncated(v.array) if v is not None and v.constant and s.is_assumed() else rounded(s, n)
    return where_known(lambda e: int(e) if isinstance(e, bool) else e, x)


def _truncated(floats: Array) -> Array | None:
    """Return the integers cast from a few constant floats; None for others, and for large or infinite floats."""
    if floats.size > SMALL or element_kind(floats) != "f" or not (abs(floats) < _MAX_EXACT_QUOTIENT).all():
        return None
    return np.array(floats.astype(np.int64).tolist(), dtype=object).reshape(floats.shape)


@_computing("Add")
def _sum(s: ShapeData, n: Node) -> Array:
    return where_known(lambda a, b: a + b, s.data_in(n, 0), s.data_in(n, 1))


@_computing("Sub")
def _difference(s: ShapeData, n: Node) -> Array:
    return where_known(lambda a, b: a - b, s.data_in(n, 0), s.data_in(n, 1))


@_computing("Mul")
def _product(s: ShapeData, n: Node) -> Array:
    return where_known(lambda a, b: a * b, s.data_in(n, 0), s.data_in(n, 1))


@_computing("Neg")
def _negated(s: ShapeData, n: Node) -> Array:
    return where_known(lambda e: -1 * e, s.data_in(n, 0))


@_computing("Div")
def _divided(s: ShapeData, n: Node) -> Array:
    return where_known(lambda a, b: _quotient(a, b, s.minima), s.data_in(n, 0), s.data_in(n, 1))


def _quotient(a: Any, b: Any, minima: Mapping[str, int]) -> Any:
    """Return a / b truncated as in runtimes: equal to the floor if not negative."""
    if isinstance(a, int) and isinstance(b, int):
        return int(a / b) if b and abs(a) < _MAX_EXACT_QUOTIENT else None
    if not isinstance(b, int):
        return None
    even = divide(a, b)
    return quotient(a, b) if even is None and b > 0 and is_at_least(a, 0, minima) else even


@_computing("Mod")
def _modulo(s: ShapeData, n: Node) -> Array | None:
    return None if n.attr("fmod", 0) else where_known(_rest, s.data_in(n, 0), s.data_in(n, 1))


def _rest(a: Any, b: Any) -> Any:
    """Return a mod b, with the sign of b."""
    whole = quotient(a, b) if isinstance(b, int) and b > 0 else None
    return None if whole is None else a - whole * b


@_computing("ReduceProd")
def _multiplied(s: ShapeData, n: Node) -> Array | None:
    x = s.data_in(n, 0)
    at = reduced(s, n, x.ndim)
    if x.ndim != 1 or None in x.tolist() or at is None:
        return None
    if not at:
        return x
    total = _array(product(x.tolist()))
    return total.reshape(1) if n.keeps_dims else total


# -- comparison and choice ------------------------------------------------------------------------------------


@_rule("Equal")
def _compared(s: ShapeData, n: Node) -> Array:
    """Return the results of Equal; a size read from a tensor never equals a negative number."""
    found = where_known(_equal, s.data_in(n, 0), s.data_in(n, 1))
    for v, other in (n.inputs, n.inputs[::-1]):
        if None in found.reshape(-1).tolist() and v is not None and s.is_picked(v):
            found = elementwise(_never_equal, found, s.data_of(v), s.data_of(other))
    return found


def _equal(a: Any, b: Any) -> bool | None:
    return True if a == b else False if differs(a, b) else None


def _never_equal(known: Any, size: Any, number: Any) -> Any:
    return False if known is None and size is not None and isinstance(number, int) and number < 0 else known


@_rule("Max")
def _largest(s: ShapeData, n: Node) -> Array | None:
    if len(n.inputs) != 2:
        return None
    return where_known(lambda a, b: _larger(a, b, s.minima), s.data_in(n, 0), s.data_in(n, 1))


def _larger(a: Any, b: Any, minima: Mapping[str, int]) -> Any:
    """Return the element that is surely not smaller, or None."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return a if is_at_least(a, b, minima) else b if is_at_least(b, a, minima) else None


@_rule("Where")
def _where(s: ShapeData, n: Node) -> Array:
    operands = (s.data_in(n, i) for i in range(3))
    return elementwise(lambda c, x, y: None if c is None else x if c else y, *operands)


# -- movement -------------------------------------------------------------------------------------------------


@_rule("Gather", "Identity", "Slice", "Split")
def _moved(s: ShapeData, n: Node) -> list[Array] | None:
    """Return the elements of the first operand as the kernel for constants moves them; other operands are numbers."""
    places = [None if v is None else s.data_of(v).astype(np.int64) for v in n.inputs[1:]]
    made = kernels.KERNELS[n.op](n, n.output.graph.opset(), s.data_in(n, 0), *places)
    return None if made is None else [x if isinstance(x, np.ndarray) else _array(x) for x in made]


@_rule("Expand", "Transpose")
def _rearranged(s: ShapeData, n: Node) -> Array | list[Array] | None:
    """Return the elements of a small result, for types only: rewrites leave constants to constant folding."""
    return _moved(s, n) if s.is_assumed() else None


@_rule("Concat")
def _joined(s: ShapeData, n: Node) -> Array | None:
    parts, axis = [s.content(v) for v in n.inputs], n.attr("axis")
    ranks = {p.ndim for p in parts if p is not None}
    if not ranks or 0 in ranks:
        return None
    if any(p is None for p in parts) and (axis not in (0, -1) or ranks != {1}):
        return None
    return np.concatenate([_unknown(s, v) if p is None else p for v, p in zip(n.inputs, parts)], axis=axis)


def _unknown(s: ShapeData, v: Value | None) -> Array:
    """Return the elements of a vector as unknown ones, if their number is known. Raises ValueError otherwise."""
    (length,) = s.dims_of(v)
    if not isinstance(length, int) or length > SMALL:
        raise ValueError
    return np.full(length, None, dtype=object)


@_rule("Reshape", "Squeeze", "Unsqueeze")
def _reshaped(s: ShapeData, n: Node) -> Array | None:
    x, dims = s.data_in(n, 0), s.dims_of(n.outputs[0])
    numbers = [d for d in dims if isinstance(d, int)]
    return x.reshape(numbers) if len(numbers) == len(dims) and math.prod(numbers) == x.size else None


@_rule("ConstantOfShape")
def _filled(s: ShapeData, n: Node) -> Array | None:
    target, value = ints(s.content(n.input(0))), n.attr("value")
    if target is None or value is None or element_kind(value) not in "iu" or math.prod(target) > SMALL:
        return None
    return np.full(target, int(value.reshape(-1)[0]), dtype=object)


# -- parts of a Where on concatenated vectors ------------------------------------------------------------------


def chosen_parts(s: ShapeData, where: Node, content: Sequence[Size | None]) -> list[Value | list[int]] | None:
    """Return the parts of a Where's result, in order: numbers, and values taken from concatenated operands.

    None if further elements are needed.
    """
    there: dict[int, list[Part]] = {}
    for concat in (producer(v, "Concat") for v in where.inputs[1:]):
        if concat is not None:
            _place(s, concat, there)
    found: list[Value | list[int]] = []
    at = 0
    while at < len(content):
        element = content[at]
        if isinstance(element, int):
            if not found or not isinstance(found[-1], list):
                found.append([])
            found[-1].append(element)  # type: ignore[union-attr]
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
