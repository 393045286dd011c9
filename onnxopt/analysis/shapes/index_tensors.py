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
from onnxopt.graph.node import Node, producer
from onnxopt.graph.value import Dim, Shape, Value
from onnxopt.operators import SAME_ORDER
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.messages import Array

# -- counts and sizes ------------------------------------------------------------------------------------------

_MAX_COUNTED_NODES: Final = 12
_MAX_ELEMENTS: Final = 1 << 16  # elements of a constant
_SAME_ELEMENTS: Final = (*SAME_ORDER, "Cast", "Identity")
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
    node, shape = _maker(value), types.shape(value)
    if node is None or not shape:
        return None
    if node.op == "Range":
        return _ranged(*node.inputs)
    if node.op == "Slice":
        return _sliced(node, len(shape), reach)
    if node.op not in (*_SAME_ELEMENTS, "Expand"):
        return None
    source = node.inputs[0]
    found, given = counts(source, reach - 1), types.shape(source)
    return _moved(found, node, given, shape) if found is not None and given and given[found.axis] is not None else None


def _ranged(begin: Value | None, end: Value | None, step: Value | None) -> Count | None:
    start = number(begin)
    return Count(-1, end, start) if start is not None and number(step) == 1 else None


def _maker(value: Value | None, *ops: str) -> Node | None:
    """Return the producer, one of `ops` (any, without `ops`), unless an attribute is a reference; else None."""
    node = producer(value, *ops)
    return node if node is not None and not node.has_references else None


def _moved(found: Count, node: Node, given: Shape, shape: Shape) -> Count | None:
    """Return the Count of a result of this shape, from that of an operand of shape `given`."""
    if node.op not in SAME_ORDER:  # leading axes may be added, others widened
        return found if shape[found.axis] == given[found.axis] else None
    if node.op == "Unsqueeze" and (places := _places(node, len(shape))) is not None:
        kept = [i for i in range(len(shape)) if i not in places]
        return found._replace(axis=kept[found.axis] - len(shape)) if len(kept) == len(given) else None
    return _beside_ones(found, given, shape)


def _beside_ones(found: Count, given: Shape, shape: Shape) -> Count | None:
    """Return the Count after a change of dims, if only axes of size 1 are next to the counting axis."""
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


def _constant_bounds(node: Node) -> list[list[int] | None] | None:
    """Return [starts, ends, axes, steps] of a Slice, None for absent ones; None if any is computed."""
    given = [*node.inputs, None, None][1:5]
    if any(v is not None and not v.constant for v in given):
        return None
    return [None if v is None else v.array.reshape(-1).tolist() for v in given]


def _sliced(node: Node, rank: int, reach: int) -> Count | None:
    """Return the Count behind a Slice."""
    found, given = counts(node.inputs[0], reach - 1), _constant_bounds(node)
    if found is None or given is None:
        return None
    starts, ends, axes, steps = given
    along = [cut for cut in cuts(starts or (), ends or (), axes, steps, rank) or () if cut[0] - rank == found.axis]
    for _, start, end, step in along:
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
    node = _maker(value, *_SAME_ELEMENTS, "Expand", "Transpose")
    return number(node.inputs[0], reach - 1) if node is not None else None


def _places(node: Node, rank: int) -> set[int] | None:
    axes = node.input(1)
    given = node.attr("axes") if axes is None else axes.array.reshape(-1).tolist() if axes.constant else None
    return {int(a) % rank for a in given} if given is not None else None


def dim_of(value: Value | None, reach: int = _MAX_COUNTED_NODES) -> Dim:
    """Return the dim read by `value`, a single integer; None if it is not a dim."""
    if value is None or not reach:
        return None
    if value.constant:
        return _integer(value) if element_kind(value.array) == "i" else None
    if (node := _maker(value, *_SAME_ELEMENTS)) and types.dtype(value) in _INDEX_TYPES:
        return dim_of(node.inputs[0], reach - 1)
    if node := _maker(value, "Gather"):
        dims, place = _listed(node.inputs[0]), _integer(node.inputs[1])
        return dims[place] if place is not None and -len(dims) <= place < len(dims) else None
    dims = _listed(value)
    return dims[0] if len(dims) == 1 else None


def _integer(value: Value | None) -> int | None:
    """Return the number in a constant of one element, or None."""
    one = value is not None and value.constant and value.array.size == 1
    return int(value.array.item()) if value is not None and one else None


def _listed(value: Value | None) -> tuple[Dim, ...]:
    """Return the dims listed by a Shape; none if unknown, or for another operator."""
    node = _maker(value, "Shape")
    dims = types.shape(node.inputs[0]) if node is not None else None
    return () if node is None or dims is None else dims[listed_by(node)]


