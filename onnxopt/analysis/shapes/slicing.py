"""Elements taken by a Slice: bounds clamped as in the standard (Slice-13) and as read by onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from onnxopt.analysis.shapes.sizes import ints
from onnxopt.analysis.shapes.symbolic import Size
from onnxopt.graph.node import Node

if TYPE_CHECKING:
    from onnxopt.analysis.shapes.sweep import ShapeData

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
