"""Memory and work of a run, estimated from shapes."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.proto.messages import tensor_bytes
from onnxopt.verification.model.operators import having
from onnxopt.verification.model.skeleton import Skeleton
from onnxopt.worker import spare

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, ValueInfoProto

_ROOM: Final = 1 << 28  # bytes of memory for inference


def least(path: str, feeds: dict[str, Any]) -> int:
    """Return a lower bound of the bytes of values alive at once in the main graph; 0 if unknown."""
    try:
        return _peak(_inferred(path, feeds))
    except Exception:  # found out by running
        return 0


def products(path: str, feeds: dict[str, Any]) -> int:
    """Return the multiplications of convolutions and matrix products in the main graph.

    Nodes of unknown shape are not counted.
    """
    try:
        graph = _inferred(path, feeds)
    except Exception:
        return 0
    shapes = {i.name: _sizes(i) for i in (*graph.input, *graph.value_info, *graph.output)}
    shapes |= {t.name: list(t.dims) for t in graph.initializer}
    return sum(_products_of(node, shapes) for node in graph.node)


def _products_of(node: NodeProto, shapes: dict[str, list[int]]) -> int:
    if node.domain or node.op_type not in _PRODUCTS:
        return 0
    operand, weight, result = (shapes.get(name, []) for name in (*node.input[:2], node.output[0]))
    if node.op_type == "ConvTranspose":
        return math.prod(operand) * math.prod(weight[1:]) if operand else 0
    terms = math.prod(weight[1:]) if node.op_type == "Conv" else operand[-1] if operand else 0
    return math.prod(result) * terms if result and weight else 0


_PRODUCTS: Final = having("product")


def _sizes(info: ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in info.type.tensor_type.shape.dim]


def _inferred(path: str, feeds: dict[str, Any]) -> GraphProto:
    """Return the main graph with shapes inferred for these feeds."""
    from onnxopt.proto.inference import infer_shapes, inferable

    model = Skeleton(path).proto
    for given in model.graph.input:
        value = feeds.get(given.name)
        if isinstance(value, np.ndarray):
            given.type.tensor_type.shape.Clear()
            for size in value.shape:
                given.type.tensor_type.shape.dim.add(dim_value=size)
    try:
        with spare(_ROOM):
            return infer_shapes(inferable(model), values=True).graph
    except MemoryError:  # propagating elements of large vectors
        with spare(_ROOM):
            return infer_shapes(inferable(model)).graph


def _peak(graph: GraphProto) -> int:
    sizes: Counter[str] = Counter()
    for info in (*graph.value_info, *graph.output):
        tensor = info.type.tensor_type
        if tensor.HasField("shape") and all(d.dim_value > 0 for d in tensor.shape.dim):
            sizes[info.name] = tensor_bytes(tensor.elem_type, (d.dim_value for d in tensor.shape.dim))
    last = {name: i for i, node in enumerate(graph.node) for name in node.input}
    last |= {o.name: len(graph.node) for o in graph.output}
    live = most = 0
    for i, node in enumerate(graph.node):
        live += sum(sizes[name] for name in node.output)
        most = max(most, live)
        read = dict.fromkeys((*node.input, *node.output))
        live -= sum(sizes[name] for name in read if last.get(name, i) == i)
    return most
