"""Changes of a model after the passes: declared shapes, and names of inputs, outputs, dims and nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from onnx import FunctionProto, TensorShapeProto, TypeProto

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sweep import learn_shapes
from onnxopt.arguments import by_name
from onnxopt.errors import UsageError, few, nearest
from onnxopt.graph import Model, Value
from onnxopt.graph.bindings import values_named
from onnxopt.graph.dims import as_written, is_invented, rename_dims
from onnxopt.graph.structure import interface_of
from onnxopt.graph.writer import write_types
from onnxopt.proto.messages import all_nodes, tensor_type, tensor_type_proto, tensor_value_info


def declare_outputs(model: Model) -> None:
    """Declare known sizes of outputs: `[2, 's2', 3]` becomes `[2, 8, 3]`. Symbols of inputs stay."""
    learn_shapes(model.graph)
    changed = False
    for info, value in zip(model.proto.graph.output, model.graph.outputs):
        if info.type.WhichOneof("value") == "tensor_type" or not info.type.WhichOneof("value"):
            changed |= _refine(info.type, value, _dims(value, numbers=True))
    if changed:
        model.version += 1
        model.interface = interface_of(model.proto)


def declare_values(model: Model) -> None:
    """Declare known types and shapes of inner values, in the main graph and its bodies."""
    for graph in model.scopes():
        if graph.is_function:
            continue
        infos = {i.name: i for i in graph.proto.value_info}
        outside = {*graph.outputs, *graph.inputs}
        for value in (v for node in graph for v in node.results):
            data_type = types.dtype(value)
            if value in outside or not data_type:
                continue
            dims = _dims(value)
            if (info := infos.get(value.name)) is not None:
                model.version += _refine(info.type, value, dims)
            else:
                graph.proto.value_info.append(tensor_value_info(value.name, data_type, dims))
                model.version += 1


def _dims(value: Value, *, numbers: bool = False) -> Sequence[int | str | None] | None:
    """Return the known dims, with symbols as in the file; `numbers`: only numbers. None for unknown rank."""
    known = types.shape(value)
    if known is None:
        return None
    # Not said: invented symbols, and expressions of symbols.
    is_said = (isinstance(d, int) or not (numbers or is_invented(d) or str(d).startswith("{")) for d in known)
    return [as_written(d) if said else None for d, said in zip(known, is_said)]


def _refine(kind: TypeProto, value: Value, dims: Sequence[int | str | None] | None) -> bool:
    """Write dims more precise than the declared ones. Returns whether anything changed."""
    tensor = kind.tensor_type
    if dims is None or (tensor.elem_type and tensor.elem_type != types.dtype(value)):
        return False
    if not tensor.HasField("shape"):
        kind.CopyFrom(tensor_type_proto(types.dtype(value), dims))
        return True
    if len(tensor.shape.dim) != len(dims):
        return False
    return sum(map(_refine_dim, tensor.shape.dim, dims)) > 0


def _refine_dim(declared: TensorShapeProto.Dimension, dim: int | str | None) -> bool:
    """Write a number over a symbol, or a symbol over nothing. Returns whether the dim changed."""
    if isinstance(dim, int) and not declared.HasField("dim_value"):
        declared.dim_value = dim
        return True
    if isinstance(dim, str) and not declared.WhichOneof("value"):
        declared.dim_param = dim
        return True
    return False


# -- names ------------------------------------------------------------------------------------------------------------

_IDENTIFIER = re.compile(r"[^\W\d][\w.]*")


def checked_names(model: Model, names: Mapping[str, str]) -> dict[str, str]:
    """Return `names` for `rename`, with the name of the input or output in place of a position.

    Reserves the new names. Raises UsageError for an unknown old name, and for a new name in use.
    """
    ends = (model.graph.inputs, model.graph.outputs)
    names = by_name(names, *([v.name for v in vs if v.name not in model.graph.initializers] for vs in ends))
    values, dims = dict.fromkeys(v.name for v in _interface(model)), _interface_dims(model)
    known = [*values, *sorted(dims)]
    if unknown := next((old for old in names if old not in known), None):
        hint = nearest(unknown, known, f"there are {few(known)}")
        raise UsageError(f"{model.name}: no input, output or dim is called {unknown!r}", hint)
    taken = _collision(names, values, _value_names(model)) or _collision(names, dims, _dim_names(model))
    if taken is not None:
        old, new = taken
        message = f"{model.name}: {old!r} cannot be called {new!r}: something else is called so"
        raise UsageError(message, "choose a name that is not in the model, or rename the other one as well")
    model.names.update(names.values())
    return names


def rename(model: Model, names: Mapping[str, str]) -> None:
    """Rename inputs, outputs and dims by `names`, from `checked_names`: {old: new}."""
    values = {v: names[v.name] for v in _interface(model) if v.name in names}
    dims = {old: names[old] for old in _interface_dims(model) if old in names}
    if not values and not dims:
        return
    if dims:
        _rename_dims_in(model, dims)
    called = {v.name: new for v, new in values.items()}
    for value, new in values.items():
        value.rename(new)
    initializers = model.graph.initializers.values()
    for tensor, name in ((v.tensor, v.name) for v in initializers if v.tensor is not None):
        tensor.name = name
    model.graph.initializers = {v.name: v for v in initializers}
    _rename_in_protos(model, called)
    model.version += 1
    required = {called.get(name, name) for name in model.interface[0]}
    # The message still has the inputs of defaults that passes removed.
    model.interface = interface_of(model.proto, [i.name for i in model.proto.graph.input if i.name not in required])


def _rename_dims_in(model: Model, dims: Mapping[str, str]) -> None:
    """Rename dims in the types of all values."""
    write_types(model.foreign)  # with the old names
    for kind in _types(model):
        rename_dims(kind, _renamed(dims))


def _rename_in_protos(model: Model, called: Mapping[str, str]) -> None:
    """Rename in parts of the proto without an index."""
    protos: list[Any] = [scope.proto for scope in model.scopes() if not scope.is_function]
    ends = (model.proto.graph.input, model.proto.graph.output)
    for info in chain(*ends, *(proto.value_info for proto in protos)):
        info.name = called.get(info.name, info.name)
    for annotation in chain.from_iterable(proto.quantization_annotation for proto in protos):
        annotation.tensor_name = called.get(annotation.tensor_name, annotation.tensor_name)
        for entry in annotation.quant_parameter_tensor_names:
            entry.value = called.get(entry.value, entry.value)
    for training in model.proto.training_info:
        for binding in (*training.initialization_binding, *training.update_binding):
            binding.key = called.get(binding.key, binding.key)
        for node in all_nodes(training.algorithm.node):
            node.input[:] = [called.get(name, name) for name in node.input]


def _collision(names: Mapping[str, str], renamed: Iterable[str], there: Iterable[str]) -> tuple[str, str] | None:
    """Return the first (old, new) of `renamed` whose new name is empty, or in use by a value or dim `there`."""
    taken = {*there} - {*names}
    for old in (old for old in names if old in renamed):
        if not names[old] or names[old] in taken:
            return old, names[old]
        taken.add(names[old])
    return None


def _interface(model: Model) -> Iterator[Value]:
    yield from model.graph.inputs
    yield from model.graph.outputs


def _interface_dims(model: Model) -> set[str]:
    """Return the symbols of inputs and outputs."""
    graph = model.proto.graph
    dims = (dim for info in (*graph.input, *graph.output) for dim in tensor_type(info.type)[1] or ())
    return {dim for dim in dims if isinstance(dim, str)}


def _value_names(model: Model) -> set[str]:
    """Return the names of all values of the main graph and its bodies; an equal name in a body would hide a value."""
    return set().union(*(values_named(scope) for scope in model.scopes() if not scope.root.is_function))


def _dim_names(model: Model) -> set[str]:
    found: set[str] = set()

    def note(name: str) -> str:
        found.add(name)
        return name

    for kind in _types(model):
        rename_dims(kind, note)
    return found


def _types(model: Model) -> Iterator[TypeProto]:
    """Yield all declared types, at every depth."""
    for scope in model.scopes():
        proto = scope.proto
        infos = [*proto.value_info]
        if not isinstance(proto, FunctionProto):
            infos += [*proto.input, *proto.output]
        yield from (info.type for info in infos)


def _renamed(dims: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function from old to new names of dims. In an expression such as `2*batch`, each word is a name."""

    def name(old: str) -> str:
        if old in dims or _IDENTIFIER.fullmatch(old):
            return dims.get(old, old)
        return _IDENTIFIER.sub(lambda word: dims.get(word[0], word[0]), old)

    return name


def name_nodes(model: Model) -> None:
    """Name nodes without a name: operator and position, with bodies and functions, such as `Conv_12`. Names differ."""
    scopes = [model.graph, *model.functions.values()]
    for i, node in enumerate(node for scope in scopes for node in scope.walk()):
        if not node.name:
            node.proto.name = model.node_name(f"{node.proto.op_type}_{i}", "")
            model.version += 1
