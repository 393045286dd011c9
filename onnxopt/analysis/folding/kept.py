"""What of a cone of constants is worth computing: what somebody keeps, and what that is made of."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from onnxopt.graph.node import Node
from onnxopt.graph.value import Value


def is_read(v: Value, gone: Container[Node], stays: Container[Node]) -> bool:
    """Does anything read it but nodes that go, and do not stay after all?"""
    return v.is_output or any(user not in gone or user in stays for user in v.users)


def worth_running(
    nodes: Sequence[Node], is_too_large: Callable[[Node, list[Value]], bool]
) -> tuple[list[Node], list[Value]]:
    """Those of these nodes, in topological order, of which something is kept, and what is: of results that are known to
    be too large what they are made of, for their node stays."""
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
