"""Ranks required by readers: Conv, LSTM or Transpose accept a single rank, any other is a run-time error."""

from __future__ import annotations

from collections.abc import Container
from math import prod
from typing import Final

from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import values_read
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.operators import LIKE_FIRST, MULTIDIRECTIONAL, POOLS, RECURRENT

_MAX_EXAMINED: Final = 32  # readers examined (in depth and in breadth), their operands, and axes
_STATES: Final = (5, 6)  # state inputs of recurrent operators


def running(graph: Graph) -> set[Node]:
    """Return the nodes needed for the outputs of a scope, which run whenever the scope does."""
    found: set[Node] = set()
    stack = [v.producer for v in graph.outputs]
    while stack:
        node = stack.pop()
        if node is not None and node.graph is graph and node not in found:
            found.add(node)
            stack += [v.producer for v in values_read(node)]
    return found


def required_rank(value: Value, among: Container[Node]) -> int | None:
    """Return the rank of `value` required by readers in nodes that run, or None."""
    stack = [(value, 0, -1)]  # (value read, its additional axes, lower bound of the rank of `value`)
    for _ in range(_MAX_EXAMINED):
        if not stack:
            break
        asked, more, above = stack.pop()
        for node in asked.users:
            if node.has_references or max(len(stack), len(node.inputs)) > _MAX_EXAMINED:
                continue
            rank = _read_by(node, asked)
            if rank is not None and rank - more > above and node in among:
                return rank - more  # the nodes in between run, too
            found = _passed_on(node, asked)
            if found is not None and node.outputs[0] is not None:
                change, least = found
                stack.append((node.output, more + change, max(above, least - more)))
    return None


def _read_by(node: Node, value: Value) -> int | None:
    """Return the rank that a node requires of an input, or None."""
    op, place = node.op, node.places(value)[0]
    if op in RECURRENT and place in (0, *_STATES):
        return 3
    if place != 0:
        return None
    if op in ("Conv", "ConvTranspose"):
        rank = types.rank(node.input(1)) or 0
        return rank if rank > 2 else None
    if op == "Transpose":
        return len(node.attr("perm", ())) or None
    return len(node.attr("kernel_shape")) + 2 if op in POOLS and node.attr("kernel_shape") else None


def _past_others(node: Node, value: Value) -> tuple[int, int] | None:
    """Return `_passed_on` of an operand that broadcasts: its rank is the largest."""
    ranks = [types.rank(v) for v in node.operands if v is not value]
    return None if None in ranks else (0, max((r or 0 for r in ranks), default=-1))


def _passed_on(node: Node, value: Value) -> tuple[int, int] | None:
    """Return (additional axes of the result, required lower bound of the rank of `value`), or None if unknown."""
    op = node.op
    if op in MULTIDIRECTIONAL:
        return _past_others(node, value)
    if node.places(value) != [0]:
        return None
    if op in LIKE_FIRST or op in ("Pad", "Slice"):
        return 0, -1
    if op == "MatMul":
        return (0, 0) if types.rank(node.inputs[1]) == 2 else None
    count = _axes(node) if op in ("Unsqueeze", "Squeeze") else None
    return None if count is None else (count if op == "Unsqueeze" else -count, -1)


def _axes(node: Node) -> int | None:
    """Return the number of axes that a node adds or drops."""
    axes, given = node.attr("axes"), node.input(1)
    if given is not None and given.constant and _is_list(given):
        axes = given.array.reshape(-1).tolist()
    if not axes or len({a < 0 for a in axes}) > 1 or len(set(axes)) < len(axes):
        return None  # two entries may be the same axis
    return len(axes)


def _is_list(axes: Value) -> bool:
    """Whether a constant is a short list of int64, as axes are."""
    data_type, dims = axes.constant_type()
    return data_type == TensorProto.INT64 and prod(dims) <= _MAX_EXAMINED
