"""onnx's type and shape inference on a skeleton: the model without weights, known parts and unchecked declarations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto
from onnx.defs import OpSchema

from onnxopt.analysis.misread import (
    believed_of,
    carried_containers,
    contradicted,
    depends,
    forget,
    forget_claims,
    forget_shape,
    hidden,
    hide,
)
from onnxopt.graph.dims import as_symbol, as_written, is_invented, rename_dims
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model, function_label
from onnxopt.graph.node import Node
from onnxopt.graph.schema import find_schema
from onnxopt.graph.value import Shape, Value
from onnxopt.graph.writer import node_protos, write_functions
from onnxopt.proto.inference import infer_call, infer_shapes, inferable, open_sizes
from onnxopt.proto.messages import (
    array_to_tensor,
    body_graphs,
    qualified,
    tensor_bytes,
    tensor_value_info,
)

_OTHER: Final = "types of values that are no tensors"
Known: TypeAlias = "tuple[TypeProto, TensorProto | None]"  # (type, data) of a value
Call: TypeAlias = "tuple[OpSchema, NodeProto, dict[str, TypeProto], dict[str, TensorProto], int]"
# Larger constants cannot be shapes, axes or indices read by inference.
DATA_UP_TO: Final = 4096
_DECLARED: Final = {"tensor(float)": TensorProto.FLOAT, "tensor(int64)": TensorProto.INT64}


def infer_nodes(model: Model, nodes: Collection[Node]) -> ModelProto | None:
    """Return the inferred skeleton of these nodes.

    Contents of shape tensors are left to `analysis.shapes`: onnx propagates them wrongly through Casts, takes a matrix
    for a vector, and crashes on steps of extreme integers. None if inference fails.
    """
    proto = skeleton(model, nodes)
    wrong: set[str] = set()
    try:
        given = inferable(proto)
        del proto  # freed because inference makes two copies, at the peak of memory
        inferred = infer_shapes(given)
        while depends(model) and (more := {n.output[0] for n in contradicted(inferred.graph)}):
            wrong |= more
            proto = skeleton(model, nodes)
            hide(proto.graph, wrong)
            _tell(proto.graph, _typed(nodes, wrong, inferred.graph))
            inferred = infer_shapes(inferable(proto))
    except Exception:  # inference is optional: a model it cannot read has no facts
        return None
    forget(model, inferred.graph)
    return inferred


def infer_operator(
    schema: OpSchema, node: NodeProto, types: dict[str, TypeProto], data: dict[str, TensorProto], opset: int
) -> dict[str, TypeProto]:
    """Return the inferred output types of an operator without bodies, as far as known."""
    try:
        found = infer_call(schema, node, types, data, opset)
    except Exception:  # as above
        return {}
    return believed_of(node, opset, types, found)


def graph_of(node: Node) -> Graph | None:
    """Return the graph of a node, which may be new."""
    return next((v.graph for v in node.results), None)


def call_of(node: Node, known: Callable[[Value], Known | None]) -> Call | None:
    """Return the arguments of operator inference, from types and small data; results are named o0, o1, …

    None if inference is impossible.
    """
    graph = graph_of(node)
    schema = find_schema(node.op, graph.opset(node.domain)) if graph is not None else None
    if graph is None or schema is None or node.bodies or node.has_references:
        return None
    facts = {f"i{i}": known(v) for i, v in enumerate(node.inputs) if v is not None}
    kinds = {name: found[0] for name, found in facts.items() if found is not None}
    data = {name: found[1] for name, found in facts.items() if found is not None and found[1] is not None}
    if len(kinds) < len(facts):
        return None
    proto = NodeProto(op_type=node.proto.op_type, domain=node.proto.domain, attribute=node.proto.attribute)
    proto.input.extend("" if v is None else f"i{i}" for i, v in enumerate(node.inputs))
    proto.output.extend(f"o{i}" for i in range(len(node.outputs)))
    return schema, proto, kinds, data, graph.opset(node.domain)


def skeleton(model: Model, nodes: Collection[Node]) -> ModelProto:
    """Return the skeleton of these nodes of the main graph, in order; results of other nodes become typed inputs."""
    with hidden(model) as misread:
        proto = _skeleton(model, nodes)
    inside = set(nodes) if misread else ()
    _tell(proto.graph, [_fact(v) for n in misread if n in inside for v in n.results if v.dtype])
    return proto


def _tell(target: GraphProto, facts: Iterable[ValueInfoProto]) -> None:
    """Declare facts for values without inferred types, as a basis for further inference."""
    outputs = {o.name: o for o in target.output}
    for fact in facts:
        if fact.name in outputs:
            outputs[fact.name].CopyFrom(fact)
        else:
            target.value_info.append(fact)


def _typed(nodes: Iterable[Node], wrong: Collection[str], inferred: GraphProto) -> Iterator[ValueInfoProto]:
    """Yield types of misread nodes' results: inferred element types, shapes known from other sources."""
    found = {i.name: i.type.tensor_type.elem_type for i in (*inferred.value_info, *inferred.output)}
    for node in nodes:
        if node.outputs[0] is not None and node.outputs[0].name in wrong:
            for v in node.results:
                if found.get(v.name, 0):
                    yield tensor_value_info(v.name, found[v.name], v.shape)


