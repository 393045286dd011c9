"""A part of a model as a model of its own: what a partition runs alone, and what a bug report needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx import GraphProto, ModelProto, ValueInfoProto

from onnxopt.analysis import types
from onnxopt.errors import ModelError
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.graph.writer import write_bodies, write_names
from onnxopt.protos import array_to_tensor, tensor_value_info

Boundary = tuple[list[Value], list[Value], list[Value]]


def boundary(nodes: Sequence[Node]) -> Boundary:
    """(inputs, constants, outputs) of nodes of one scope: read but not made here; made here and read elsewhere.

    In order of first use. Reads by bodies inside the nodes count.
    """
    inside = set(nodes)
    inputs: dict[Value, None] = {}
    constants: dict[Value, None] = {}
    outputs: list[Value] = []
    for node in nodes:
        for value in reads(node):
            if value.producer in inside:
                continue
            (constants if value.constant else inputs)[value] = None
        for v in node.outputs:
            if v is not None and (v.is_output or any(_scope_user(u, node.graph) not in inside for u in v.users)):
                outputs.append(v)
    return list(inputs), list(constants), outputs


def reads(node: Node) -> Iterable[Value]:
    """What a node reads: its inputs, then the outer values that its bodies read."""
    yield from (v for v in node.inputs if v is not None)
    for body in node.bodies.values():
        inner = {body, *(b for n in body.walk() for b in n.bodies.values())}
        for n in body.walk():
            yield from (v for v in n.inputs if v is not None and v.graph not in inner)
        yield from (v for v in body.outputs if v.graph not in inner)


def _scope_user(user: Node, scope: Graph | None) -> Node | None:
    """The node of `scope` that is, or holds in its bodies, the reader `user`."""
    while user.graph is not scope:
        if user.graph is None or user.graph.owner is None:
            return None
        user = user.graph.owner
    return user


def submodel(nodes: Sequence[Node], name: str) -> ModelProto:
    """A model of `nodes` (of one scope of the main graph, in order): their constants become its initializers.

    Its inputs are what the nodes read from elsewhere, its outputs what others read from them. Raises ModelError
    where the type of an input is unknown.
    """
    graph = nodes[0].graph
    assert graph is not None
    model = graph.model
    inputs, constants, outputs = boundary(nodes)
    proto = ModelProto(ir_version=max(model.ir_version, 4), producer_name=model.proto.producer_name)
    root = graph.root
    opsets = root.opsets or model.opsets
    for domain, version in opsets.items():
        proto.opset_import.add(domain=domain, version=version)
    operators = _operators(nodes)
    if any(f"{f.domain}::{f.name}" in operators for f in model.proto.functions):
        proto.functions.extend(model.proto.functions)
        named = {o.domain for o in proto.opset_import}
        proto.opset_import.extend(o for o in model.proto.opset_import if o.domain not in named)
    write_bodies(graph)
    target = GraphProto(name=name)
    for node in nodes:
        write_names(node)
        target.node.append(node.proto)
    target.input.extend(_info(v) for v in inputs)
    target.output.extend(_info(v) for v in outputs)
    for value in constants:
        target.initializer.append(array_to_tensor(value.array, value.name))
    proto.graph.CopyFrom(target)
    return proto


def _operators(nodes: Sequence[Node]) -> set[str]:
    return {n.op for node in nodes for n in (node, *(i for b in node.bodies.values() for i in b.walk()))}


def _info(value: Value) -> ValueInfoProto:
    dtype = types.dtype(value)
    if not dtype:
        declared = _declared(value)
        if declared is not None:
            return declared
        if value.producer is None:
            raise ModelError(
                f"{value.graph.model.name}: {value.graph.path}: the type of `{value.name}` is unknown",
                "declare it: add a value_info for it to the model",
            )
        return ValueInfoProto(name=value.name)
    return tensor_value_info(value.name, dtype, types.shape(value))


def _declared(value: Value) -> ValueInfoProto | None:
    """What the file says of it: all there is for sequences, optionals and unknown operators."""
    proto = value.graph.proto
    for info in (*proto.input, *proto.value_info, *proto.output) if not value.graph.is_function else ():
        if info.name == value.name and info.HasField("type"):
            return info
    return None
