"""Helpers shared by shape rules, kernels and passes: broadcasting, axes, and the elements taken by a Slice."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from onnxopt.analysis.shapes.symbolic import Expr, Size, is_minimum
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.operators import PICKS
from onnxopt.proto.messages import Array

if TYPE_CHECKING:
    from onnxopt.analysis.shapes.sweep import ShapeData


_NUMBERS: Final = frozenset({int, bool})
_VALUES: Final = 64  # values examined
Dims = tuple[Size, ...]
PartialDims = tuple[Size | None, ...]  # None: an unknown dim
F = TypeVar("F")
ShapeRule = Callable[["ShapeData", Node], "PartialDims | list[PartialDims | None] | None"]
SHAPE_RULES: Final[dict[str, ShapeRule]] = {}


class Unknown(ArithmeticError):
    """A size or element read by a rule is unknown, and so is the result."""


def registrar(table: dict[str, F]) -> Callable[..., Callable[[F], F]]:
    """Return a decorator with operators as arguments that enters a function into `table`, under each operator."""

    def register(*ops: str) -> Callable[[F], F]:
        def add(function: F) -> F:
            table.update(dict.fromkeys(ops, function))
            return function

        return add

    return register


# Registers a rule: (known sizes, node) to the dims of the output, or to a list with the dims of each output.
shape_rule: Final = registrar(SHAPE_RULES)


def elementwise(function: Callable[..., Any], *arrays: Array) -> Array:
    """Return the results of a function of elements at the same place, after broadcasting."""
    shape = arrays[0].shape
    if any(a.shape != shape for a in arrays):
        arrays = tuple(broadcast_together(*arrays))
        shape = arrays[0].shape
    result = np.empty(shape, dtype=object)
    for i in np.ndindex(shape):
        result[i] = function(*[a[i] for a in arrays])
    return result


def where_known(function: Callable[..., Any], *arrays: Array) -> Array:
    """Return the results of a function of elements at the same place; None where an element is unknown."""
    return elementwise(lambda *elements: None if None in elements else function(*elements), *arrays)


D = TypeVar("D")


def agreed(a: Sequence[D] | None, b: Sequence[D] | None) -> tuple[D | None, ...] | None:
    """Return the dims equal in both shapes (None elsewhere), or None if the ranks differ."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip(a, b))


def broadcast(shapes: Sequence[PartialDims]) -> PartialDims:
    """Return the shape of an elementwise result; None for a dim that may be either of two symbols.

    A size clipped to a maximum (a table of positions) has the length it was clipped to: if shorter, the operands do not
    fit.
    """
    widest = max(shapes, key=len)
    for s in shapes:
        if s is not widest and s != widest[len(widest) - len(s) :]:
            return tuple([_common([s[i] for s in shapes if len(s) >= -i]) for i in range(-len(widest), 0)])
    return widest


def _common(sizes: Sequence[Size | None]) -> Size | None:
    """Return the broadcast of sizes along an axis, or None.

    A symbol next to a number n > 1 is 1 or n. Two different numbers never run; they give None, so that the result does
    not depend on the order of discovery.
    """
    if sizes.count(sizes[0]) == len(sizes):
        return sizes[0]
    numbers = {d for d in sizes if isinstance(d, int) and d != 1}
    if numbers:
        return numbers.pop() if len(numbers) == 1 else None
    return _largest_symbol(sizes)


def _largest_symbol(sizes: Sequence[Size | None]) -> Size | None:
    """Return the broadcast of symbols and ones, or None."""
    found: Size | None = 1
    for d in sizes:
        if d is None:
            return None
        if isinstance(d, int):
            continue
        if isinstance(found, int):
            found = d
        elif found is not None and d != found and not is_minimum(d, found):
            found = d if is_minimum(found, d) else None
    return found


def is_picked(value: Value, computing: Container[str] = ("Concat",)) -> bool:
    """Whether a value holds only constants, dims, and results of `computing` operators (perhaps Size) on them."""
    seen, stack = {value}, [value]
    while stack:
        v = stack.pop()
        node = v.producer
        if v.constant or (node is not None and _reads_dims(node, computing)):
            continue
        if node is None or len(seen) > _VALUES or not (node.op in PICKS or node.op in computing):
            return False
        new = {*(node.operands[:1] if node.op in PICKS else node.operands)} - seen
        seen |= new
        stack += new
    return True


def _reads_dims(node: Node, computing: Container[str]) -> bool:
    return node.op == "Shape" or (node.op == "Size" and "Size" in computing)


def product(sizes: Any) -> Size:
    total: Size = 1
    for d in sizes:
        total = d if type(d) is Expr and type(total) is int and total == 1 else total * d
    return total


