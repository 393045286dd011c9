"""Replaces a partition by a call of a new model-local function."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import FunctionProto

from onnxopt.analysis.submodel import boundary, reads
from onnxopt.errors import UsageError
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import function_label
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.graph.writer import node_protos
from onnxopt.pipeline.base import MADE_BY
from onnxopt.pipeline.context import PassContext
from onnxopt.pipeline.partition import Partition
from onnxopt.plaintext import an
from onnxopt.protos import make_node


def fuse_partition(partition: Partition, name: str, domain: str = "onnxopt.partition") -> Node:
    """Replace the partition's nodes by a call of a new function, and return the call.

    The function is called `name`, or `name_1`, … if taken. Values read by the nodes, constants included, become inputs;
    values read by others keep object, name and users. Raises UsageError, with nothing changed, for a partition that is
    empty, no longer in the graph or not convex, for bodies with reads of outer values, and inside a function for
    attributes set by the caller. The function's metadata names the running pass: a GraphPass skips its own functions.
    """
    if not isinstance(partition, Partition):
        hint = "for each that CapabilityPartitioner(…).propose() gives: fuse_partition(partition, name)"
        raise UsageError(f"fuse_partition takes one partition, not {an(type(partition).__name__)}", hint)
    nodes = partition.nodes
    graph = _scope(nodes)
    behind, last = _behind(nodes)
    inputs, constants, outputs = boundary(nodes)
    if not outputs:
        raise UsageError(f"nothing reads the results of {partition!r}", "remove what is dead first")
    proto = _function(graph, nodes, [*inputs, *constants], outputs, name, domain)
    if maker := PassContext.current().running:
        proto.metadata_props.add(key=MADE_BY, value=maker)
    graph.model.add_function(proto)
    call = Node(make_node(proto.name, domain, proto.name, {}), [*inputs, *constants], [])
    graph.insert(call, last.next)
    place = call
    for node in behind:
        graph.move_after(node, place)
        place = node
    for index, value in enumerate(outputs):
        graph.take_over(value, call, index)
    _remove(graph, nodes)
    return call


def _scope(nodes: Sequence[Node]) -> Graph:
    """Return the scope of all nodes. Raises UsageError for nodes that cannot move into a function."""
    graph = nodes[0].graph if nodes else None
    if graph is None or any(n.graph is not graph for n in nodes):
        raise UsageError("the partition is empty, or its nodes left the graph", "propose partitions again")
    for node in nodes:
        if node.bodies and len(list(reads(node))) > sum(v is not None for v in node.inputs):
            raise UsageError(f"a body of {node!r} reads outer values", "leave the node out of the partition")
        if node.has_references:
            raise UsageError(f"{node!r} has an attribute that is a reference", "inline the function first")
    return graph


def _behind(nodes: Sequence[Node]) -> tuple[list[Node], Node]:
    """Return (nodes to move behind the call, last node): nodes within the partition's span that depend on the
    partition."""
    inside = set(nodes)
    first = last = nodes[0]
    missing = len(inside) - 1
    node = last.next
    while missing and node is not None:
        if node in inside:
            last, missing = node, missing - 1
        node = node.next
    node = first.prev
    while missing and node is not None:  # an earlier fusion may have moved nodes forward
        if node in inside:
            first, missing = node, missing - 1
        node = node.prev
    behind: dict[Node, None] = {}
    node = first
    while node is not None and node is not last.next:
        producers = {v.producer for v in reads(node)}
        if node in inside:
            if not producers.isdisjoint(behind):
                raise UsageError(f"the partition is not convex: {node!r} reads what depends on it from outside")
        elif not producers.isdisjoint(inside) or not producers.isdisjoint(behind):
            behind[node] = None
        node = node.next
    return list(behind), last


def _function(
    graph: Graph, nodes: Sequence[Node], inputs: list[Value], outputs: list[Value], name: str, domain: str
) -> FunctionProto:
    free, count = name, 0
    while function_label(domain, free) in graph.model.functions:
        count += 1
        free = f"{name}_{count}"
    proto = FunctionProto(name=free, domain=domain)
    proto.input.extend(v.name for v in inputs)
    proto.output.extend(v.name for v in outputs)
    for imported, version in (graph.root.opsets or graph.model.opsets).items():
        proto.opset_import.add(domain=imported, version=version)
    proto.node.extend(node_protos(graph, nodes))
    return proto


def _remove(graph: Graph, nodes: Sequence[Node]) -> None:
    """Remove the nodes, whatever their order."""
    inside = set(nodes)
    # Their outputs are read only among themselves: after dropping these reads, any order works.
    for node in nodes:
        for i, value in reversed(list(enumerate(node.inputs))):
            if value is not None and (value.producer in inside):
                node.set_input(i, None)
    for node in nodes:
        graph.remove(node)
