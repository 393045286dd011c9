"""Writes the index back into its ModelProto; unchanged scopes are not touched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from onnxopt.graph.bindings import drop_vanished, values_named, write_hiding
from onnxopt.graph.dims import as_written
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model, inner_scopes
from onnxopt.graph.node import Node
from onnxopt.graph.schema import write_opsets
from onnxopt.graph.structure import Excused, check_interface, check_structure
from onnxopt.graph.value import Value
from onnxopt.proto.messages import (
    Array,
    describe_tensor,
    fill_tensor,
    is_raw,
    tensor_bytes,
    tensor_type_proto,
    tensor_value_info,
)
from onnxopt.proto.wire import Stored

# bytes; smaller tensors (scales, target shapes) are hashed by content, larger ones by name and type
_SMALL_BYTES: Final = 4096


def write_model(model: Model) -> ModelProto:
    """Return the model's proto, brought up to date. The model stays usable."""
    return write_deferred(model, None)[0]


def write_deferred(model: Model, at_least: int | None) -> tuple[ModelProto, dict[int, Array | Stored]]:
    """Write the model, except the data of large new initializers and of data left in the file.

    New initializers of the main graph of `at_least` bytes are left out; None writes all data. Returns the proto and the
    omitted data by index of the initializer. Raises InvariantError for an undefined name or a changed interface; every
    writer of models calls this function.
    """
    deferred: dict[int, Array | Stored] = {}
    for scope in model.scopes():
        _write_scope(scope, deferred, at_least if scope is model.graph else None)
    write_hiding(model, model.scopes())
    model.graph.initializers_changed = bool(deferred)  # the next write must fill them
    if model.file is not None:
        _leave_stored(model, deferred, fill=at_least is None)
    write_types(model.foreign)
    stored = check_structure(model.proto, model.name, excused(model))
    check_interface(model.proto, model.interface, model.name, stored)
    return model.proto, deferred


def excused(model: Model) -> Excused:
    """Return the structural violations already in the file."""
    return Excused({id(node.proto) for node in model.lacking}, {model.hiding.get(v, v.name) for v in model.repeated})


def _leave_stored(model: Model, deferred: dict[int, Array | Stored], fill: bool) -> None:
    values = model.graph.initializers
    for i, tensor in enumerate(model.proto.graph.initializer[:]):
        value = values[tensor.name]
        if value.stored is not None and not fill:
            deferred[i] = value.stored
        elif value.stored is not None:
            tensor.raw_data, value.stored = bytes(model.bytes_of(value.stored)), None


def write_types(made: Iterable[Node]) -> None:
    """Write value_info for outputs of non-standard operators made by passes: no reader can infer the types."""
    said: dict[Graph, set[str]] = {}
    for node in made:
        graph = node.graph
        if graph is None or graph.is_function or graph.is_pure(node) or graph.model.has_function(node.op):
            continue
        if graph not in said:
            said[graph] = {i.name for i in graph.proto.value_info}
        for v in node.results:
            if not v.dtype or v.name in said[graph]:
                continue
            dims = v.shape and tuple(None if isinstance(d, str) and "@" in d else as_written(d) for d in v.shape)
            if v not in graph.outputs:
                graph.proto.value_info.append(tensor_value_info(v.name, v.dtype, dims))
            elif graph.owner is not None:
                _declare(graph.proto.output[graph.outputs.index(v)], v.dtype, dims)


def _declare(output: ValueInfoProto, data_type: int, dims: Iterable[int | str | None] | None) -> None:
    """Set the type of a body's output without a type in the file: initializers and non-standard results need one."""
    if output.type.WhichOneof("value") is None:
        output.type.CopyFrom(tensor_type_proto(data_type, dims))


def node_protos(graph: Graph, nodes: Iterable[Node]) -> list[NodeProto]:
    """Return the protos of `nodes`, all of the scope `graph`, with their bodies brought up to date."""
    inside = [scope for scope in inner_scopes(graph) if scope is not graph]
    for scope in inside:
        _write_scope(scope, {}, None)
    write_hiding(graph.model, inside)
    found = []
    for node in nodes:
        write_names(node)
        found.append(node.proto)
    return found


