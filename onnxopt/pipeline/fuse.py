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
from onnxopt.proto.messages import make_node


def fuse_partition(partition: Partition, name: str, domain: str = "onnxopt.partition") -> Node:
    """Replace the partition's nodes by a call of a function, and return the call.

    A function of that name with the same nodes is called again. Otherwise the function is new, and is called `name`, or
    `name_1`, … if taken. Values read by the nodes, constants included, become inputs;
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
    inputs = [*inputs, *constants]
    called, is_new = _name(graph, nodes, inputs, outputs, name, domain)
    if is_new:
        proto = _function(graph, nodes, inputs, outputs, called, domain)
        if maker := PassContext.current().running:
            proto.metadata_props.add(key=MADE_BY, value=maker)
        graph.model.add_function(proto)
    call = Node(make_node(called, domain, called, {}), [*inputs], [])
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


def _name(
    graph: Graph, nodes: Sequence[Node], inputs: list[Value], outputs: list[Value], name: str, domain: str
) -> tuple[str, bool]:
    """Return the name of the function of these nodes, and whether the function is new. No function calls itself."""
    found, count = name, 0
    while (known := graph.model.functions.get(function_label(domain, found))) is not None:
        if known is not graph.root and _is_same(known, _opsets(graph), nodes, inputs, outputs):
            return found, False
        count += 1
        found = f"{name}_{count}"
    return found, True


def _is_same(
    function: Graph, opsets: dict[str, int], nodes: Sequence[Node], inputs: list[Value], outputs: list[Value]
) -> bool:
    """Whether a function has the same nodes in the same order, on other values. False for nodes with bodies."""
    if (len(function), len(function.inputs)) != (len(nodes), len(inputs)):
        return False
    there: dict[Value | None, Value | None] = {None: None, **dict(zip(inputs, function.inputs))}
    for node, other in zip(nodes, function):
        if node.op != other.op or node.bodies or node.attributes != other.attributes:
            return False
        if (function.opsets or {}).get(node.domain) != opsets.get(node.domain):
            return False
        if [there[v] for v in node.inputs] != other.inputs or len(node.outputs) != len(other.outputs):
            return False
        there.update(zip(node.outputs, other.outputs))
    return [there[v] for v in outputs] == function.outputs


def _opsets(graph: Graph) -> dict[str, int]:
    return graph.root.opsets or graph.model.opsets


def _function(
    graph: Graph, nodes: Sequence[Node], inputs: list[Value], outputs: list[Value], name: str, domain: str
) -> FunctionProto:
    proto = FunctionProto(name=name, domain=domain)
    proto.input.extend(v.name for v in inputs)
    proto.output.extend(v.name for v in outputs)
    for imported, version in _opsets(graph).items():
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
