"""Axis numbers and constants of a node copied into a view of its axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from onnxopt.analysis.shapes.sizes import order_of
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.operators import REDUCTIONS, broadcasts
from onnxopt.operators.operands import AXES
from onnxopt.proto.messages import Array
from onnxopt.rewriting.axes import Axes, Place, View
from onnxopt.rewriting.rule import listed_axes


def constant_operand(node: Node, v: Value, a: Axes, view: View) -> Value:
    """Return the constant that replaces operand `v` of a node in the view, of the lowest possible rank.

    Runtimes recognize a normalization by a scale of rank 1.
    """
    dims, (to, rank, *_) = v.constant_type()[1], view.at(a.rank)
    wide = (1,) * (a.rank - len(dims)) + dims
    array: Array = v.array.reshape(wide).transpose(sorted(range(a.rank), key=to.__getitem__))
    array = array.reshape([int(d or 0) for d in view.dims(wide)])
    least = array.ndim if len(dims) == a.rank == rank else max(len(dims), 1) if rank > a.rank else 1
    while broadcasts(node.op, node.scope.opset()) and array.ndim > least and array.shape[0] == 1:
        array = array[0]
    if array.shape == dims and array.tobytes() == v.array.tobytes():
        return v  # compared as bytes, to respect signs of zeros
    return node.scope.constant(array, v.name, node)


def rename(node: Node, old: Node, a: Axes, view: View) -> None:
    """Set the axis numbers of `node`, a copy of `old` (with axes `a`) placed in the view."""
    rule = AXES[node.op]
    write = _RENAMED.get("listed" if rule.named in ("axes", "axis") and rule.operand else rule.named)
    if write is not None:
        write(node, old, a, view.at(a.rank))


def _moved(axis: int, a: Axes, place: Place) -> int:
    """Return the number of an axis in the view; the same number if it means the same axis."""
    new = place.to[axis % a.rank][0]
    return axis if axis == new - place.rank else new


def _set(node: Node, old: Node, index: int, name: str, listed: list[int]) -> None:
    """Set the numbers listed by an operand, or by an attribute if there is no operand."""
    like = old.input(index)
    if like is None:
        node.set_attr(name, listed)
    elif node.graph is not None:
        array = np.array(listed, like.array.dtype).reshape(like.array.shape if name == "axis" else -1)
        node.set_input(index, node.graph.constant(array, like.name, node))


def _rename_listed(node: Node, old: Node, a: Axes, place: Place) -> None:
    rule = AXES[node.op]
    given = listed_axes(old, int(rule.operand)) or []
    new = [_moved(axis, a, place) for axis in given]
    if new != given:
        _set(node, old, int(rule.operand), rule.named, sorted(new) if node.op in REDUCTIONS else new)


def _rename_axis(node: Node, old: Node, a: Axes, place: Place) -> None:
    axis = int(old.attr("axis"))
    if (new := _moved(axis, a, place)) != axis:
        node.set_attr("axis", new)


def _rename_scaled(node: Node, old: Node, a: Axes, place: Place) -> None:
    if a.along:
        _rename_axis(node, old, a, place)


def _rename_pads(node: Node, old: Node, a: Axes, place: Place) -> None:
    given, rank = listed_axes(old) or [], place.rank
    padded = [0] * 2 * rank
    for i in a.along:
        padded[place.to[i][0]], padded[place.to[i][0] + rank] = given[i], given[i + a.rank]
    if padded != given and rank:
        _set(node, old, 1, "pads", padded)


def _rename_order(node: Node, old: Node, a: Axes, place: Place) -> None:
    perm = list(range(place.rank))
    for there, here in zip(place.to, order_of(old, a.rank)):
        for i, k in zip(there, place.to[here]):
            perm[i] = k
    node.set_attr("perm", perm)


_RENAMED: Final[dict[str, Callable[[Node, Node, Axes, Place], None]]] = {
    "axis": _rename_axis,
    "from": _rename_axis,
    "listed": _rename_listed,
    "pads": _rename_pads,
    "perm": _rename_order,
    "scale": _rename_scaled,
}
