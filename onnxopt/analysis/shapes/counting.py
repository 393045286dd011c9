"""Integer tensors that count along an axis or hold sizes, for static analysis of indexing."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sizes import listed_by
from onnxopt.analysis.shapes.slicing import LARGEST, cuts
from onnxopt.analysis.weights.contents import one_element
from onnxopt.graph.node import Node
from onnxopt.graph.value import Dim, Value
from onnxopt.operators import SAME_ORDER
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.messages import Array

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