def write_functions(model: Model) -> None:
    """Bring the protos of all functions up to date, since a call may have fewer inputs and outputs than before."""
    for function in model.functions.values():
        for scope in inner_scopes(function):
            _write_scope(scope, {}, None)
        write_hiding(model, inner_scopes(function))


def write_names(node: Node) -> None:
    """Bring the names in a node's proto up to date."""
    if node.stale:
        # Inputs that the operator requires at least are written, if only as empty names: a Loop has two optional ones.
        defined = node.graph.signature(node.op) if node.graph is not None else None
        least = defined.inputs[0] if defined is not None else 0
        _set_strings(node.proto.input, ["" if v is None else v.name for v in node.inputs], least)
        _set_strings(node.proto.output, ["" if v is None else v.name for v in node.outputs])
        node.stale = False


def _write_scope(graph: Graph, deferred: dict[int, Array | Stored], at_least: int | None) -> None:
    """Bring the proto of a scope up to date: names, nodes, opsets, interface and initializers."""
    proto = graph.proto
    nodes = list(graph)
    for node in nodes:
        if node.stale:
            write_names(node)
    if graph.nodes_changed:
        _arrange(proto.node, nodes)
        _name_apart(graph, nodes)
        write_opsets(graph)
    if graph.is_function:
        for field, values in ((proto.input, graph.inputs), (proto.output, graph.outputs)):
            names = [v.name for v in values]
            if names != field[:]:
                _set_strings(field, names)
    else:
        changed = graph.nodes_changed or graph.initializers_changed
        _write_interface(graph, changed)
        if graph.initializers_changed:
            _write_initializers(graph, deferred, at_least)
        if changed:
            _drop_vanished(graph)
    graph.nodes_changed = graph.initializers_changed = False


def _write_interface(graph: Graph, changed: bool) -> None:
    """Write the names of outputs and of a body's inputs, and the types of a `changed` body's constant outputs."""
    named = list(zip(graph.proto.output, graph.outputs))
    for info, value in named if graph.owner is None else (*named, *zip(graph.proto.input, graph.inputs)):
        if info.name != value.name:
            info.name = value.name
    for info, value in named if changed and graph.owner is not None else ():
        if value.constant and value.producer is None:
            _declare(info, *value.constant_type())


def _set_strings(field, names: list[str], least: int = 0) -> None:  # type: ignore[no-untyped-def]
    while len(names) > least and not names[-1]:
        names.pop()
    names += [""] * (least - len(names))
    field[:] = names


def _arrange(field, nodes: list[Node]) -> None:  # type: ignore[no-untyped-def]
    """Make a scope's field hold the protos of `nodes`, in order. Only new protos are copied."""
    there = set(map(id, field[:]))  # nodes keep their messages alive, so ids are unique
    new = [node for node in nodes if id(node.proto) not in there]
    field.extend(node.proto for node in new)
    for node, copy in zip(new, field[len(field) - len(new) :]):
        node.adopt(copy)
    place, last = {id(node.proto): i for i, node in enumerate(nodes)}, len(nodes)
    field.sort(key=lambda proto: place.get(id(proto), last))
    del field[len(nodes) :]


def _name_apart(graph: Graph, nodes: list[Node]) -> None:
    """Give nodes of duplicate names in a scope new names, since runtimes refuse duplicates.

    Duplicates arise from inlined bodies, and where several nodes replace a single node.
    """
    names: set[str] = set()
    for node in nodes:
        proto = node.proto
        if proto.name in names:
            proto.name = graph.model.node_name(proto.name, f"_{proto.op_type}")
        if proto.name:
            names.add(proto.name)


