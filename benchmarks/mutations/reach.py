"""Results wrong in one part, or for some callers: a row of a table, a head, sizes above a threshold."""

from __future__ import annotations

from random import Random
from typing import Any, Final

import numpy as np
from onnx import helper, numpy_helper

from mutations.place import Edit, Place

THRESHOLDS: Final = (4, 5, 8, 13, 16, 31, 64, 100, 127, 150, 200, 255, 256, 300, 400, 512)
_FLOATS: Final = ("float32", "float64")
_PER_HEAD: Final = ("MatMul", "Softmax", "Attention", "RotaryEmbedding")


def wrong_beyond_size(place: Place, rng: Random) -> Edit | None:
    """A value is larger by a quarter where a dim of it exceeds a threshold."""
    known = place.known.shapes.get(place.node.output[0])
    if known is None or known[0] not in _FLOATS or not known[1] or place.around or len(place.node.output) != 1:
        return None
    axis, most = rng.randrange(len(known[1])), rng.choice(THRESHOLDS)
    if known[1][axis] > most:  # it would be wrong in any case
        return None
    node, out = place.copy(), place.node.output[0]
    node.output[0] = "broken_out"
    numbers: dict[str, Any] = {"axis": np.int64(axis), "most": np.int64(most)}
    numbers |= {"one": np.ones((), known[0]), "more": np.asarray(1.25, known[0])}
    nodes = [
        node,
        helper.make_node("Shape", ["broken_out"], ["broken_shape"]),
        helper.make_node("Gather", ["broken_shape", "broken_axis"], ["broken_size"]),
        helper.make_node("Greater", ["broken_size", "broken_most"], ["broken_beyond"]),
        helper.make_node("Where", ["broken_beyond", "broken_more", "broken_one"], ["broken_factor"]),
        helper.make_node("Mul", ["broken_out", "broken_factor"], [out]),
    ]
    constants = [numpy_helper.from_array(np.asarray(v), f"broken_{name}") for name, v in numbers.items()]
    return Edit(nodes, f"a quarter too large where dim {axis} exceeds {most}", constants, beyond=most)


def trips_limited(place: Place, rng: Random) -> Edit | None:
    """A Loop ends after so many trips."""
    if place.op != "Loop" or not place.input(0):
        return None
    most = rng.choice(THRESHOLDS[:6])
    loop, limit = place.copy(), numpy_helper.from_array(np.int64(most), "broken_most")
    loop.input[0] = "broken_trips"
    nodes = [helper.make_node("Min", [place.input(0), limit.name], ["broken_trips"]), loop]
    return Edit(nodes, f"at most {most} trips", [limit], beyond=most)


def buckets_limited(place: Place, rng: Random) -> Edit | None:
    """The index into a table ends at a bucket before the last."""
    table, index = place.floats(0), place.known.shapes.get(place.input(1))
    if place.op != "Gather" or table is None or index is None or place.attribute("axis", 0) or table.shape[0] < 4:
        return None
    most = rng.choice([n for n in (table.shape[0] // 2, table.shape[0] - 2, *THRESHOLDS) if n < table.shape[0] - 1])
    gather, limit = place.copy(), numpy_helper.from_array(np.asarray(most, index[0]), "broken_most")
    gather.input[1] = "broken_index"
    nodes = [helper.make_node("Min", [place.input(1), limit.name], ["broken_index"]), gather]
    return Edit(nodes, f"bucket {most} for all behind it", [limit])


def row_of_table_changed(place: Place, rng: Random) -> Edit | None:
    """Change one row of the table of a Gather."""
    table = place.floats(0)
    if place.op != "Gather" or table is None or table.ndim < 2 or place.attribute("axis", 0):
        return None
    row, new = rng.randrange(table.shape[0]), table.copy()
    new[row] = new[row] * -1.5 + 0.1
    return place.with_constants({0: new}, f"row {row} of the table is another")


def heads_swapped(place: Place, rng: Random) -> Edit | None:
    """Exchange two heads of a tensor with an axis of heads."""
    known = place.known.shapes.get(place.node.output[0])
    if place.op not in _PER_HEAD or known is None or len(known[1]) != 4 or known[1][1] < 2:
        return None
    k, order = rng.randrange(known[1][1] - 1), list(range(known[1][1]))
    order[k], order[k + 1] = k + 1, k
    node, out = place.copy(), place.node.output[0]
    node.output[0] = "broken_out"
    indices = numpy_helper.from_array(np.array(order, np.int64), "broken_order")
    nodes = [node, helper.make_node("Gather", ["broken_out", indices.name], [out], axis=1)]
    return Edit(nodes, f"heads {k} and {k + 1} are swapped", [indices])


def causal_mask_shifted(place: Place, _: Random) -> Edit | None:
    """The triangle of a mask is one column wider."""
    if place.op == "Trilu":
        old = place.array(1)
        if place.input(1) and old is None:
            return None
        return place.with_constants({1: (0 if old is None else old) + np.int64(1)}, "the triangle is one wider")
    for i in range(len(place.node.input) if place.op in ("Where", "Add", "And", "Or", "Attention") else 0):
        mask = place.array(i)
        if mask is not None and mask.ndim >= 2 and min(mask.shape[-2:]) > 2 and _is_triangle(mask):
            return place.with_constants({i: np.roll(mask, 1, -1)}, f"input {i} is one column further")
    return None


def _is_triangle(mask: Any) -> bool:
    """Returns whether each row has one number up to a column, then another, and the column moves by one per row."""
    plane = mask.reshape(-1, *mask.shape[-2:])[0]
    changes = [np.flatnonzero(row[1:] != row[:-1]) for row in plane[:-1]]
    return all(len(c) == 1 for c in changes[:4]) and [int(c[0]) for c in changes[:3]] == [0, 1, 2]
