"""Rows of a table that are others in the second model: indices that pick them are fed, or no case would. Of a table of
positions, which nobody's indices pick, the sizes are as large."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.verification.model.constants import numbers
from onnxopt.verification.model.operators import having

if TYPE_CHECKING:
    from onnx import GraphProto, TensorProto

    from onnxopt.verification.model.skeleton import Skeleton

_SAME: Final = having("whole")
_MOST: Final = 1 << 28  # bytes of a table that is read
_AT_ONCE: Final = 1 << 22  # elements
_FEW: Final = 4  # rows


def other_rows(a: Skeleton, b: Skeleton) -> dict[str, tuple[int, ...]]:
    """By input that picks rows of a table, those of it that differ, unless all do: any shows that."""
    theirs, found = _tables(b.proto.graph), dict[str, tuple[int, ...]]()
    for name, mine in _tables(a.proto.graph).items():
        for x, y in zip(mine, theirs.get(name, ())):
            with contextlib.suppress(OSError, ValueError):  # of data that are not there, which is said where it is run
                if (x.dims, x.data_type) == (y.dims, y.data_type) and max(a.size(x), b.size(y)) <= _MOST:
                    found[name] = (*found.get(name, ()), *_rows(a.values(x), b.values(y)))
    return found


def other_size(a: Skeleton, b: Skeleton) -> int:
    """How many rows a case has to reach to see one that differs of a table that is read as far as sizes say; 0 where
    there is none such."""
    theirs, found = _positions(b.proto.graph), list[int]()
    for (x, axis), (y, _) in zip(_positions(a.proto.graph), theirs):
        with contextlib.suppress(OSError, ValueError):
            if (x.dims, x.data_type) == (y.dims, y.data_type) and max(a.size(x), b.size(y)) <= _MOST:
                found += _first(np.moveaxis(a.values(x), axis, 0), np.moveaxis(b.values(y), axis, 0))
    return min(found, default=-1) + 1


def _positions(graph: GraphProto) -> list[tuple[TensorProto, int]]:
    """The initializers that are cut off, or picked of, by what is computed, and along which axis, in the order in which
    they are."""
    held = {t.name: t for t in graph.initializer}
    known, found = {*held, *(i.name for i in graph.input)}, []
    for node in graph.node:
        if node.op_type == "Constant":
            known.update(node.output)
        elif node.op_type in ("Gather", "Slice") and node.input and node.input[0] in held:
            if not known.issuperset(node.input):
                axes = [a.i for a in node.attribute if a.name == "axis"]
                if node.op_type == "Slice" and len(node.input) > 3 and node.input[3] in held:
                    axes = [int(n) for n in numbers(held[node.input[3]]) if n == n // 1]
                found.append((held[node.input[0]], next(iter(axes), 0)))
    return found


def _first(x: Any, y: Any) -> list[int]:
    """The first row that differs, if any does."""
    if x.shape != y.shape or not x.size:
        return []
    differ = np.concatenate(list(_differ(x.reshape(len(x), -1), y.reshape(len(y), -1))))
    return [int(row) for row in np.flatnonzero(differ)[:1]]


def _tables(graph: GraphProto) -> dict[str, list[TensorProto]]:
    """The initializers whose rows an input picks, in the order in which it does."""
    held = {t.name: t for t in graph.initializer}
    origins = {i.name: i.name for i in graph.input if i.name not in held}
    found: dict[str, list[TensorProto]] = {}
    for node in graph.node:
        if node.op_type in _SAME and node.input and node.input[0] in origins and node.output:
            origins[node.output[0]] = origins[node.input[0]]
        elif node.op_type == "Gather" and len(node.input) > 1 and not any(a.i for a in node.attribute):
            if node.input[1] in origins and node.input[0] in held:
                found.setdefault(origins[node.input[1]], []).append(held[node.input[0]])
    return found


def _rows(x: Any, y: Any) -> tuple[int, ...]:
    if not x.ndim or not x.size or x.shape != y.shape:
        return ()
    differ = np.concatenate(list(_differ(x.reshape(len(x), -1), y.reshape(len(y), -1))))
    rows = np.flatnonzero(differ)
    return () if len(rows) == len(x) else tuple(rows[:: max(len(rows) // _FEW, 1)][:_FEW].tolist())


def _differ(x: Any, y: Any) -> Iterator[Any]:
    step = max(_AT_ONCE // x.shape[1], 1)
    for start in range(0, len(x), step):
        yield (x[start : start + step] != y[start : start + step]).any(axis=1)