def _skeleton(model: Model, nodes: Collection[Node]) -> ModelProto:
    proto, graph = model.proto, model.graph
    skeleton = ModelProto(ir_version=max(proto.ir_version, 4))
    skeleton.opset_import.extend(proto.opset_import)
    called = _copy_functions(skeleton, model)
    target = skeleton.graph
    target.name = proto.graph.name
    live = {v.name for v in graph.inputs}
    target.input.extend(_said(i for i in proto.graph.input if i.name in live))
    constants, outputs = list(graph.initializers.values()), graph.outputs
    if len(nodes) < graph.size:
        constants, outputs = _border(target, graph, nodes)
    for value in constants:
        if not value.is_input:
            _add_constant(target, value)
    _copy_nodes(target, model, nodes, called)
    opaque = _add_claims(target, model, nodes, called)
    target.output.extend(ValueInfoProto(name=v.name) for v in outputs if v.name not in opaque)
    open_sizes(target)
    return skeleton


def _border(target: GraphProto, graph: Graph, nodes: Collection[Node]) -> tuple[list[Value], list[Value]]:
    """Add the results of other nodes as typed inputs. Returns (constants read, graph outputs) of these nodes."""
    inside = set(nodes)
    read = dict.fromkeys(v for n in nodes for v in n.operands if v.producer not in inside)
    made = [v for v in read if v.producer is not None]
    target.input.extend(_fact(v) for v in made if not v.constant)
    constants = [*(v for v in graph.initializers.values() if v in read), *(v for v in made if v.constant)]
    return constants, [v for v in graph.outputs if v.producer in inside]


def _copy_functions(skeleton: ModelProto, model: Model) -> set[str]:
    """Copy the functions without declared shapes. Returns their qualified names."""
    write_functions(model)
    skeleton.functions.extend(model.proto.functions)
    called = {qualified(f.name, f.domain) for f in skeleton.functions}
    for function in skeleton.functions:
        around = model.functions[function_label(function.domain, function.name, function.overload)]
        for owner in function.node:
            forget_claims(owner, around, called)
            for loop, _ in carried_containers(owner):
                loop.op_type = ""
    return called


def _add_constant(target: GraphProto, value: Value) -> None:
    """Add a constant with its data if it may hold sizes or axes, else type and dims only."""
    data_type, dims = value.constant_type()
    if value.constant and tensor_bytes(data_type, dims) <= DATA_UP_TO:
        stored = value.producer is None
        tensor = value.whole_tensor() if stored else array_to_tensor(value.array, value.name)
        copy = target.initializer.add()
        copy.CopyFrom(tensor)
        copy.name = value.name
    else:
        target.initializer.add(name=value.name, data_type=data_type, dims=dims)


def _copy_nodes(target: GraphProto, model: Model, nodes: Collection[Node], called: set[str]) -> None:
    target.node.extend(node_protos(model.graph, nodes))
    if any(len(node.proto.metadata_props) for node in nodes):
        for copy in target.node[:]:  # torch's exporter stores source locations there, ten times the node's size
            copy.ClearField("metadata_props")
    if model.graph.owners:
        _forget_bodies(target, model, nodes, called)


def _forget_bodies(target: GraphProto, model: Model, nodes: Collection[Node], called: set[str]) -> None:
    """Remove declared shapes of bodies; sequences carried by Loops become inputs of new names."""
    unused = (name for name in map("@{}".format, itertools.count()) if name not in model.names)
    for node, copy in zip(nodes, target.node):
        if node.bodies:
            forget_claims(copy, model.graph, called)
            for (loop, i), name in zip(carried_containers(copy), unused):
                target.input.add(name=name, type=body_graphs(loop)[0][1].input[i].type)
                loop.input[i] = name


