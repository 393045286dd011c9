"""Index a ModelProto: resolve names to values scope by scope, and count users."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from onnxopt.errors import ModelError
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.protos import body_graphs

_HINT = "the file does not pass onnx.checker; export it again, or repair it"


def read_model(proto: ModelProto, path: Path | None = None, *, freeze_initializers: bool = False) -> Model:
    """The in-memory graph over `proto`, which it owns from now on.

    `freeze_initializers` treats initializers that are also graph inputs as constants: the caller promises that
    nobody overrides them. Raises ModelError when a name is read that nothing defines, or is defined twice.
    """
    model = Model(proto, path)
    model.freeze_initializers = freeze_initializers
    trainable = _trainable(proto)
    for function in proto.functions:
        label = f"function {function.domain}::{function.name}" + (f":{function.overload}" if function.overload else "")
        graph = Graph(model, function, None, label)
        graph.opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in function.opset_import}
        model.functions[label] = graph
        _Reader(model).read_function(graph, function)
    model.graph = Graph(model, proto.graph, None, "main")
    _Reader(model, trainable).read_graph(model.graph, proto.graph)
    for name in _annotated(proto):
        value = model.graph.initializers.get(name)
        if value is not None:
            value.output_count += 1  # pinned: something we do not model refers to it by name
    model.version = 0
    return model


def _trainable(proto: ModelProto) -> set[str]:
    """Initializers that training may change or read: neither constant nor removable."""
    names: set[str] = set()
    for info in proto.training_info:
        for binding in (*info.initialization_binding, *info.update_binding):
            names.update((binding.key, binding.value))
        for graph in (info.algorithm, info.initialization):
            for node in graph.node:
                names.update(node.input)
    return names


def _annotated(proto: ModelProto) -> Iterable[str]:
    for annotation in proto.graph.quantization_annotation:
        for entry in annotation.quant_parameter_tensor_names:
            yield entry.value
    yield from _trainable(proto)


class _Reader:
    """Scopes as a stack of name tables; a name resolves to the innermost definition."""

    def __init__(self, model: Model, trainable: set[str] | None = None) -> None:
        self.model = model
        self.trainable = trainable or set()
        self.scopes: list[dict[str, Value]] = []

    def error(self, graph: Graph, message: str) -> ModelError:
        return ModelError(f"{self.model.name}: {graph.path}: {message}", _HINT)

    def define(self, graph: Graph, name: str) -> Value:
        table = self.scopes[-1]
        if name in table:
            raise self.error(graph, f"`{name}` is defined twice")
        value = table[name] = Value(name, graph)
        self.model.names.add(name)
        return value

    def resolve(self, graph: Graph, name: str, reader: str) -> Value:
        for table in reversed(self.scopes):
            value = table.get(name)
            if value is not None:
                return value
        raise self.error(graph, f"{reader} reads `{name}`, which nothing defines")

    def read_function(self, graph: Graph, proto: FunctionProto) -> None:
        self.scopes.append({})
        for name in proto.input:
            value = self.define(graph, name)
            value.is_input = True
            graph.inputs.append(value)
        self.read_nodes(graph, proto.node)
        graph.outputs = [self.resolve(graph, name, "an output") for name in proto.output]
        self.finish(graph)

    def read_graph(self, graph: Graph, proto: GraphProto) -> None:
        self.scopes.append({})
        for info in proto.input:
            value = self.define(graph, info.name)
            value.is_input = True
            graph.inputs.append(value)
        frozen = self.model.freeze_initializers or self.model.ir_version < 4
        table = self.scopes[-1]
        for tensor in proto.initializer:
            name = tensor.name
            value = table.get(name) if name in table else self.define(graph, name)
            assert value is not None
            if name in graph.initializers:
                raise self.error(graph, f"initializer `{name}` is there twice")
            value.tensor = tensor
            value.constant = (frozen or not value.is_input) and name not in self.trainable
            graph.initializers[name] = value
        for sparse in proto.sparse_initializer:
            if sparse.values.name not in table:
                self.define(graph, sparse.values.name)
        self.read_nodes(graph, proto.node)
        graph.outputs = [self.resolve(graph, info.name, "an output") for info in proto.output]
        self.finish(graph)

    def finish(self, graph: Graph) -> None:
        for value in graph.outputs:
            value.output_count += 1
        graph.nodes_changed = graph.initializers_changed = graph.outputs_changed = False
        self.scopes.pop()

    def read_nodes(self, graph: Graph, protos: Iterable[NodeProto]) -> None:
        nodes = []
        for proto in protos:
            outputs = [self.define(graph, name) if name else None for name in proto.output]
            node = Node(proto, [], list(outputs))
            nodes.append((node, list(proto.input)))
            for i, value in enumerate(outputs):
                if value is not None:
                    value.producer, value.index = node, i
        defined: set[Node] = set()
        sorted_ = True
        for node, names in nodes:
            node.inputs = [self.resolve(graph, n, repr(node)) if n else None for n in names]
            for body_name, body_proto in body_graphs(node.proto):
                body = node.bodies[body_name] = Graph(self.model, body_proto, node, body_name)
                node.graph = graph  # for the path in error messages
                self.read_graph(body, body_proto)
                node.graph = None
            graph.insert(node)
            for v in node.inputs:
                if v is not None and v.graph is graph and v.producer is not None and v.producer not in defined:
                    sorted_ = False
            defined.add(node)
            if sorted_ and node.bodies and not all(p in defined for p in captured(node)):
                sorted_ = False
        if not sorted_:
            sort_nodes(graph)
            self.model.version += 1
            graph.nodes_changed = True


def captured(node: Node) -> set[Node]:
    """Producers, in the node's own scope, of the outer values that its bodies read."""
    found: set[Node] = set()
    for body in node.bodies.values():
        for inner in body.walk():
            for v in inner.inputs:
                if v is not None and v.producer is not None and v.graph is node.graph:
                    found.add(v.producer)
        for v in body.outputs:
            if v.producer is not None and v.graph is node.graph:
                found.add(v.producer)
    return found


def sort_nodes(graph: Graph) -> None:
    """Stable topological sort (Kahn's algorithm with a heap on the old position). Raises ModelError on a cycle."""
    import heapq

    nodes = list(graph)
    position = {node: i for i, node in enumerate(nodes)}
    waiting: dict[Node, int] = {}
    readers: dict[Node, list[Node]] = {}
    for node in nodes:
        needs = {v.producer for v in node.inputs if v is not None and v.producer in position}
        needs |= captured(node)
        waiting[node] = len(needs)
        for producer in needs:
            if producer is not None:
                readers.setdefault(producer, []).append(node)
    ready = [position[n] for n in nodes if waiting[n] == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        order.append(node)
        for reader in readers.get(node, ()):
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, position[reader])
    if len(order) < len(nodes):
        stuck = next(n for n in nodes if waiting[n] > 0)
        raise ModelError(f"{graph.model.name}: {graph.path}: {stuck!r} is part of a cycle", _HINT)
    for before, node, after in zip([None, *order], order, [*order[1:], None]):
        node.prev, node.next = before, after
    graph.first, graph.last = (order[0], order[-1]) if order else (None, None)
    graph.nodes_changed = True