def _write_initializers(graph: Graph, deferred: dict[int, Array | Stored], at_least: int | None) -> None:
    """Write new initializers, and remove vanished ones; the tensors of kept ones are not copied."""
    proto, values = graph.proto, graph.initializers.values()
    there = proto.initializer[:]  # held so that the ids stay unique
    if graph.deferred:
        _fill_deferred(graph, there)
    stays = {id(v.tensor) for v in values if v.tensor is not None and v.tensor.name == v.name}
    stays.intersection_update(map(id, there))
    new = [v for v in values if id(v.tensor) not in stays]
    if len(stays) < len(there):  # kept tensors come first, and are not copied
        if stays:
            proto.initializer.sort(key=lambda tensor: id(tensor) not in stays)
        del proto.initializer[len(stays) :]
    for value in new:
        _add_initializer(graph, value, deferred, at_least)
    if graph.model.ir_version < 4 and graph.owner is None:
        listed = {i.name for i in proto.input}
        missing = [value for value in new if value.name not in listed]
        proto.input.extend(tensor_value_info(value.name, *value.constant_type()) for value in missing)
    if len(stays) < len(there):
        _drop_inputs(graph, there)


def _add_initializer(graph: Graph, value: Value, deferred: dict[int, Array | Stored], at_least: int | None) -> None:
    """Append the tensor of a new initializer, without data if in memory and of `at_least` bytes."""
    field = graph.proto.initializer
    tensor = field.add()
    if value.tensor is not None:
        tensor.CopyFrom(value.tensor)
        tensor.name = value.name
    elif at_least is not None and value.array.nbytes >= at_least and is_raw(value.array):
        describe_tensor(tensor, value.array, value.name)
        deferred[len(field) - 1] = value.array
        graph.deferred.append(value)
        return
    else:
        fill_tensor(tensor, value.array, value.name)
    value.tensor = tensor


def _drop_inputs(graph: Graph, before: Sequence[TensorProto]) -> None:
    """Remove inputs listed for initializers that are gone. `before`: the initializers of the last write."""
    field = graph.proto.input
    kept = {v.name for v in graph.inputs}.union(graph.initializers)
    gone = {t.name for t in before}.intersection(info.name for info in field) - kept
    for i in reversed(range(len(field)) if gone else ()):
        if field[i].name in gone:
            del field[i]


def _fill_deferred(graph: Graph, there: Sequence[TensorProto]) -> None:
    """Fill the initializers left without data by an earlier write."""
    waiting = {v.name: v for v in graph.deferred if graph.initializers.get(v.name) is v}
    for tensor in there:
        value = waiting.get(tensor.name)
        if value is not None:
            value.tensor = tensor
            tensor.Clear()
            fill_tensor(tensor, value.array, value.name)
    graph.deferred.clear()


def _drop_vanished(graph: Graph) -> None:
    """Remove value_info and quantization annotations of removed values."""
    proto = graph.proto
    if not proto.value_info and not proto.quantization_annotation:
        return
    names = values_named(graph)
    # Entries for names that the index never had stay.
    once = graph.model.names
    infos: list[ValueInfoProto] = [i for i in proto.value_info if i.name in names or i.name not in once]
    if len(infos) < len(proto.value_info):
        del proto.value_info[:]
        proto.value_info.extend(infos)
    drop_vanished(graph, names)


def fingerprint(model: Model) -> bytes:
    """Return a hash of the model without the (read-only) data of large weights. Updates the model's proto.

    Detects edits of the protos that bypass the version counter.
    """
    import hashlib  # OpenSSL takes its time to load

    found = hashlib.sha256()

    def add(*messages: Any) -> None:
        for m in messages:
            found.update(m.SerializeToString(deterministic=True))

    proto, _ = write_deferred(model, _SMALL_BYTES)
    graph = proto.graph
    add(*proto.opset_import, *proto.metadata_props, *proto.functions)
    add(*graph.input, *graph.output, *graph.value_info, *graph.metadata_props, *graph.node)
    for tensor in graph.initializer:
        found.update(f"{tensor.name}: {tensor.data_type}{list(tensor.dims)}".encode(errors="replace"))
        if tensor_bytes(tensor.data_type, tensor.dims) < _SMALL_BYTES:
            add(tensor)
    for node in model.nodes():
        named = (v.name if v is not None else "" for v in (*node.inputs, None, *node.outputs))
        found.update(f"{node.op}({','.join(named)})".encode(errors="replace"))
    return found.digest()
