"""Statistics of a model: operators, nodes, parameters, bytes. External data is counted, not read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx import TensorProto

from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.proto.messages import element_type, tensor_bytes, tensor_type, type_name, type_proto_text

if TYPE_CHECKING:
    from onnxopt.analysis.cost import NodeCost

Held = tuple[int, tuple[int, ...]]  # element type and dims of a constant


@dataclass(frozen=True)
class NodeWork:
    """A node with much work; `shape` of its first output, `times` it runs."""

    name: str
    op: str
    scope: str
    shape: str
    macs: int
    flops: int
    times: int


@dataclass(frozen=True)
class Work:
    """The work of a run (see `analysis.cost`); `inexact`: number of nodes of unknown size.

    `macs_by_operator`, `flops_by_operator` and `nodes` are sorted, largest first.
    """

    macs: int
    flops: int
    macs_by_operator: dict[str, int]
    flops_by_operator: dict[str, int]
    inexact: int
    peak_bytes: int
    peak_at: str
    peak_exact: bool
    nodes: list[NodeWork] = field(default_factory=list)


def model_work(model: Model, top: int = 0) -> Work:
    """Return MACs, FLOPs and memory of a run, with the `top` nodes by FLOPs."""
    from onnxopt.analysis.cost import model_costs, peak_memory

    macs: Counter[str] = Counter()
    flops: Counter[str] = Counter()
    costs = model_costs(model)
    for c in costs:
        macs[c.node.op] += c.macs * c.times
        flops[c.node.op] += c.flops * c.times
    peak = peak_memory(model)
    return Work(
        macs=macs.total(),
        flops=flops.total(),
        macs_by_operator={op: n for op, n in macs.most_common() if n},
        flops_by_operator={op: n for op, n in flops.most_common() if n},
        inexact=sum(not c.exact for c in costs),
        peak_bytes=peak.bytes,
        peak_at=repr(peak.node) if peak.node is not None else "",
        peak_exact=peak.exact,
        nodes=[_node_work(c) for c in sorted(costs, key=lambda c: -c.flops * c.times)[:top]],
    )


def _node_work(c: NodeCost) -> NodeWork:
    from onnxopt.analysis.types import shape
    from onnxopt.graph.dims import is_invented

    output = c.node.results[0]
    dims = shape(output)
    text = "?" if dims is None else ", ".join("?" if d is None or is_invented(d) else str(d) for d in dims)
    scope = c.node.graph.path if c.node.graph is not None else ""
    name = c.node.name or output.name
    return NodeWork(name, c.node.op, scope, f"[{text}]", c.macs * c.times, c.flops * c.times, c.times)


@dataclass(frozen=True)
class ModelStats:
    """Counts over all scopes: main graph, bodies, and functions (each once, regardless of calls).

    `parameters`: elements of initializers and Constant nodes, integers included, and stored elements of sparse tensors.
    `bytes_by_type`: their size in memory (8 bytes for a string). `file_bytes`: the model file and its data files,
    without `missing_files`. `inputs`: inputs without a default. `dynamic`: positions of each symbolic dim in inputs,
    such as `x[0]`. `work`: None unless requested.
    """

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
    dynamic: dict[str, list[str]] = field(default_factory=dict)
    work: Work | None = None
    missing_files: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def model_stats(model: Model) -> ModelStats:
    """Return the counts of a model in memory; file sizes are 0 if it was not read from a file."""
    operators: Counter[str] = Counter()
    scopes: dict[str, int] = {}
    paths: Counter[str] = Counter()
    bytes_by_type: Counter[str] = Counter()
    initializers = parameters = 0
    for graph in model.scopes():
        paths[graph.path] += 1
        again = f" ({paths[graph.path]})"  # unnamed nodes give equal paths
        scopes[graph.path + again * (paths[graph.path] > 1)] = len(graph)
        operators.update(node.op for node in graph)
        initializers += len(graph.initializers) + len(_sparse(graph))
        for data_type, dims in _constants(graph):
            parameters += prod(dims)
            bytes_by_type[type_name(data_type).lower()] += tensor_bytes(data_type, dims)
    proto = model.proto
    weights = set(model.graph.initializers)
    return ModelStats(
        path=str(model.path or ""),
        file_bytes=file_bytes(model),
        ir_version=model.ir_version,
        opsets={o or "ai.onnx": v for o, v in model.opsets.items()},
        nodes=sum(operators.values()),
        operators=dict(operators.most_common()),
        nodes_by_scope=scopes,
        initializers=initializers,
        parameters=parameters,
        bytes_by_type=dict(bytes_by_type.most_common()),
        functions=len(model.functions),
        inputs={i.name: type_proto_text(i.type) for i in proto.graph.input if i.name not in weights},
        outputs={o.name: type_proto_text(o.type) for o in proto.graph.output},
        dynamic=_dynamic(model),
        missing_files=[f.name for f in _data_files(model) if not os.path.isfile(f)],
    )


def _dynamic(model: Model) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for i in model.proto.graph.input:
        for axis, d in enumerate(tensor_type(i.type)[1] or ()):
            if isinstance(d, str):
                found.setdefault(d, []).append(f"{i.name}[{axis}]")
    return found


def _sparse(graph: Graph) -> list[TensorProto]:
    """Return the values of a scope's sparse initializers."""
    return [] if graph.is_function else [sparse.values for sparse in graph.proto.sparse_initializer]


def _constants(graph: Graph) -> Iterator[Held]:
    for value in graph.initializers.values():
        yield value.constant_type()
    for tensor in _sparse(graph):
        yield tensor.data_type, tuple(tensor.dims)
    for node in graph.by_op.get("Constant", ()):
        if (held := _held(node)) is not None:
            yield held


def _held(node: Node) -> Held | None:
    """Return the type of a Constant without decoding its tensor; None if a function's caller sets the value."""
    if node.has_references or not node.attributes:
        return None
    for key in ("value", "sparse_value"):
        if (found := node.attributes.get(key)) is not None:
            tensor = found.t if key == "value" else found.sparse_tensor.values
            return tensor.data_type, tuple(tensor.dims)
    array = node.constant_array()
    return element_type(array), array.shape


def file_bytes(model: Model) -> int:
    """Return the bytes of the model file and of each data file its tensors refer to."""
    if model.path is None or not model.path.is_file():
        return 0
    files = {os.path.realpath(f) for f in _data_files(model)} | {os.path.realpath(model.path)}
    return sum(os.path.getsize(f) for f in files if os.path.isfile(f))


def _data_files(model: Model) -> list[Path]:
    """Return the paths of external data, existing or not."""
    folder = model.path.absolute().parent if model.path is not None else Path()
    return [folder / name for name in model.data_files if "\0" not in name]
