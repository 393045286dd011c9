"""What is in a model: operators, nodes, parameters, bytes. Data outside the file is counted, not read."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from onnx import TensorProto

from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.protos import Array, element_type, is_external, tensor_bytes, tensor_type, type_name


@dataclass(frozen=True)
class ModelStats:
    """`nodes` and `operators` count all scopes: main, bodies, functions. `parameters` are elements of initializers
    and of the tensors in Constant nodes; `bytes_by_type` is their size in memory. `file_bytes` includes data files."""

    path: str
    file_bytes: int
    ir_version: int
    opsets: dict[str, int]
    nodes: int
    operators: dict[str, int]
    nodes_by_scope: dict[str, int]
    initializers: int
    parameters: int
    bytes_by_type: dict[str, int]
    functions: int
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def model_stats(model: Model) -> ModelStats:
    """Count a model as it is in memory; sizes on disk from the file it was read from (0 without one)."""
    operators: Counter[str] = Counter()
    scopes: dict[str, int] = {}
    bytes_by_type: Counter[str] = Counter()
    initializers = parameters = 0
    for graph in model.scopes():
        scopes[_unique(graph.path, scopes)] = len(graph)
        for node in graph:
            operators[node.op] += 1
        initializers += len(graph.initializers)
        for data_type, dims in _constants(graph):
            parameters += _elements(dims)
            bytes_by_type[type_name(data_type).lower()] += tensor_bytes(data_type, dims)
    proto = model.proto
    weights = set(model.graph.initializers)
    return ModelStats(
        path=str(model.path or ""),
        file_bytes=_file_bytes(model),
        ir_version=model.ir_version,
        opsets={o or "ai.onnx": v for o, v in model.opsets.items()},
        nodes=sum(operators.values()),
        operators=dict(operators.most_common()),
        nodes_by_scope=scopes,
        initializers=initializers,
        parameters=parameters,
        bytes_by_type=dict(bytes_by_type.most_common()),
        functions=len(model.functions),
        inputs={i.name: _type_text(i.type) for i in proto.graph.input if i.name not in weights},
        outputs={o.name: _type_text(o.type) for o in proto.graph.output},
    )


def _unique(path: str, taken: dict[str, int]) -> str:
    """Nodes without names make equal paths."""
    name, i = path, 2
    while name in taken:
        name, i = f"{path} ({i})", i + 1
    return name


def _constants(graph: Graph) -> list[tuple[int, tuple[int, ...]]]:
    found: list[tuple[int, tuple[int, ...]]] = []
    for value in graph.initializers.values():
        if value.tensor is not None:
            found.append((value.tensor.data_type, tuple(value.tensor.dims)))
        else:
            found.append(value.constant_type())
    found += [t for node in graph.by_op.get("Constant", ()) if (t := _held(node)) is not None]
    return found


def _held(node: Node) -> tuple[int, tuple[int, ...]] | None:
    """What a Constant node holds; a tensor's data is not decoded."""
    value = node.attributes.get("value")
    if value is not None:
        return value.t.data_type, tuple(value.t.dims)
    if node.has_references or "sparse_value" in node.attributes:
        return None
    array: Array = node.constant_array()
    return element_type(array), array.shape


def _elements(dims: tuple[int, ...]) -> int:
    count = 1
    for d in dims:
        count *= d
    return count


def _file_bytes(model: Model) -> int:
    """The model file, and each data file it refers to, once."""
    if model.path is None or not model.path.is_file():
        return 0
    files: set[Path] = {model.path}
    for graph in model.scopes():
        tensors: list[TensorProto] = [v.tensor for v in graph.initializers.values() if v.tensor is not None]
        tensors += [n.attributes["value"].t for n in graph.by_op.get("Constant", ()) if "value" in n.attributes]
        for tensor in tensors:
            if is_external(tensor):
                files.update(model.path.parent / e.value for e in tensor.external_data if e.key == "location")
    return sum(f.stat().st_size for f in files if f.is_file())


def _type_text(value_type: Any) -> str:
    """`float[batch, 3, 224, 224]`."""
    data_type, dims = tensor_type(value_type)
    if not data_type:
        return str(value_type.WhichOneof("value") or "?").removesuffix("_type")
    shape = "[...]" if dims is None else f"[{', '.join('?' if d is None else str(d) for d in dims)}]"
    return type_name(data_type).lower() + (shape if dims != () else "")
