"""Inlines the body of a control-flow node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnxopt.analysis.constants import is_refused
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.proto.messages import Array


def obstacle(graph: Graph, body: Graph) -> str:
    """Return why `body` cannot be inlined into `graph`, the scope of its owner; empty if possible."""
    if body.skipped:
        return "the body is marked to be left alone"
    if body.initializers and not graph.holds_initializers:
        return "the body has initializers, a function cannot"
    if len(body.proto.sparse_initializer) or _hands_on_outer(body):
        return "a body inside hands out what is not its own, or is sparse"
    return ""


def misleads(pairs: Iterable[tuple[Value | None, Array | Value | None]]) -> bool:
    """Whether replacing each value by its partner may make onnxruntime reject a body that never runs."""
    return any(v is not None and r is not None and v.is_used and is_refused(v, r) for v, r in pairs)


def _hands_on_outer(body: Graph) -> bool:
    """Whether a nested body outputs a value of `body`, which inlining renames."""
    inner = [b for n in body.walk() for b in n.bodies.values()]
    return any(v.graph is body for b in inner for v in b.outputs)


def forward_results(graph: Graph, node: Node, results: Sequence[Value | None]) -> None:
    """Make readers of the outputs of `node` read `results`, and remove `node`.

    Results made in this scope take the outputs' names. An Identity is inserted for outer values, initializers and
    repeated results.
    """
    now: dict[Value, Value] = {}  # result: value to read instead
    for value, result in zip(list(node.outputs), results):
        if value is None or not value.is_used:
            continue
        assert result is not None
        if result in now or graph.needs_copy(result):
            now[result] = value.replace_all_uses_with(now.get(result, result))
            continue
        assert result.producer is not None
        result.redirect_readers(value)
        graph.take_over(value, result.producer, result.index)
        now[result] = value
    graph.remove(node)
