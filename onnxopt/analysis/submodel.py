"""Extracts part of a model as a model: for `extract`, partitions and bug reports."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from onnx import FunctionProto, GraphProto, ModelProto, SparseTensorProto, TypeProto, ValueInfoProto

from onnxopt.analysis import types
from onnxopt.errors import ModelError
from onnxopt.graph.bindings import copies_before
from onnxopt.graph.dims import as_written, is_invented, rename_dims
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model, Names, inner_scopes, values_read
from onnxopt.graph.node import Node
from onnxopt.graph.structure import Excused, check_structure
from onnxopt.graph.value import Shape, Value
from onnxopt.graph.writer import node_protos, write_functions
from onnxopt.proto.messages import array_to_tensor, fields, qualified, tensor_type, tensor_value_info

Boundary = tuple[list[Value], list[Value], list[Value]]


def boundary(nodes: Sequence[Node]) -> Boundary:
    """Return (inputs, constants, outputs) of nodes of a scope, in order of first use.

    Inputs and constants are read but not produced by the nodes; outputs are read elsewhere. Reads in bodies count.
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
        for v in node.results:
            if v.is_output or any(u.around_in(node.graph) not in inside for u in v.users):
                outputs.append(v)
    return list(inputs), list(constants), outputs


def reads(node: Node) -> Iterable[Value]:
    """Return the values read by a node: its inputs, then outer values read or output by its bodies."""
    inside = {scope for body in node.bodies.values() for scope in inner_scopes(body)}
    return (v for v in values_read(node) if v.graph not in inside)


def is_stored(value: Value) -> bool:
    """Whether the model holds the data: a constant, an overridable or trainable initializer, a sparse initializer."""
    return value.constant or value.tensor is not None or _sparse(value) is not None


def _sparse(value: Value) -> SparseTensorProto | None:
    found = () if value.graph.is_function else value.graph.proto.sparse_initializer
    return next((s for s in found if s.values.name == value.name), None)


def submodel(
    graph: Graph,
    nodes: Sequence[Node],
    name: str = "",
    inputs: Sequence[Value] | None = None,
    outputs: Sequence[Value] | None = None,
) -> ModelProto:
    """Return a model of `nodes`, all of the scope `graph` and in its order, that computes `outputs` from `inputs`.

    By default inputs and outputs are the nodes' boundary. Stored values outside the inputs are copied, external tensors
    as references; so are called functions and declarations of the model and of these values. If a node needed for
    another result also produces an input, that output is renamed. Raises ModelError if the type of an input is unknown.
    """
    model = graph.model
    read, constants, results = boundary(nodes)
    inputs = [v for v in read if v.is_input or not is_stored(v)] if inputs is None else inputs
    outputs = results if outputs is None else outputs
    proto = _begun(graph, nodes)
    target, given = proto.graph, set(inputs)
    target.name = name or target.name
    _add_nodes(target, graph, nodes, given)
    made = {v.name for node in nodes for v in node.results if v not in given}
    stored = {v: None for v in (*read, *constants, *outputs) if is_stored(v) and v.name not in made}
    _add_annotations(target, graph, made | _names([*given, *stored]), stored)
    _declare(target, graph, (inputs, outputs, stored), made | _names(stored))
    check_structure(proto, model.name, Excused(outputs=_names(model.repeated)))
    return proto


def _names(values: Iterable[Value]) -> set[str]:
    return {v.name for v in values}


def _declare(
    target: GraphProto,
    graph: Graph,
    values: tuple[Collection[Value], Collection[Value], Collection[Value]],
    inner: set[str],
) -> None:
    """Declare `values` (inputs, outputs, stored ones) and the `inner` values of `target`, and store the stored ones."""
    (inputs, outputs, stored), border = values, _Border(graph)
    given = set(inputs)
    target.input.extend(border.info(v, fed=True) for v in inputs)
    target.output.extend(border.info(v) for v in outputs)
    for value in stored:
        if value not in given or (value.is_input and not value.constant):  # a default value stays
            _store(target, value)
    if graph.model.ir_version < 4:  # every initializer is also an input
        target.input.extend(border.info(v) for v in stored if v not in given)
    at_border = {i.name for i in (*target.input, *target.output)}
    target.value_info.extend(border.declared_of(inner - at_border))


def _begun(graph: Graph, nodes: Sequence[Node]) -> ModelProto:
    """Return the model without nodes: declarations of `graph`'s model, imports, functions that `nodes` call."""
    model = graph.model
    proto = ModelProto(**fields(model.proto, leave_out=("graph", "functions", "training_info")))
    proto.functions.extend(_functions(model, nodes))
    _import(proto, graph)
    if graph is model.graph:
        proto.graph.MergeFrom(GraphProto(**fields(graph.proto, only=("name", "doc_string", "metadata_props"))))
    return proto


