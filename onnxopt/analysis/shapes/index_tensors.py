"""Tensors of indices: counts along an axis, sizes, and the box of a tensor written by a scatter."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from typing import Final, NamedTuple

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.constants import one_element
from onnxopt.analysis.shapes.sizes import LARGEST, cuts, listed_by
from onnxopt.graph.dims import is_invented
from onnxopt.graph.node import Node
from onnxopt.graph.value import Dim, Value
from onnxopt.operators import SAME_ORDER
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.messages import Array

# -- counts and sizes ------------------------------------------------------------------------------------------

_MAX_COUNTED_NODES: Final = 12
_MAX_ELEMENTS: Final = 1 << 16  # elements of a constant
_INDEX_TYPES: Final = frozenset({TensorProto.INT32, TensorProto.INT64})


class Count(NamedTuple):
    """start, start + 1, start + 2, … along an axis (negative index), constant along all others."""

    axis: int
    end: Value | None = None  # computed upper bound, if any
    start: int = 0


def counts(value: Value | None, reach: int = _MAX_COUNTED_NODES) -> Count | None:
    """Return the Count of a value, or None, also for unknown dims."""
    if value is None or not reach or types.dtype(value) not in _INDEX_TYPES:
        return None
    if value.constant:
        return counts_in(value.array) if 0 < value.array.size <= _MAX_ELEMENTS else None
    node, shape = value.producer, types.shape(value)
    if node is None or node.has_references or not shape:
        return None
    if node.op == "Range":
        begin, end, step = node.inputs
        start = number(begin)
        return Count(-1, end, start) if start is not None and number(step) == 1 else None
    if node.op == "Slice":
        return _sliced(node, len(shape), reach)
    if node.op not in (*SAME_ORDER, "Cast", "Expand", "Identity"):
        return None
    found = counts(node.inputs[0], reach - 1)
    given = types.shape(node.inputs[0]) if node.inputs[0] is not None else None
    if found is None or not given or given[found.axis] is None:
        return None
    if node.op not in SAME_ORDER:  # leading axes may be added, others widened
        return found if shape[found.axis] == given[found.axis] else None
    if node.op == "Unsqueeze" and (places := _places(node, len(shape))) is not None:
        kept = [i for i in range(len(shape)) if i not in places]
        return found._replace(axis=kept[found.axis] - len(shape)) if len(kept) == len(given) else None
    # Only axes of size 1 may be added or dropped next to the counting axis.
    long = [i - len(shape) for i, d in enumerate(shape) if d != 1]
    alone = all(d == 1 for i, d in enumerate(given) if i - len(given) != found.axis)
    return found._replace(axis=long[0]) if alone and [shape[i] for i in long] == [given[found.axis]] else None


def counts_in(data: Array) -> Count | None:
    """Return the Count of an array; a single element counts along the first axis."""
    if not data.ndim or not data.size:
        return None
    start = int(data.reshape(-1)[0])
    for axis in range(data.ndim):
        line = np.arange(start, start + data.shape[axis]).reshape(-1, *(1,) * (data.ndim - 1 - axis))
        if (data == line).all():
            return Count(axis - data.ndim, start=start)
    return None


def _sliced(node: Node, rank: int, reach: int) -> Count | None:
    """Return the Count behind a Slice."""
    found, given = counts(node.inputs[0], reach - 1), [*node.inputs, None, None][1:5]
    if found is None or any(v is not None and not v.constant for v in given):
        return None
    starts, ends, axes, steps = (None if v is None else v.array.reshape(-1).tolist() for v in given)
    for axis, start, end, step in cuts(starts or (), ends or (), axes, steps, rank) or ():
        if axis - rank == found.axis:
            if start < 0 or step != 1:
                return None
            found = Count(found.axis, found.end if end in LARGEST else None, found.start + start)
    return found


def number(value: Value | None, reach: int = _MAX_COUNTED_NODES) -> int | None:
    """Return the integer that all elements of `value` equal, or None."""
    if value is None or not reach or types.dtype(value) not in _INDEX_TYPES:
        return None
    if value.constant:
        one = one_element(value.glance())
        return None if one is None else int(one)
    node = value.producer
    if node is None or node.has_references or node.op not in (*SAME_ORDER, "Cast", "Expand", "Identity", "Transpose"):
        return None
    return number(node.inputs[0], reach - 1)


def _places(node: Node, rank: int) -> set[int] | None:
    axes = node.input(1)
    given = node.attr("axes") if axes is None else axes.array.reshape(-1).tolist() if axes.constant else None
    return {int(a) % rank for a in given} if given is not None else None


def dim_of(value: Value | None, reach: int = _MAX_COUNTED_NODES) -> Dim:
    """Return the dim read by `value`, a single integer; None if it is not a dim."""
    if value is None or not reach:
        return None
    if value.constant:
        return int(value.array.reshape(-1)[0]) if value.array.size == 1 and element_kind(value.array) == "i" else None
    node = value.producer
    if node is None or node.has_references:
        return None
    if node.op in (*SAME_ORDER, "Cast", "Identity") and types.dtype(value) in _INDEX_TYPES:
        return dim_of(node.inputs[0], reach - 1)
    source = node.inputs[0]
    if node.op == "Gather" and source is not None and source.producer is not None and source.producer.op == "Shape":
        index = node.inputs[1]
        dims = _listed(source.producer)
        if dims is None or index is None or not index.constant or index.array.size != 1:
            return None
        i = int(index.array.reshape(-1)[0])
        return dims[i] if -len(dims) <= i < len(dims) else None
    dims = _listed(node) if node.op == "Shape" else None
    return dims[0] if dims is not None and len(dims) == 1 else None


def _listed(node: Node) -> tuple[Dim, ...] | None:
    dims = types.shape(node.inputs[0]) if node.inputs[0] is not None else None
    return None if dims is None else dims[listed_by(node)]


def is_size(value: Value | None, reach: int = _MAX_COUNTED_NODES) -> bool:
    """Whether `value`, a single integer, is surely not negative: a size, or a sum of sizes."""
    node = value.producer if value is not None else None
    if node is not None and reach and not node.has_references:
        if node.op == "Add":
            return all(is_size(v, reach - 1) for v in node.inputs)
        if node.op in (*SAME_ORDER, "Identity"):
            return is_size(node.inputs[0], reach - 1)
        if node.op == "Gather":
            source = node.inputs[0].producer if node.inputs[0] is not None else None
            return source is not None and source.op == "Shape"
    if value is not None and value.constant:
        return bool((value.array >= 0).all())
    return node is not None and node.op in ("Shape", "Size")


# -- boxes written by scatters ---------------------------------------------------------------------------------

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
