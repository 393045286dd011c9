"""A model whose numbers of one type are float64, where the runtimes have kernels for that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.verification.pieces.convolutions import as_products
from onnxopt.verification.programs.runner import Failed, Prepare

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

# Types that are made wider, and their numbers in onnx. What is narrower in the same model is so on purpose, and stays.
NARROW: Final = {"float32": 1, "float16": 10}
_DOUBLE: Final = 11
_EIGHTS: Final = frozenset(range(17, 21))  # floats of 8 bits
_NARROWER: Final = {"float32": _EIGHTS | {10, 16}, "float16": _EIGHTS}
_TYPES: Final = ("to", "dtype", "output_datatype")  # attributes that say of which type a result is
_SIZES: Final = ("Resize", "Upsample", "Range", "OneHot", "Pad")  # operators whose constants decide shapes
_OF_ALL: Final = ("MatMul", "Gemm", "Einsum")  # sums of all that they read,
_SUMS: Final = (*_OF_ALL, "CumSum", "GlobalAveragePool")  # and of the first
_WIDE: Final = "\N{RIGHTWARDS ARROW}sum"
Change = Callable[[Any], Any]  # of a constant, to float64


def widening(dtype: str, change: Change) -> Prepare:
    """What makes a model's numbers of this type float64: `change` makes its constants so, but those in bodies."""

    def prepare(model: ModelProto, weights: dict[str, Any]) -> dict[str, Any]:
        code = NARROW[dtype]
        graph = model.graph
        exact = {name for n in graph.node if n.op_type in _SIZES for name in n.input[1:]}
        if graph.sparse_initializer:
            raise Failed("it has sparse weights")
        for t in graph.initializer:
            if t.data_type != code:
                continue
            if t.name in weights:
                weights[t.name], t.data_type = change(weights[t.name]), _DOUBLE
            else:
                _widen(t, as_double if t.name in exact else change)
        for node in graph.node:
            _node(node, code, as_double if exact.intersection(node.output) else change)
        for function in model.functions:
            _nodes(function.node, code)
        return as_products(model, weights)

    return prepare


def narrows(node: NodeProto, dtype: str) -> bool:
    """Does it round floats of this type to narrower ones?"""
    return not node.domain and node.op_type == "Cast" and any(a.i in _NARROWER[dtype] for a in node.attribute)


def is_sum(node: NodeProto) -> bool:
    return not node.domain and (node.op_type in _SUMS or node.op_type.startswith("Reduce"))


def with_sums(dtype: str) -> Prepare:
    """What makes a model's sums, and nothing else, be taken in float64 and rounded once."""

    def prepare(model: ModelProto, weights: dict[str, Any]) -> dict[str, Any]:
        graph = model.graph
        nodes = list(graph.node)
        del graph.node[:]
        for node in nodes:
            if not is_sum(node):
                graph.node.append(node)
                continue
            for i, name in enumerate(node.input[:1] if node.op_type not in _OF_ALL else node.input):
                node.input[i] = f"{name}{_WIDE}{len(graph.node)}"
                _cast(graph, name, node.input[i], _DOUBLE)
            made, node.output[0] = node.output[0], f"{node.output[0]}{_WIDE}"
            graph.node.append(node)
            _cast(graph, node.output[0], made, NARROW[dtype])
        return weights

    return prepare


def _cast(graph: GraphProto, source: str, target: str, code: int) -> None:
    node = graph.node.add(op_type="Cast", input=[source], output=[target])
    node.attribute.add(name="to", i=code, type=2)


def as_double(array: Any) -> Any:
    return np.asarray(array).astype(np.float64)


def _widen(tensor: TensorProto, change: Change) -> None:
    from onnxopt.protos import array_to_tensor, tensor_to_array

    array = np.ascontiguousarray(change(tensor_to_array(tensor)))
    tensor.CopyFrom(array_to_tensor(array.reshape(tuple(tensor.dims)), tensor.name))


def _graph(graph: GraphProto, code: int) -> None:
    """Of a body."""
    for t in graph.initializer:
        if t.data_type == code:
            _widen(t, as_double)
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type == code:
            info.type.tensor_type.elem_type = _DOUBLE
    _nodes(graph.node, code)


def _nodes(nodes: Iterable[NodeProto], code: int) -> None:
    for node in nodes:
        _node(node, code, as_double)


def _node(node: NodeProto, code: int, change: Change) -> None:
    for a in node.attribute:
        if a.type == a.INT and a.name in _TYPES and a.i == code:
            a.i = _DOUBLE
        elif a.type == a.TENSOR and a.t.data_type == code:
            _widen(a.t, change if node.op_type == "Constant" else as_double)
        elif a.type == a.GRAPH:
            _graph(a.g, code)
        elif node.op_type == "Constant" and a.name.startswith("value_float") and code == NARROW["float32"]:
            _number(a, change)


def _number(attribute: Any, change: Change) -> None:
    """A Constant's number that is no tensor."""
    from onnxopt.protos import array_to_tensor

    found = attribute.f if attribute.type == attribute.FLOAT else list(attribute.floats)
    array = np.asarray(change(np.array(found, np.float32)))
    attribute.Clear()
    attribute.name, attribute.type = "value", attribute.TENSOR
    attribute.t.CopyFrom(array_to_tensor(array.reshape(np.shape(found)), ""))