def _add_claims(target: GraphProto, model: Model, nodes: Collection[Node], called: set[str]) -> dict[str, Value]:
    """Add declared types for results without inference. All other declarations may be wrong, and are ignored.

    Returns the results by name.
    """
    proto, graph = model.proto.graph, model.graph
    for node in nodes:
        if node.op.startswith("ai.onnx.ml::") and (schema := find_schema(node.op, graph.opset_of(node.op))) is not None:
            target.value_info.extend(_declared(node, schema))
    unknown = {op for op in graph.by_op if not graph.knows(op)}
    opaque = {v.name: v for n in nodes if n.op in unknown for v in n.results}
    if opaque:
        _declare_opaque(target, proto, opaque)
        inferred = {name for name, v in opaque.items() if v.producer is not None and v.producer.op in called}
        for info in (*target.value_info, *target.output):
            if info.name in inferred:  # through the function
                forget_shape(info.type)
    return opaque


def _declare_opaque(target: GraphProto, proto: GraphProto, opaque: Mapping[str, Value]) -> None:
    """Declare results without inference as in the model; where undeclared, by known facts."""
    claims = _said(i for i in proto.value_info if i.name in opaque)
    target.value_info.extend(claims)
    said = {i.name for i in claims}
    target.value_info.extend(_fact(v) for n, v in opaque.items() if n not in said and v.dtype and not v.is_output)
    target.output.extend(_said(i for i in proto.output if i.name in opaque))


def _said(infos: Iterable[ValueInfoProto]) -> list[ValueInfoProto]:
    """Return declared types, with dim names turned into symbols."""
    said = []
    for info in infos:
        said.append(ValueInfoProto())
        said[-1].CopyFrom(info)
        rename_dims(said[-1].type, as_symbol)
    return said


def _fact(value: Value) -> ValueInfoProto:
    """Return the known type of a value."""
    return tensor_value_info(value.name, value.dtype, value.shape)


def _declared(node: Node, schema: OpSchema) -> Iterator[ValueInfoProto]:
    """Yield result types fixed by the schema: most operators of ai.onnx.ml have no inference."""
    for v, output in zip(node.outputs, schema.outputs):
        kind = _DECLARED.get(output.type_str)
        if v is not None and kind and not v.is_output:
            info = ValueInfoProto(name=v.name)
            info.type.tensor_type.elem_type = kind
            yield info


def unsettled(graph: Graph, since: int = -1) -> list[Node]:
    """Return the nodes with unknown result types, in order: of those changed `since`, if given."""
    if graph.owners:
        return list(graph)
    if since < 0:
        return _open(graph, set(graph))
    vague = Vagueness()
    marked = {n for n in graph.model.marked_since(since) if n.graph is graph and vague.is_in(n)}
    return [n for n in graph if n in marked] if marked else []


def downstream(graph: Graph, better: Iterable[Value], done: set[Node]) -> list[Node]:
    """Return downstream nodes of these values with unknown result types, except readers already `done`."""
    reached: set[Node] = set()
    vague = Vagueness()
    stack = [n for v in better for n in v.users if n not in done and n.graph is graph]
    while stack:
        node = stack.pop()
        if node not in reached and vague.is_in(node):
            reached.add(node)
            stack += [n for v in node.results for n in v.users]
    return _open(graph, reached)


def _open(graph: Graph, nodes: set[Node]) -> list[Node]:
    """Return the nodes with unknown result types, in order; the whole graph if they are more than half."""
    vague = Vagueness()
    found = [n for n in graph if n in nodes and vague.is_in(n)] if nodes else []
    return list(graph) if 2 * len(found) > graph.size else found


class Vagueness:
    """Whether a shape has unknown or invented dims, cached: a network has few different shapes."""

    def __init__(self) -> None:
        self.known: dict[Shape | None, bool] = {None: True}

    def is_in(self, node: Node) -> bool:
        for v in node.results:
            if not v.dtype or self.has(v.shape):
                return True
        return False

    def has(self, dims: Shape | None) -> bool:
        found = self.known.get(dims)
        if found is None:
            found = self.known[dims] = any(d is None or is_invented(d) for d in dims or ())
        return found


def other_types(model: Model) -> dict[str, TypeProto]:
    """Return the types of values other than tensors in the main graph, by name; facts hold tensor types only."""
    known = model.analyses.get(_OTHER)
    if not isinstance(known, dict):
        inferred = infer_nodes(model, list(model.graph))
        infos = (*inferred.graph.value_info, *inferred.graph.output) if inferred is not None else ()
        known = {i.name: i.type for i in infos if i.type.WhichOneof("value") not in (None, "tensor_type")}
        for kind in known.values():
            rename_dims(kind, lambda name: str(as_written(name)))
        model.analyses[_OTHER] = known
    return known
