"""Topological order of nodes, and values read by nodes and bodies. Runtimes accept any order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from onnxopt.verification.model.operators import WITH_BODIES

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto


class _Node:
    """A node with fields read from the message once, for repeated access."""

    __slots__ = ("attribute", "bodies", "domain", "input", "op_type", "output", "overload")

    def __init__(self, node: NodeProto) -> None:
        self.op_type, self.domain, self.overload = node.op_type, node.domain, node.overload
        self.input, self.output, self.attribute = node.input[:], node.output[:], node.attribute[:]
        self.bodies = [read(body) for body in bodies_of(node)]


class _Graph:
    """A graph of such nodes, in topological order."""

    def __init__(self, graph: GraphProto) -> None:
        self.name, self.value_info = graph.name, graph.value_info
        self.input, self.output = graph.input[:], graph.output[:]
        self.initializer, self.sparse_initializer = graph.initializer[:], graph.sparse_initializer[:]
        self.node = ordered([cast("NodeProto", _Node(n)) for n in graph.node])


class _Ordered(list["NodeProto"]):
    pass


def read(graph: GraphProto) -> GraphProto:
    """Return a read-only copy of a graph with all fields read once, for several analyses."""
    return cast("GraphProto", _Graph(graph))


def ordered(nodes: Sequence[NodeProto]) -> Sequence[NodeProto]:
    """Return the nodes in topological order, unchanged if already sorted."""
    if isinstance(nodes, _Ordered):
        return nodes
    later = {o for node in nodes for o in node.output[:] if o}
    for node in nodes:
        if not later.isdisjoint(node.input[:]):
            return _Ordered(nodes[i] for i in in_order(nodes, [list(reads_of(n)) for n in nodes]))
        later.difference_update(node.output[:])
    return _Ordered(nodes)


def in_order(nodes: Sequence[NodeProto], reads: Sequence[Sequence[str]]) -> list[int]:
    """Return indices in topological order, unchanged if already sorted. `reads`: values read, by node."""
    maker = {o: i for i, n in enumerate(nodes) for o in n.output[:] if o}
    done: dict[int, None] = {}
    for root in range(len(nodes)):
        stack = [root]
        while stack:
            i = stack[-1]
            before = [maker[r] for r in reads[i] if r in maker and maker[r] not in done and maker[r] != i]
            if i in done or not before or len(stack) > len(nodes):
                done[stack.pop()] = None
            else:
                stack += before
    return list(done)


def reads_of(node: NodeProto) -> Iterator[str]:
    """Yield the values read by a node, including values captured by its bodies."""
    for name in node.input[:]:
        if name:
            yield name
    for a in node.attribute[:]:
        for body in (a.g,) if a.HasField("g") else a.graphs:
            yield from captured(body)


def captured(body: GraphProto) -> Iterator[str]:
    """Yield the values read by a body from outside."""
    made = {i.name for i in body.input} | {t.name for t in body.initializer}
    made |= {t.values.name for t in body.sparse_initializer}
    for node in body.node[:]:
        yield from (name for name in reads_of(node) if name not in made)
        made.update(node.output)
    yield from (o.name for o in body.output if o.name not in made)


def bodies_of(node: NodeProto) -> Sequence[GraphProto]:
    """Return the bodies of a node.

    Attributes of standard operators without bodies are not searched.
    """
    if node.op_type not in WITH_BODIES and not node.domain:
        return ()
    if isinstance(node, _Node):
        return node.bodies
    return [body for a in node.attribute[:] for body in ((a.g,) if a.HasField("g") else a.graphs)]


def first_of(node: NodeProto) -> str:
    """Return the first named output of a node, or ""."""
    return next((o for o in node.output[:] if o), "")


def inside(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes, including nodes in bodies at any depth."""
    for node in nodes:
        yield node
        for body in bodies_of(node):
            yield from inside(body.node)


def operator_names(nodes: Iterable[NodeProto]) -> frozenset[str]:
    """Return the operator types of nodes, including nodes in bodies."""
    return frozenset(node.op_type for node in inside(nodes))
