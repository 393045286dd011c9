"""Outlines partitions: as calls of model-local functions, or as models that run in sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from graphlib import CycleError

from onnx import FunctionProto, ModelProto

from onnxopt.analysis.submodel import boundary, is_stored, reads, submodel
from onnxopt.errors import UsageError
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model, function_label
from onnxopt.graph.node import Node
from onnxopt.graph.reader import stable_order
from onnxopt.graph.value import Value
from onnxopt.graph.writer import node_protos
from onnxopt.io.external import data_of, inline_data
from onnxopt.pipeline.base import MADE_BY
from onnxopt.pipeline.context import PassContext
from onnxopt.pipeline.convex import stages
from onnxopt.pipeline.partition import Partition, dependencies
from onnxopt.plaintext import an
from onnxopt.proto.external import ExternalData
from onnxopt.proto.messages import make_node

# -- a call of a function -----------------------------------------------------------------------------------------


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
    """Return (nodes to move behind the call: those in the partition's span that depend on it, last node)."""
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


# -- models that run in sequence ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outline:
    """A part of a model. `inputs`: names to feed, `outputs`: all results; `partition`: id of its partition, or None."""

    name: str
    partition: int | None
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def supported(self) -> bool:
        return self.partition is not None


@dataclass(frozen=True)
class Part(Outline):
    """A model of a split."""

    proto: ModelProto = field(repr=False)


def split(model: Model, partitions: Sequence[Partition]) -> list[Part]:
    """Return the main graph as an ordered list of parts, each a model.

    Run in order, each fed by name from the model's inputs and earlier outputs, the parts compute the model's results.
    Nodes outside the partitions form as few parts as possible; dead nodes are left out. Raises UsageError for
    partitions that overlap, form a cycle or are not in the main graph, and ModelError if the type of a value between
    parts is unknown.
    """
    data = data_of(model)
    return [_part(model.graph, found, data) for found in outline(model, partitions)]


def outline(model: Model, partitions: Sequence[Partition]) -> list[Outline]:
    """Return the parts of `split` without their models. Raises the same UsageError."""
    graph = model.graph
    found: list[tuple[int | None, tuple[Node, ...], tuple[str, ...], tuple[str, ...]]] = []
    for key, nodes in _groups(graph, partitions):
        read, _, results = boundary(nodes)
        if results:
            inputs = tuple(v.name for v in read if not is_stored(v))
            found.append((key, tuple(nodes), inputs, tuple(v.name for v in results)))
    width = max(3, len(str(len(found))))
    if constants := [v for v in dict.fromkeys(graph.outputs) if is_stored(v)]:
        found.append((None, (), (), tuple(v.name for v in constants)))
    return [Outline(f"part_{i:0{width}d}", *about) for i, about in enumerate(found)]


def _groups(graph: Graph, partitions: Sequence[Partition]) -> list[tuple[int | None, list[Node]]]:
    """Return partitions and other nodes in execution order, grouped by `stages`: the number of changes between both."""
    nodes, predecessors = dependencies(graph)
    unit = _units(nodes, partitions)
    units = list(dict.fromkeys(unit))
    place = {u: i for i, u in enumerate(units)}
    needs: list[set[int]] = [set() for _ in units]
    for u, read in zip(unit, predecessors, strict=True):
        needs[place[u]].update(place[unit[p]] for p in read if unit[p] != u)
    try:
        order = stable_order(needs)
    except CycleError as e:
        first = min(partitions[units[i]].id for i in e.args[1] if units[i] >= 0)
        raise UsageError(f"partitions depend on each other in a circle, among them {first}") from None
    number = {units[i]: k for k, i in enumerate(order)}
    is_rest = [units[i] < 0 for i in order]
    stage = stages([[number[units[b]] for b in needs[i]] for i in order], is_rest)
    groups: dict[tuple[int, int], list[Node]] = {}
    for node, u in zip(nodes, unit, strict=True):
        i = number[u]
        groups.setdefault((stage[i], -1 if is_rest[i] else i), []).append(node)
    ids = {k: partitions[units[i]].id for k, i in enumerate(order) if units[i] >= 0}
    return [(ids.get(key[1]), groups[key]) for key in sorted(groups)]


def _units(nodes: list[Node], partitions: Sequence[Partition]) -> list[int]:
    """Return the unit of each node: its partition by index, or a negative number for a node alone."""
    owner: dict[Node, int] = {}
    for i, partition in enumerate(partitions):
        for node in partition.nodes:
            if node in owner:
                raise UsageError(f"{node!r} is in two partitions")
            owner[node] = i
    unit = [owner.pop(node, -1 - i) for i, node in enumerate(nodes)]
    if owner:
        raise UsageError(f"{next(iter(owner))!r} is a constant, or not in the main graph", "propose partitions again")
    return unit


def _part(graph: Graph, found: Outline, data: ExternalData) -> Part:
    """Return a part; a part without nodes outputs the constants among the model outputs."""
    outputs = None if found.nodes else [v for v in dict.fromkeys(graph.outputs) if is_stored(v)]
    proto = submodel(graph, found.nodes, found.name, outputs=outputs)
    inline_data(proto, data)
    return Part(**vars(found), proto=proto)
