"""Declaration of known shapes in a result: of outputs, and of all values on request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sweep import learn_shapes
from onnxopt.graph.dims import as_written, is_invented
from onnxopt.graph.structure import interface_of
from onnxopt.proto.messages import tensor_type_proto, tensor_value_info

if TYPE_CHECKING:
    from onnx import TypeProto

    from onnxopt.graph import Graph, Model, Value


def declare_outputs(model: Model) -> None:
    """Declare known sizes of outputs in place of symbols and unknown dims: `[2, 's2', 3]` becomes `[2, 8, 3]`.

    Symbols of inputs stay.
    """
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
        for value in _made(graph):
            data_type = types.dtype(value)
            if value in outside or not data_type:
                continue
            dims = _dims(value)
            if (info := infos.get(value.name)) is not None:
                model.version += _refine(info.type, value, dims)
            else:
                graph.proto.value_info.append(tensor_value_info(value.name, data_type, dims))
                model.version += 1


def _made(graph: Graph) -> Iterator[Value]:
    return (v for node in graph for v in node.outputs if v is not None)


def _dims(value: Value, *, numbers: bool = False) -> Sequence[int | str | None] | None:
    """Return the known dims, with symbols as in the file; `numbers`: only numbers. None for unknown rank."""
    known = types.shape(value)
    if known is None:
        return None
    is_said = (isinstance(d, int) or not (numbers or is_invented(d) or _is_computed(d)) for d in known)
    return [as_written(d) if said else None for d, said in zip(known, is_said)]


def _is_computed(dim: int | str | None) -> bool:
    """Return whether a dim is an expression of symbols, not a name."""
    return isinstance(dim, str) and dim.startswith("{")


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
    changed = False
    for declared, dim in zip(tensor.shape.dim, dims):
        if isinstance(dim, int) and not declared.HasField("dim_value"):
            declared.dim_value, changed = dim, True
        elif isinstance(dim, str) and not declared.WhichOneof("value"):
            declared.dim_param, changed = dim, True
    return changed
