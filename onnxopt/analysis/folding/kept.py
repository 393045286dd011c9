"""Selection of constant nodes worth computing: nodes with a kept result, and all upstream nodes."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Final

from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.operators import SAME_ORDER
from onnxopt.proto.messages import attribute_bytes

_LAYOUTS: Final = (*SAME_ORDER, "Transpose")


def is_read(v: Value, gone: Container[Node], stays: Container[Node]) -> bool:
    """Whether a value is read by a node outside `gone`, or in `stays`, or is an output."""
    return v.is_output or any(user not in gone or user in stays for user in v.users)


def worth_running(
    nodes: Sequence[Node], is_too_large: Callable[[Node, list[Value]], bool]
) -> tuple[list[Node], list[Value]]:
    """Return (nodes to run, results to keep) of `nodes`, given in topological order.

    A node with results known to be too large stays, and its operands are kept instead.
    """
    inside = set(nodes)
    stays: set[Node] = set()
    running: list[Node] = []
    wanted: list[Value] = []
    read: set[Value | None] = set()
    for node in reversed(nodes):
        found = [v for v in node.outputs if v is not None and is_read(v, inside, stays)]
        if found and is_too_large(node, found):
            stays.add(node)
            found = []
        if found or not read.isdisjoint(node.outputs):
            running.append(node)
            read.update(node.inputs)
        wanted += reversed(found)
    return running[::-1], wanted[::-1]


def is_second_layout(node: Node, gone: Container[Node], stays: Container[Node]) -> bool:
    """Whether `node` only permutes a stored weight kept for other readers."""
    while node.op in _LAYOUTS and (x := node.inputs[0]) is not None:
        if x.is_stored:
            return x.is_output or any(
                u not in gone or u in stays or u.op in _LAYOUTS for u in x.users if not _is_equal(u, node)
            )
        if x.producer is None:
            return False
        node = x.producer
    return False


def _is_equal(a: Node, b: Node) -> bool:
    return a is b or (a.op == b.op and a.inputs == b.inputs and attribute_bytes(a.proto) == attribute_bytes(b.proto))
