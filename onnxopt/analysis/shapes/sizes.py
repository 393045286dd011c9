"""Helpers shared by shape rules."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any, Final

from onnxopt.analysis.shapes.symbolic import Size, is_least
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.operators import PICKS
from onnxopt.proto.messages import Array

if TYPE_CHECKING:
    from onnxopt.analysis.shapes.sweep import ShapeData

_VALUES: Final = 64  # values examined
Dims = tuple[Size, ...]
Found = tuple[Size | None, ...]  # None: an unknown dim


def broadcast(shapes: list[Dims]) -> Found:
    """Return the shape of an elementwise result; None for a dim that may be either of two symbols.

    A size clipped to a maximum (a table of positions) has the length it was clipped to: if shorter, the operands do not
    fit.
    """
    rank = max(map(len, shapes))
    if all(s == shapes[0] or not s for s in shapes) and shapes[0]:
        return shapes[0]
    return tuple([_common([s[i] for s in shapes if len(s) >= -i]) for i in range(-rank, 0)])


def _common(sizes: list[Size]) -> Size | None:
    """Return the broadcast of sizes along an axis, or None.

    A symbol next to a number n > 1 is 1 or n. Two different numbers never run; they give None, so that the result does
    not depend on the order of discovery.
    """
    numbers = {d for d in sizes if isinstance(d, int) and d != 1}
    if numbers:
        return numbers.pop() if len(numbers) == 1 else None
    found: Size | None = 1
    for d in sizes:
        if isinstance(d, int):
            continue
        if isinstance(found, int):
            found = d
        elif found is not None and d != found and not is_least(d, found):
            found = d if is_least(found, d) else None
    return found


def is_picked(value: Value, computing: Container[str] = ("Concat",)) -> bool:
    """Return whether a value holds only constants and dims, or results of `computing` operators on them.

    `computing` may contain Size.
    """
    seen, stack = {value}, [value]
    while stack:
        v = stack.pop()
        node = v.producer
        if v.constant or (node is not None and (node.op == "Shape" or (node.op == "Size" and "Size" in computing))):
            continue
        if node is None or len(seen) > _VALUES or not (node.op in PICKS or node.op in computing):
            return False
        new = {i for i in (node.inputs[:1] if node.op in PICKS else node.inputs) if i is not None} - seen
        seen |= new
        stack += new
    return True


def product(sizes: Any) -> Size:
    total: Size = 1
    for d in sizes:
        total = total * d
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
    end = shape.attr("end")
    return slice(int(shape.attr("start") or 0), None if end is None else int(end))


def joined(shapes: Sequence[Dims | None], axis: int) -> Found | None:
    """Return the shape of a Concat."""
    known = [x for x in shapes if x is not None]
    if len(known) < len(shapes) or not known:
        return None
    axis = axis_of(axis, len(known[0]))
    total: Size = 0
    for x in known:
        total = total + x[axis]
    others: list[Size | None] = []
    for sizes in zip(*known, strict=True):
        numbers = {d for d in sizes if isinstance(d, int)}
        # different numbers never run
        others.append(sizes[0] if not numbers else numbers.pop() if len(numbers) == 1 else None)
    return (*others[:axis], total, *others[axis + 1 :])


def rows_by_columns(a: Dims | None, b: Dims | None, gemm: Node) -> Found | None:
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return None
    return a[1 if gemm.attr("transA") else 0], b[0 if gemm.attr("transB") else 1]


def ints(content: Array | None) -> list[int] | None:
    """Return a known vector of plain numbers, or None."""
    if content is None:
        return None
    values = content.reshape(-1).tolist()
    return values if all(isinstance(v, int) for v in values) else None


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
