"""Operators that treat rows, vectors along the last axis, one by one: whatever the other axes are, they may be one."""

from __future__ import annotations

from typing import Final

from onnxopt.analysis import types
from onnxopt.graph import Shape, Value
from onnxopt.graph.node import Node
from onnxopt.operators import ARITHMETIC, COMPARISONS, REDUCTIONS, UNARY
from onnxopt.rewriting.forms import listed_axes

ALONG_LAST: Final = frozenset({"LayerNormalization", "LogSoftmax", "Softmax", "Split", "TopK"})
BROADCASTING: Final = ARITHMETIC.union(COMPARISONS)
_ON_ROWS: Final = UNARY.union(BROADCASTING, ALONG_LAST, REDUCTIONS, ("Clip", "MatMul"))


def leading_dims(node: Node) -> Shape | None:
    """The leading dims of what the node makes, if it treats rows (vectors along the last axis) one by one."""
    if node.op not in _ON_ROWS or node.has_references or None in node.outputs:
        return None
    if len(node.outputs) > 1 and node.op not in ("Split", "TopK"):
        return None
    shapes = [types.shape(v) for v in node.outputs if v is not None]
    if len({dims[:-1] if dims is not None else None for dims in shapes}) > 1:
        return None
    dims = shapes[0]
    if dims is None or len(dims) < 3 or None in dims[:-1] or not isinstance(dims[-1], int) or dims[-1] == 0:
        return None
    if not types.dtype(node.output) or not all(d is not None and isinstance(d[-1], int) for d in shapes):
        return None
    lead = dims[:-1]
    rows = rows_of(node, lead)
    return lead if rows and _is_apart(node, rows, len(dims)) else None


def _is_apart(node: Node, rows: list[Value], rank: int) -> bool:
    """Does each row hang on itself alone, and on what is the same for all?"""
    others = [v for v in node.inputs if v is not None and v not in rows]
    if node.op in BROADCASTING:
        return all(_is_parameter(v) for v in others)
    if rows[0] is not node.inputs[0]:
        return False
    if node.op == "MatMul":
        return bool(others) and types.rank(others[0]) == 2
    if node.op in ALONG_LAST:
        return node.attr("axis") in (-1, rank - 1) and all(types.rank(v) == 1 for v in others)
    if node.op in REDUCTIONS:
        return node.keeps_dims and listed_axes(node) in ([-1], [rank - 1])
    return all(types.rank(v) == 0 for v in others)


def rows_of(node: Node, lead: Shape) -> list[Value]:
    """The inputs that have the leading dims, each once."""
    found = []
    for i, v in enumerate(node.inputs):
        if v is None or v.constant or v in found or (i and node.op not in BROADCASTING):
            continue
        dims = types.shape(v)
        if dims is not None and dims[:-1] == lead and isinstance(dims[-1], int):
            found.append(v)
    return found


def _is_parameter(v: Value) -> bool:
    """Does it broadcast along the last axis only?"""
    if v.constant:
        return all(d == 1 for d in v.constant_type()[1][:-1])
    rank = types.rank(v)
    return rank is not None and rank <= 1
