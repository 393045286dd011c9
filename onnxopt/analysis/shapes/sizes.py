"""What rules on shapes have in common."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any, Final

from onnxopt.analysis.shapes.symbolic import Size, is_least
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.operators import PICKS
from onnxopt.protos import Array

if TYPE_CHECKING:
    from onnxopt.analysis.shapes.sweep import ShapeData

_VALUES: Final = 64  # that are looked at
Dims = tuple[Size, ...]
Found = tuple[Size | None, ...]  # None: a dim that is not known


def broadcast(shapes: list[Dims]) -> Found:
    """The shape of an elementwise result; None where it is one of two symbols.

    What is cut off at some number, as a table of positions is, is as long as what it was cut to, beside that: where it
    is shorter they do not meet.
    """
    rank = max(map(len, shapes))
    if all(s == shapes[0] or not s for s in shapes) and shapes[0]:
        return shapes[0]
    return tuple([_common([s[i] for s in shapes if len(s) >= -i]) for i in range(-rank, 0)])


def _common(sizes: list[Size]) -> Size | None:
    """A symbol beside a number other than one is either one or that number. Two such numbers do not meet: that never
    runs, and is of neither size, or what is known would depend on which of them was known first."""
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
    """Returns whether a value holds nothing but constants and dims of tensors, or what operators of `computing` make of
    such. Size is asked as one of these."""
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
    """The order in which a Transpose puts the axes: turned round where it names none."""
    return tuple(transpose.attr("perm") or range(rank)[::-1])


def known_order(transpose: Node, rank: int | None) -> tuple[int, ...] | None:
    """Returns the same; None where the rank is unknown, or the order does not name each axis once, which is an error at
    run time."""
    perm = () if rank is None else order_of(transpose, rank)
    return perm if rank is not None and len(perm) == rank and set(perm) == set(range(rank)) else None


def listed_by(shape: Node) -> slice:
    """Which dims a Shape lists: all, but where it says from which on (opset 15) or up to which."""
    end = shape.attr("end")
    return slice(int(shape.attr("start") or 0), None if end is None else int(end))


def joined(shapes: Sequence[Dims | None], axis: int) -> Found | None:
    """What Concat makes."""
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
        others.append(sizes[0] if not numbers else numbers.pop() if len(numbers) == 1 else None)  # two do not meet
    return (*others[:axis], total, *others[axis + 1 :])


def rows_by_columns(a: Dims | None, b: Dims | None, gemm: Node) -> Found | None:
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return None
    return a[1 if gemm.attr("transA") else 0], b[0 if gemm.attr("transB") else 1]


def ints(content: Array | None) -> list[int] | None:
    """A known vector of plain numbers."""
    if content is None:
        return None
    values = content.reshape(-1).tolist()
    return values if all(isinstance(v, int) for v in values) else None


def reduced(s: ShapeData, n: Node, rank: int) -> set[int] | None:
    """The axes that a Reduce goes over: all where none is given, unless it says that this means none."""
    axes = axes_of(s, n)
    if axes is None and n.input(1) is not None:
        return None
    if not axes:
        return set() if n.attr("noop_with_empty_axes", 0) else set(range(rank))
    return {axis_of(a, rank) for a in axes}


def axes_of(s: ShapeData, n: Node) -> list[int] | None:
    given = n.attr("axes")
    return list(given) if given else ints(s.content(n.input(1)))
