"""Operators that treat what lies along their first axis apart: whether that axis is one or several does not matter."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sizes import order_of
from onnxopt.graph import Shape, Value
from onnxopt.graph.node import Node
from onnxopt.operators import BROADCASTING, REDUCTIONS, UNARY
from onnxopt.rewriting.forms import listed_axes

_ALONG_ONE: Final = frozenset({"Concat", "Gather", "GatherElements", "LogSoftmax", "Softmax", "Split"})
_ON_BATCHES: Final = UNARY.union(BROADCASTING, _ALONG_ONE, REDUCTIONS, ("Clip", "MatMul", "Transpose", "Trilu"))


def batch_in(known: Container[Shape], node: Node) -> Shape | None:
    """The first dim (alone) of what the node makes, if it is known, and what lies along it is treated apart."""
    if node.op not in _ON_BATCHES or node.has_references or None in node.outputs or not node.inputs:
        return None
    dims = types.shape(node.outputs[0])  # type: ignore[arg-type]
    if dims is None or len(dims) < 2 or dims[:1] not in known or (len(node.outputs) > 1 and node.op != "Split"):
        return None
    found = batched(node, dims[:1])
    return dims[:1] if found and _is_apart(node, found) else None


def batched(node: Node, first: Shape) -> list[Value]:
    """The inputs, constants too, whose first axis is that of the result."""
    all_alike = node.op in BROADCASTING or node.op in ("Concat", "GatherElements", "MatMul")
    rank = types.rank(node.outputs[0]) if all_alike else None  # type: ignore[arg-type]
    found = []
    for v in node.inputs if all_alike else node.inputs[:1]:
        dims = types.shape(v) if v is not None else None
        if v is not None and dims is not None and dims[:1] == first and (rank is None or len(dims) == rank):
            found.append(v)
    return list(dict.fromkeys(found))


def varying(node: Node, first: Shape) -> list[Value]:
    """The same without constants."""
    return [v for v in batched(node, first) if not v.constant]


def _is_apart(node: Node, found: list[Value]) -> bool:
    """Of what is `found` to have the first axis of the result: is each of its elements along that treated alone?"""
    op, rank = node.op, types.rank(found[0]) or 0
    others = [v for v in node.inputs if v is not None and v not in found]
    if op in BROADCASTING:
        return all(_is_for_all(v, rank, 0) for v in others)
    if op == "MatMul":
        return rank > 2 and all(_is_for_all(v, rank, 2) for v in others)
    if found[0] is not node.inputs[0]:
        return False
    if op in ("Concat", "GatherElements"):
        return not others and int(node.attr("axis")) % rank != 0
    if op == "Transpose":
        perm = order_of(node, rank)
        return perm[0] == 0 and sorted(perm) == list(range(rank))
    if op in REDUCTIONS:
        axes = listed_axes(node)
        return bool(axes) and all(a % rank for a in axes or ())
    if op in ("Gather", "Split"):
        return int(node.attr("axis")) % rank != 0
    if op in _ALONG_ONE:
        axis = int(node.attr("axis")) % rank
        return axis != 0 and (axis == rank - 1 or (node.graph is not None and node.graph.opset() >= 13))
    if op == "Trilu":
        return rank > 2
    return all(types.rank(v) == 0 for v in others)  # bounds of Clip


def _is_for_all(v: Value, rank: int, least: int) -> bool:
    """Is what is broadcast the same for the whole batch?"""
    dims = types.shape(v)
    return dims is not None and least <= len(dims) <= rank and (len(dims) < rank or dims[0] == 1)


def order_apart(perm: Sequence[int], axis: int, more: int) -> tuple[int, ...]:
    """`perm`, where `axis` is that one and `more` axes behind it."""
    found: list[int] = []
    for i in perm:
        found += range(i, i + more + 1) if i == axis else [i + more * (i > axis)]
    return tuple(found)


def put_axes_in_front(node: Node, old: Node, more: int) -> None:
    """`node` is `old` on values that have so many more axes in front: what it says of axes follows."""
    if node.op == "Transpose":
        rank = types.rank(old.inputs[0]) if old.inputs[0] is not None else None
        node.set_attr("perm", list(order_apart(order_of(old, rank or 0), 0, more)))
    elif node.op in _ALONG_ONE and (axis := int(old.attr("axis"))) >= 0:
        node.set_attr("axis", axis + more)
    elif node.op in REDUCTIONS and any(a >= 0 for a in listed_axes(old) or ()):
        axes = [a + more * (a >= 0) for a in listed_axes(old) or ()]
        if len(old.inputs) > 1 and old.inputs[1] is not None:
            assert node.graph is not None
            node.set_input(1, node.graph.constant(np.array(axes, np.int64), old.inputs[1].name, node))
        else:
            node.set_attr("axes", axes)
