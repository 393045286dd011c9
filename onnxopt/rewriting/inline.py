"""Put the body of a control-flow node in its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnxopt.analysis.refusal import is_refused
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node
from onnxopt.protos import Array


def obstacle(graph: Graph, body: Graph) -> str:
    """Why `body` cannot be inlined into `graph`, the scope of its owner; empty if it can."""
    if body.skipped:
        return "the body is marked to be left alone"
    if body.initializers and not graph.holds_initializers:
        return "the body has initializers, a function cannot"
    if len(body.proto.sparse_initializer) or _hands_on_outer(body):
        return "a body inside hands out what is not its own, or is sparse"
    return ""


def misleads(pairs: Iterable[tuple[Value | None, Array | Value | None]]) -> bool:
    """Would a body that never runs be refused for what it learns, where each of these values is the other instead?"""
    return any(v is not None and r is not None and v.is_used and is_refused(v, r) for v, r in pairs)


def _hands_on_outer(body: Graph) -> bool:
    """Would a renamed value be listed as output of a body further inside?"""
    inner = [b for n in body.walk() for b in n.bodies.values()]
    return any(v.graph is body for b in inner for v in b.outputs)


def forward_results(graph: Graph, node: Node, results: Sequence[Value | None]) -> None:
    """What reads the outputs of `node` reads `results`, under the names of the outputs if they are made here; an
    Identity where a result is an outer value or an initializer, or is given out twice. `node` goes."""
    now: dict[Value, Value] = {}  # the value to read in place of a result
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
