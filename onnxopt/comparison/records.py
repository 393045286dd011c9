"""A model's graph as plain data: nodes, values and scopes, each called by its index."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from onnx import AttributeProto

from onnxopt.analysis.types import infer
from onnxopt.graph import Model
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.text import attribute_text, constant_text, shape_text, type_text
from onnxopt.graph.value import Value
from onnxopt.protos import attribute_value, is_external, type_name

ABSENT: Final = -1  # an optional input or output that is left out
_NAMESPACE: Final = "namespace"  # metadata of PyTorch's exporter: the modules around a node
_BODIES: Final = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


@dataclass(frozen=True)
class ValueRecord:
    """`type` as in `float[N,3]`, empty when unknown; `constant` is None unless it is one: then its few elements."""

    name: str
    type: str
    constant: str | None = None


@dataclass(frozen=True)
class NodeRecord:
    """`scope`, `inputs`, `outputs` are indices; `text` is how journals and messages call the node."""

    op: str
    name: str
    scope: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: tuple[tuple[str, str], ...]
    text: str
    namespace: str = ""


@dataclass(frozen=True)
class ScopeRecord:
    """The main graph, which is the first, a function, or a body: `owner` is its node, `label` its attribute."""

    path: str
    label: str
    owner: int | None
    is_function: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass
class GraphRecord:
    """Scope by scope, bodies after their owners; nodes in order. `contents`: the values that `values` describe."""

    nodes: list[NodeRecord] = field(default_factory=list)
    values: list[ValueRecord] = field(default_factory=list)
    scopes: list[ScopeRecord] = field(default_factory=list)
    contents: list[Value] = field(default_factory=list, repr=False)

    def output_name(self, node: NodeRecord) -> str:
        """The name of the first output there is."""
        return next((self.values[i].name for i in node.outputs if i != ABSENT), "")


def graph_record(model: Model) -> GraphRecord:
    """Read off a model, with types and shapes inferred; weights are not decoded."""
    infer(model)
    record = GraphRecord()
    indices: dict[Value, int] = {}

    def index(value: Value | None) -> int:
        if value is None:
            return ABSENT
        if value not in indices:
            indices[value] = len(record.values)
            record.values.append(_value(value))
            record.contents.append(value)
        return indices[value]

    scopes: deque[tuple[Graph, int | None]] = deque((g, None) for g in (model.graph, *model.functions.values()))
    while scopes:
        graph, owner = scopes.popleft()
        ends = [tuple(index(v) for v in values) for values in (graph.inputs, graph.outputs)]
        record.scopes.append(ScopeRecord(graph.path, graph.label, owner, graph.is_function, *ends))
        for node in graph:
            scopes.extend((body, len(record.nodes)) for body in node.bodies.values())
            record.nodes.append(_node(node, len(record.scopes) - 1, index))
    return record


def _node(node: Node, scope: int, index: Callable[[Value | None], int]) -> NodeRecord:
    return NodeRecord(
        node.op,
        node.name,
        scope,
        tuple(index(v) for v in node.inputs),
        tuple(index(v) for v in node.outputs),
        tuple((a.name, _attribute(a)) for a in node.proto.attribute if a.type not in _BODIES),
        repr(node),
        next((p.value for p in node.proto.metadata_props if p.key == _NAMESPACE), ""),
    )


def _attribute(a: AttributeProto) -> str:
    """As text; a tensor by type and shape, without decoding it."""
    if a.ref_attr_name:
        return f"@{a.ref_attr_name}"
    if a.type == AttributeProto.TENSOR:
        return shape_text(type_name(a.t.data_type).lower(), tuple(a.t.dims))
    return attribute_text(attribute_value(a))


def _value(value: Value) -> ValueRecord:
    if not value.constant:
        return ValueRecord(value.name, type_text(value))
    elsewhere = value.tensor is not None and is_external(value.tensor)
    return ValueRecord(value.name, type_text(value), "" if elsewhere else constant_text(value))
