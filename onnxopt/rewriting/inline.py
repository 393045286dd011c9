"""Put the body of a control-flow node in its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnxopt.analysis.refusal import is_refused
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node
from onnxopt.protos import Array, make_node


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
    """What reads the outputs of `node` reads `results`, those that were made here under the names of the outputs; an
    Identity where a result is an outer value or an initializer, or is given out twice. `node` goes."""
    named: dict[Value, Value] = {}  # what was made here, under the names that the node gave it
    for value, result in zip(list(node.outputs), results):
        if value is None or not value.is_used:
            continue
        assert result is not None
        result = named.get(result, result)
        made_here = result.producer is not None and result.graph is graph and result not in named.values()
        if made_here and not result.is_output:
            assert result.producer is not None
            producer, index = result.producer, result.index
            result.redirect_readers(value)
            graph.take_over(value, producer, index)
            named[result] = value
        elif value.is_output:
            identity = Node(make_node("Identity", "", node.name, {}), [result], [None])
            graph.take_over(value, graph.insert(identity, node))
        else:
            value.replace_all_uses_with(result)
    graph.remove(node)
