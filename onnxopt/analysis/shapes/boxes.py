"""The box of a tensor written by a scatter, derived from its indices."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from typing import Final, NamedTuple

from onnxopt.analysis import types
from onnxopt.analysis.shapes.counting import Count, counts, counts_in, dim_of, number
from onnxopt.analysis.weights.contents import one_element
from onnxopt.graph.dims import is_invented
from onnxopt.graph.node import Node
from onnxopt.graph.value import Dim, Value

_MAX_INDICES: Final = 1 << 22  # indices examined


class Span(NamedTuple):
    """The range [start, end) along an axis; an end of None is the end of the axis."""

    start: int
    end: int | None


WHOLE: Final = Span(0, None)


class Box(NamedTuple):
    """`spans`: the written range of each data axis. `missing`: data axes of size 1 in the box, absent in the
    updates."""

    spans: tuple[Span, ...]
    missing: tuple[int, ...] = ()


class _Line(NamedTuple):
    """Indices along a data axis: `size` consecutive indices from `start`.

    `end`: computed upper bound, if any. `axis`: the index tensor's axis of counting, or None.
    """

    start: int
    size: Dim
    end: Value | None = None
    axis: int | None = None


def box_of(scatter: Node) -> Box | None:
    """Return the box that a ScatterND or ScatterElements replaces element by element; None if not proven."""
    data, indices, updates = scatter.inputs[:3]
    if scatter.has_references or scatter.attr("reduction", "none") != "none":
        return None
    if data is None or indices is None or updates is None:
        return None
    dims, given, made = types.shape(data), types.shape(indices), types.shape(updates)
    if not dims or not given or made is None:
        return None
    elements = scatter.op == "ScatterElements"
    lines = _of_elements(scatter, indices, given, len(dims)) if elements else _of_places(indices, given)
    if lines is None or len(lines) > len(dims):
        return None
    written = given if elements else (*given[:-1], *dims[len(lines) :])
    spans = [_span(line, dim) for line, dim in zip(lines, dims)]
    if None in spans or not _is_as_large(made, written, {lines[k].axis for k, s in enumerate(spans) if s != WHOLE}):
        return None
    rest = [WHOLE] * (len(dims) - len(lines))
    missing = tuple(k for k, line in enumerate(lines) if line.axis is None)
    return Box((*(s for s in spans if s is not None), *rest), missing)


def _is_as_large(made: Sequence[Dim], written: Sequence[Dim], cut: Collection[int | None]) -> bool:
    """Whether the updates have the shape of the box.

    If the box covers part of an axis (in `cut`), axes of unknown size may differ: a Concat requires equal sizes.
    """
    if len(made) != len(written) or None in written:
        return False
    unlike = [i for i, (a, b) in enumerate(zip(made, written)) if a != b]
    return not unlike or (bool(cut) and all((made[i] is None or is_invented(made[i])) and i not in cut for i in unlike))


def _span(line: _Line, dim: Dim) -> Span | None:
    """Return the range within an axis of this size; None if it may exceed the axis."""
    start, size = line.start, line.size
    if isinstance(dim, int):
        if not isinstance(size, int) or not -dim <= start <= start + size <= (dim if start >= 0 else 0):
            return None
        start += dim if start < 0 else 0
        return Span(start, None if start + size == dim else start + size)
    if dim is None or start < 0:
        return None
    if not start and size == dim:
        return WHOLE
    if not start and size == 1 and not is_invented(dim):  # it exceeds the axis only if the axis is empty
        return Span(0, 1)
    return Span(start, None) if line.end is not None and dim_of(line.end) == dim else None


def _of_elements(scatter: Node, indices: Value, given: Sequence[Dim], rank: int) -> list[_Line] | None:
    """Return the lines of a ScatterElements: whole axes except the indexed one."""
    if len(given) != rank:
        return None
    axis = int(scatter.attr("axis", 0)) % rank
    line = _line(indices, given, axis)
    return None if line is None else [line if k == axis else _Line(0, d, axis=k) for k, d in enumerate(given)]


def _line(indices: Value, given: Sequence[Dim], axis: int) -> _Line | None:
    if given[axis] == 1:
        place = number(indices)
        return None if place is None else _Line(place, 1, axis=axis)
    count = counts(indices)
    if count is None or count.axis != axis - len(given):
        return None
    return _Line(count.start, given[axis], count.end, axis)


def _of_places(indices: Value, given: Sequence[Dim]) -> list[_Line] | None:
    """Return the lines of a ScatterND, listed in the last axis of the indices."""
    parts = _parts(indices, given)
    if parts is None:
        return None
    lines: list[_Line] = []
    axes = len(given) - 1  # of the box
    at = 0  # the next axis
    for k, part in enumerate(parts):
        if isinstance(part, Count) and part.axis == at and given[at] != 1:
            lines.append(_Line(part.start, given[at], part.end, at))
            at += 1
            continue
        place = part.start if isinstance(part, Count) and given[part.axis] == 1 else part
        if not isinstance(place, int):
            return None
        there = at < axes and given[at] == 1 and axes - at >= len(parts) - k
        lines.append(_Line(place, 1, axis=at if there else None))
        at += there
    return lines if at == axes else None


def _parts(indices: Value, given: Sequence[Dim]) -> list[Count | int | None] | None:
    """Return for each data axis the count along an index axis, or the single index."""
    if indices.constant:
        dims = indices.constant_type()[1]
        if not 0 < prod(dims) <= _MAX_INDICES:
            return None
        array = indices.glance()
        found: list[Count | int | None] = []
        for k in range(dims[-1]):
            one, count = one_element(array[..., k]), None
            if one is None and (count := counts_in(array[..., k])) is not None:
                count = count._replace(axis=count.axis + len(dims) - 1)
            found.append(count if one is None else int(one))
        return found
    node, rank = indices.producer, len(given)
    joins = node is not None and node.op == "Concat" and int(node.attr("axis")) % rank == rank - 1
    values = node.inputs if node is not None and joins and not node.has_references else [indices]
    found = []
    for v in values:
        if v is None or (types.shape(v) or ())[-1:] != (1,):
            return None
        place = number(v)
        counted = counts(v) if place is None else None
        found.append(place if counted is None else counted._replace(axis=counted.axis + rank))
    return found if given[-1] == len(found) else None