def is_size(value: Value | None, reach: int = _MAX_COUNTED_NODES) -> bool:
    """Whether `value`, a single integer, is surely not negative: a size, or a sum of sizes."""
    if value is not None and value.constant:
        return bool((value.array >= 0).all())
    node = producer(value)
    if node is None or node.op in ("Shape", "Size"):
        return node is not None
    if not reach or node.has_references:
        return False
    source = node.inputs[0]
    if node.op == "Gather":
        return producer(source, "Shape") is not None
    if node.op == "Add":
        return all(is_size(v, reach - 1) for v in node.inputs)
    return node.op in (*SAME_ORDER, "Identity") and is_size(source, reach - 1)


# -- boxes written by scatters ---------------------------------------------------------------------------------

_MAX_INDICES: Final = 1 << 22  # indices examined


class Span(NamedTuple):
    """The range [start, end) along an axis; an end of None is the end of the axis."""

    start: int
    end: int | None


WHOLE: Final = Span(0, None)


class Box(NamedTuple):
    """`spans`: the written range of each data axis. `missing`: data axes of size 1 that the updates lack."""

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
    indices = scatter.inputs[1]
    dims, given, made = (types.shape(v) for v in scatter.inputs[:3])
    if scatter.has_references or scatter.attr("reduction", "none") != "none" or indices is None:
        return None
    if not dims or not given or made is None:
        return None
    elements = scatter.op == "ScatterElements"
    lines = _of_elements(scatter, indices, given, len(dims)) if elements else _of_places(indices, given)
    if lines is None or len(lines) > len(dims):
        return None
    return _box(lines, dims, made, given if elements else (*given[:-1], *dims[len(lines) :]))


def _box(lines: list[_Line], dims: Shape, made: Shape, written: Shape) -> Box | None:
    """Return the box of these lines; None if an index may exceed its axis, or if `made` may not be as `written`."""
    spans = [span for line, dim in zip(lines, dims) if (span := _span(line, dim)) is not None]
    if len(spans) < len(lines):
        return None
    cut = {line.axis for line, span in zip(lines, spans) if span != WHOLE}
    missing = tuple(k for k, line in enumerate(lines) if line.axis is None)
    box = Box((*spans, *[WHOLE] * (len(dims) - len(lines))), missing)
    return box if _is_as_large(made, written, cut) else None


def _is_as_large(made: Sequence[Dim], written: Sequence[Dim], cut: Collection[int | None]) -> bool:
    """Whether the updates have the shape of the box.

    If the box covers part of an axis (in `cut`), axes of unknown size may differ: a Concat requires equal sizes.
    """
    if len(made) != len(written) or None in written:
        return False
    unlike = [i for i, (a, b) in enumerate(zip(made, written)) if a != b]
    return not unlike or (bool(cut) and all((made[i] is None or is_invented(made[i])) and i not in cut for i in unlike))


def _span_of_known(start: int, size: Dim, dim: int) -> Span | None:
    """Return the range of `size` elements from `start`, which may be negative, within `dim` elements."""
    if not isinstance(size, int) or not -dim <= start <= start + size <= (dim if start >= 0 else 0):
        return None
    start += dim if start < 0 else 0
    return Span(start, None if start + size == dim else start + size)


def _span(line: _Line, dim: Dim) -> Span | None:
    """Return the range within an axis of this size; None if it may exceed the axis."""
    start, size = line.start, line.size
    if isinstance(dim, int):
        return _span_of_known(start, size, dim)
    if dim is None or start < 0:
        return None
    if not start and size == dim:
        return WHOLE
    if not start and size == 1 and not is_invented(dim):  # index 0 exceeds an empty axis only
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
        has_axis = given[at : at + 1] == (1,) and axes - at >= len(parts) - k
        lines.append(_Line(place, 1, axis=at if has_axis else None))
        at += has_axis
    return lines if at == axes else None


def _parts(indices: Value, given: Sequence[Dim]) -> list[Count | int | None] | None:
    """Return for each data axis the count along an index axis, or the single index."""
    if indices.constant:
        return _parts_of(indices)
    node, rank = _maker(indices, "Concat"), len(given)
    columns = node.inputs if node is not None and int(node.attr("axis")) % rank == rank - 1 else [indices]
    if given[-1] != len(columns) or any((types.shape(v) or ())[-1:] != (1,) for v in columns):
        return None
    found: list[Count | int | None] = []
    for v in columns:
        counted = counts(v) if (place := number(v)) is None else None
        found.append(place if counted is None else counted._replace(axis=counted.axis + rank))
    return found


def _parts_of(indices: Value) -> list[Count | int | None] | None:
    """Return the same for constant indices."""
    dims = indices.constant_type()[1]
    if not 0 < prod(dims) <= _MAX_INDICES:
        return None
    found: list[Count | int | None] = []
    for column in np.moveaxis(indices.glance(), -1, 0):
        one = one_element(column)
        count = counts_in(column) if one is None else None
        found.append(int(one) if one is not None else count and count._replace(axis=count.axis + len(dims) - 1))
    return found