def _functions(model: Model, nodes: Iterable[Node]) -> list[FunctionProto]:
    """Return the functions called by the nodes, directly or through functions."""
    if not model.functions:
        return []
    write_functions(model)
    by_call = {(qualified(f.name, f.domain), f.overload): f for f in model.proto.functions}
    scopes = {(qualified(g.proto.name, g.proto.domain), g.proto.overload): g for g in model.functions.values()}
    called: set[tuple[str, str]] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        call = node.op, str(node.proto.overload)
        if call in by_call and call not in called:
            called.add(call)
            waiting.extend(scopes[call])
        for body in node.bodies.values():
            waiting.extend(body)
    return [f for call, f in by_call.items() if call in called]


def _import(proto: ModelProto, graph: Graph) -> None:
    """Set opsets: nodes of a function keep the versions of the function."""
    own = graph.root.opsets
    if own is not None:
        others = [o for o in proto.opset_import if ("" if o.domain == "ai.onnx" else o.domain) not in own]
        del proto.opset_import[:]
        for domain, version in own.items():
            proto.opset_import.add(domain=domain, version=version)
        proto.opset_import.extend(others)


def _add_nodes(target: GraphProto, graph: Graph, nodes: Sequence[Node], given: set[Value]) -> None:
    protos, copies = node_protos(graph, nodes), copies_before(nodes, (s for s in inner_scopes(graph) if s is not graph))
    for node, proto in zip(nodes, protos):
        target.node.extend(copies.get(node, ()))
        target.node.append(proto)
        for i, v in enumerate(node.outputs):
            if v is not None and v in given:
                target.node[-1].output[i] = graph.model.names.fresh(v.name)


def _add_annotations(target: GraphProto, graph: Graph, names: set[str], stored: dict[Value, None]) -> None:
    """Copy the quantization annotations of `names`; their parameters are added to `stored`."""
    if graph.is_function:
        return
    for annotation in graph.proto.quantization_annotation:
        if annotation.tensor_name in names:
            target.quantization_annotation.append(annotation)
            parameters = (graph.initializers.get(p.value) for p in annotation.quant_parameter_tensor_names)
            stored.update({v: None for v in parameters if v is not None and v.name not in names})


def _store(target: GraphProto, value: Value) -> None:
    if value.tensor is not None:
        target.initializer.append(value.whole_tensor())
        target.initializer[-1].name = value.name
    elif (sparse := _sparse(value)) is not None:
        target.sparse_initializer.append(sparse)
    else:
        target.initializer.append(array_to_tensor(value.array, value.name))


class _Border:
    """Types of values that become inputs and outputs: declared for interface values, else inferred."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.interface: dict[str, ValueInfoProto] = {}
        self.declared: dict[str, ValueInfoProto] = {}
        scope: Graph | None = graph
        while scope is not None and not scope.is_function:
            proto: Any = scope.proto
            around = {i.name: i for i in (*proto.input, *proto.output) if i.HasField("type")}
            if scope.owner is None:
                self.interface = around
            inside = {i.name: i for i in proto.value_info if i.HasField("type")}
            self.declared = around | inside | self.declared
            scope = scope.parent
        self._symbols: dict[str, str] = {}  # new names for dims invented by inference or analyses
        self._taken = Names()
        for info in self.interface.values():
            self._taken.update(map(str, tensor_type(info.type)[1] or ()))

    def info(self, value: Value, fed: bool = False) -> ValueInfoProto:
        """Return the declaration of a value. Raises ModelError if the type of a value to be `fed` is unknown."""
        known = self.interface.get(value.name)
        if known is not None:
            return known
        if types.dtype(value):
            return tensor_value_info(value.name, types.dtype(value), self._named(types.shape(value)))
        # Declared only: for operators unknown to inference.
        if value.name in self.declared:
            return self.declared[value.name]
        kind = TypeProto()
        types.update(self.graph.model)
        kind.MergeFrom(self.graph.model.containers.get(value, kind))
        rename_dims(kind, self._symbol)
        if kind.WhichOneof("value") is None and fed:
            raise ModelError(
                f"{self.graph.model.name}: {value.graph.path}: the type of `{value.name}` is unknown",
                "declare it: add a value_info for it to the model",
            )
        return ValueInfoProto(name=value.name, type=kind)

    def declared_of(self, names: set[str]) -> list[ValueInfoProto]:
        return [info for name, info in self.declared.items() if name in names]

    def _named(self, shape: Shape | None) -> Shape | None:
        return None if shape is None else tuple(self._symbol(d) if isinstance(d, str) else d for d in shape)

    def _symbol(self, dim: str) -> str:
        """Return a valid name for a symbol, the same for equal ones; names with @ or braces are not valid."""
        if "@" not in dim and not dim.startswith("{"):
            return str(as_written(dim))
        if dim not in self._symbols:
            self._symbols[dim] = self._taken.fresh("dim" if is_invented(dim) else dim.strip("{}"))
        return self._symbols[dim]
