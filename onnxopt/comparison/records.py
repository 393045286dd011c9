"""Records of a model's graph (nodes, values and scopes by index), and of a run.

Details are read from the model on demand: of a large graph, few are shown.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from onnx import AttributeProto

from onnxopt.graph import Model
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.text import attribute_text, constant_text, shape_text
from onnxopt.graph.value import Value
from onnxopt.pipeline.journal import Entry
from onnxopt.proto.messages import BODY_TYPES, attribute_value, is_external, type_name

ABSENT: Final = -1  # an omitted optional input or output
LARGE: Final = 16_000  # nodes of a graph, up to which each is shown
_NAMESPACE: Final = "namespace"  # metadata of PyTorch's exporter: modules around a node


class NodeRecord:
    """A node. `scope`, `inputs`, `outputs` are indices; `text` identifies the node in journals and messages."""

    __slots__ = ("_node", "inputs", "op", "outputs", "scope")

    def __init__(self, node: Node, scope: int, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
        self._node = node
        self.op, self.scope, self.inputs, self.outputs = node.op, scope, inputs, outputs

    @property
    def name(self) -> str:
        return self._node.name

    @property
    def text(self) -> str:
        return repr(self._node)

    @property
    def namespace(self) -> str:
        """The modules around the node, by PyTorch's exporter; "" if unknown."""
        return next((p.value for p in self._node.proto.metadata_props if p.key == _NAMESPACE), "")

    @property
    def attributes(self) -> tuple[tuple[str, str], ...]:
        """The (name, text) of attributes, without bodies."""
        return tuple((a.name, _attribute(a)) for a in self._node.proto.attribute if a.type not in BODY_TYPES)


@dataclass(frozen=True)
class ScopeRecord:
    """A graph: the main graph (first), a function, or a body."""

    path: str
    label: str  # attribute of a body
    owner: int | None  # node of a body
    is_function: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass
class GraphRecord:
    """Scopes, with bodies after their owners; nodes in order."""

    nodes: list[NodeRecord] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    scopes: list[ScopeRecord] = field(default_factory=list)

    def output_name(self, node: NodeRecord) -> str:
        """Return the name of the first output present, or ""."""
        return next((self.values[i].name for i in node.outputs if i != ABSENT), "")

    def signature(self) -> tuple[int, bytes]:
        """Return (number of nodes, digest), equal for equal graphs regardless of weights."""
        found = hashlib.sha256()
        for n in self.nodes:
            made, read = ([v if v == ABSENT else self.values[v].name for v in ends] for ends in (n.outputs, n.inputs))
            found.update(repr((self.scopes[n.scope].path, n.op, read, made, n.attributes)).encode("utf-8", "replace"))
        return len(self.nodes), found.digest()


def graph_record(model: Model) -> GraphRecord:
    """Return the record of a model, with known types and shapes."""
    record = GraphRecord()
    indices: dict[Value | None, int] = {None: ABSENT}

    def index(values: list[Value | None]) -> tuple[int, ...]:
        for value in values:
            if value not in indices:
                assert value is not None
                indices[value] = len(record.values)
                record.values.append(value)
        return tuple([indices[v] for v in values])

    scopes: deque[tuple[Graph, int | None]] = deque((g, None) for g in (model.graph, *model.functions.values()))
    while scopes:
        graph, owner = scopes.popleft()
        ends = index([*graph.inputs]), index([*graph.outputs])
        number = len(record.scopes)
        record.scopes.append(ScopeRecord(graph.path, graph.label, owner, graph.is_function, *ends))
        for node in graph:
            scopes.extend((body, len(record.nodes)) for body in node.bodies.values())
            inputs = index(node.inputs)
            record.nodes.append(NodeRecord(node, number, inputs, index(node.outputs)))
    return record


def elements(value: Value) -> str | None:
    """Return the elements of a small constant as text; "" for many or external elements; None unless constant."""
    if not value.constant:
        return None
    return "" if is_elsewhere(value) else constant_text(value)


def is_elsewhere(value: Value) -> bool:
    """Return whether a constant's elements are in a data file."""
    return value.tensor is not None and bool(is_external(value.tensor))


def same_constant(x: Value, y: Value) -> bool:
    """Return whether two constants have equal type and elements. External data is assumed to be equal."""
    if x.constant_type() != y.constant_type():
        return False
    if is_elsewhere(x) or is_elsewhere(y):
        return True
    a, b = x.array, y.array
    return bool(a.tolist() == b.tolist()) if a.dtype.hasobject else a.tobytes() == b.tobytes()


def _attribute(a: AttributeProto) -> str:
    """Return an attribute as text; for a tensor, type and shape without decoding."""
    if a.ref_attr_name:
        return f"@{a.ref_attr_name}"
    if a.type == AttributeProto.TENSOR:
        return shape_text(type_name(a.t.data_type).lower(), tuple(a.t.dims))
    return attribute_text(attribute_value(a))


@dataclass
class History:
    """History of a run: its report, passes and rewrites."""

    report: dict[str, Any]  # `api.Report.to_dict()`
    timeline: list[dict[str, Any]] = field(default_factory=list)  # runs of passes, [] if unknown
    journal: list[Entry] = field(default_factory=list)  # rewrites, [] if unknown
    repeated: bool = False  # found by repeating the run
    result: tuple[int, bytes] | None = None  # signature of the graph made by the repetition