def axis_of(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis


def order_of(transpose: Node, rank: int) -> tuple[int, ...]:
    """Return the permutation of a Transpose, by default the reversal."""
    return tuple(transpose.attr("perm") or range(rank)[::-1])


def known_order(transpose: Node, rank: int | None) -> tuple[int, ...] | None:
    """Return the permutation of a Transpose; None for an unknown rank or an invalid permutation, a run-time error."""
    perm = () if rank is None else order_of(transpose, rank)
    return perm if rank is not None and len(perm) == rank and set(perm) == set(range(rank)) else None


def listed_by(shape: Node) -> slice:
    """Return the range of dims listed by a Shape (`start` and `end` since opset 15)."""
    if not shape.attributes:
        return slice(0, None)
    end = shape.attr("end")
    return slice(int(shape.attr("start") or 0), None if end is None else int(end))


def joined(shapes: Sequence[Dims | None], axis: int) -> PartialDims | None:
    """Return the shape of a Concat."""
    known = [x for x in shapes if x is not None]
    if len(known) < len(shapes) or not known:
        return None
    axis = axis_of(axis, len(known[0]))
    total: Size = 0
    for x in known:
        total = total + x[axis]
    filled = [x for x in known if x[axis] != 0] or known  # runtimes drop empty operands, of any other sizes
    others = [_alike(sizes) for sizes in zip(*filled, strict=True)]
    return (*others[:axis], total, *others[axis + 1 :])


def _alike(sizes: Sequence[Size]) -> Size | None:
    """Return the common size of these, a number if there is one; different numbers never run."""
    numbers = {d for d in sizes if isinstance(d, int)}
    return sizes[0] if not numbers else numbers.pop() if len(numbers) == 1 else None


def rows_by_columns(a: Dims | None, b: Dims | None, gemm: Node) -> PartialDims | None:
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return None
    return a[1 if gemm.attr("transA") else 0], b[0 if gemm.attr("transB") else 1]


def ints(content: Array | None) -> list[int] | None:
    """Return a known vector of plain numbers, or None."""
    if content is None:
        return None
    values: list[int] = content.reshape(-1).tolist()
    return values if _NUMBERS.issuperset(map(type, values)) else None


def reduced(s: ShapeData, n: Node, rank: int) -> set[int] | None:
    """Return the axes of a Reduce*: by default all, or none with `noop_with_empty_axes`."""
    axes = axes_of(s, n)
    if axes is None and n.input(1) is not None:
        return None
    if not axes:
        return set() if n.attr("noop_with_empty_axes", 0) else set(range(rank))
    return {axis_of(a, rank) for a in axes}


def axes_of(s: ShapeData, n: Node) -> list[int] | None:
    given = n.attr("axes")
    return list(given) if given else ints(s.content(n.input(1)))


# -- Slice: bounds clamped as in the standard (Slice-13) and as read by onnxruntime ----------------------------

T = TypeVar("T")

LARGEST: Final = ((1 << 31) - 1, (1 << 63) - 1)
_HELD: Final = 1 << 46  # elements that exceed the memory of any machine


def cuts(
    starts: Sequence[T], ends: Sequence[T], axes: Sequence[int] | None, steps: Sequence[int] | None, rank: int
) -> list[tuple[int, T, T, int]] | None:
    """Return (axis, start, end, step) for each axis; None for invalid arguments.

    Invalid: lists of different lengths, an axis out of range or repeated, a step of 0.
    """
    count = len(starts)
    axes, steps = range(count) if axes is None else axes, [1] * count if steps is None else steps
    if not count == len(ends) == len(axes) == len(steps):
        return None
    if 0 in steps or not all(-rank <= a < rank for a in axes) or len({a % rank for a in axes}) < count:
        return None
    return list(zip((a % rank for a in axes), starts, ends, steps))


def cuts_of(s: ShapeData, node: Node, rank: int) -> list[tuple[int, Size | None, Size | None, int]] | None:
    """Return the cuts of a Slice, whose bounds may be sizes; None if unknown or invalid."""
    starts, ends = s.content(node.input(1)), s.content(node.input(2))
    axes, steps = (ints(s.content(node.input(i))) for i in (3, 4))
    missing = any(node.input(i) is not None and given is None for i, given in ((3, axes), (4, steps)))
    if starts is None or ends is None or missing:
        return None
    return cuts(starts.reshape(-1).tolist(), ends.reshape(-1).tolist(), axes, steps, rank)


def is_behind(end: int, axis: int, dims: Sequence[object]) -> bool:
    """Whether the end of a Slice is behind all elements along an axis of a tensor of these dims.

    INT_MAX means the end of an axis of unknown size (Slice-13). TensorFlow's exporter writes 1,000,000,000: larger than
    any axis if the tensor would otherwise exceed all memory, with no empty axis.
    """
    size = dims[axis]
    if isinstance(size, int):
        return end >= size
    least = max(end, 0)
    for i, d in enumerate(dims):
        if i != axis:
            least *= end if d is not None and d == size else d if isinstance(d, int) else 0
    return end >= LARGEST[0] or least >= _HELD


def indices(start: int, end: int, step: int, size: int) -> slice | None:
    """Return [start:end:step] of `size` elements as a Python slice; None where readers differ.

    With a negative step, a start before the front is the first element in the standard, and nothing in Python. An end
    at the largest integer gives nothing in the standard, everything in onnxruntime.
    """
    if step < 0 and end in LARGEST:
        return None
    if not size:
        return slice(0, 0)
    start, end = (i + size if i < 0 else i for i in (start, end))
    step = max(-size, min(step, size))  # numpy multiplies by it
    if step > 0:
        return slice(max(0, min(start, size)), max(0, min(end, size)), step)
    last = max(-1, min(end, size - 1))
    return slice(max(0, min(start, size - 1)), None if last < 0 else last, step)


# -- broadcasting of any rank: numpy's functions stop at 32 dims, its arrays at 64 -----------------------------


def broadcast_shape(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the broadcast shape. Raises ValueError if the shapes do not fit."""
    rank = max(map(len, shapes), default=0)
    found = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                if found[i] not in (1, size):
                    raise ValueError(f"{size} elements do not fit {found[i]}")
                found[i] = size
    return tuple(found)


def broadcast_together(*arrays: Array) -> list[Array]:
    """Return views of the arrays in their broadcast shape. Raises ValueError if the shapes do not fit."""
    shape = broadcast_shape(*(np.shape(a) for a in arrays))
    return [np.broadcast_to(a, shape) for a in arrays]
