"""A model with numbers of a given type widened to float64, as far as runtimes have kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from onnxopt.proto.messages import array_to_tensor, make_attribute, tensor_to_array
from onnxopt.verification.model.nodes import held_as
from onnxopt.verification.model.operators import MATRICES, SIZED
from onnxopt.verification.programs.program import add_cast
from onnxopt.verification.programs.runner import Prepare
from onnxopt.verification.run import Failed

# Widened types, and their codes in onnx. Narrower types in the same model are intended, and stay.
NARROW: Final = {"float32": 1, "float16": 10}
_DOUBLE: Final = 11
_EIGHTS: Final = frozenset(range(17, 21))  # codes of 8-bit floats
_NARROWER: Final = {"float32": _EIGHTS | {10, 16}, "float16": _EIGHTS}
_TYPES: Final = ("to", "dtype", "output_datatype")  # attributes with the type of a result
_OF_ALL: Final = MATRICES | {"Einsum"}  # sums over all operands
_SUMS: Final = _OF_ALL | {"CumSum", "GlobalAveragePool"}  # sums over the first operand
_SUM_SUFFIX: Final = "\N{RIGHTWARDS ARROW}sum"
Change = Callable[[Any], Any]  # maps a constant to float64


def widening(dtype: str, change: Change) -> Prepare:
    """Return a function that widens numbers of type `dtype` in a model to float64, in place.

    change: converts constants, except in bodies and where constants decide shapes.
    """

    def prepare(model: ModelProto, weights: dict[str, Any]) -> dict[str, Any]:
        code = NARROW[dtype]
        if model.graph.sparse_initializer:
            raise Failed("it has sparse weights")
        _graph(model.graph, code, change, weights)
        for node in (n for function in model.functions for n in function.node):
            _node(node, code, as_double)
        return weights

    return prepare


def narrows(node: NodeProto, dtype: str) -> bool:
    """Return whether a node rounds floats of type `dtype` to a narrower type."""
    return not node.domain and node.op_type == "Cast" and any(a.i in _NARROWER[dtype] for a in node.attribute)


def is_sum(node: NodeProto) -> bool:
    """Return whether a node sums elements of its operands."""
    return not node.domain and (node.op_type in _SUMS or node.op_type.startswith("Reduce"))


def with_sums(dtype: str) -> Prepare:
    """Return a function that computes a model's sums in float64, rounded once; all else is unchanged."""

    def prepare(model: ModelProto, weights: dict[str, Any]) -> dict[str, Any]:
        graph = model.graph
        nodes = list(graph.node)
        del graph.node[:]
        for node in nodes:
            if not is_sum(node):
                graph.node.append(node)
                continue
            for i, name in enumerate(node.input[:1] if node.op_type not in _OF_ALL else node.input):
                node.input[i] = f"{name}{_SUM_SUFFIX}{len(graph.node)}"
                add_cast(graph, name, node.input[i], _DOUBLE)
            made, node.output[0] = node.output[0], f"{node.output[0]}{_SUM_SUFFIX}"
            graph.node.append(node)
            add_cast(graph, node.output[0], made, NARROW[dtype])
        return weights

    return prepare


def as_double(array: Any) -> Any:
    """Return an array in float64."""
    return np.asarray(array).astype(np.float64)


def _widen(tensor: TensorProto, change: Change) -> None:
    array = np.ascontiguousarray(change(tensor_to_array(tensor)))
    tensor.CopyFrom(array_to_tensor(array.reshape(tuple(tensor.dims)), tensor.name))


def _graph(graph: GraphProto, code: int, change: Change, weights: dict[str, Any]) -> None:
    """Widen the initializers, some in `weights`, and nodes of a graph."""
    exact = {name for n in graph.node if n.op_type in SIZED for name in n.input[1:]}
    for t in graph.initializer:
        if t.data_type == code and t.name in weights:
            weights[t.name], t.data_type = change(weights[t.name]), _DOUBLE
        elif t.data_type == code:
            _widen(t, as_double if t.name in exact else change)
    for node in graph.node:
        _node(node, code, as_double if exact.intersection(node.output) else change)


def _node(node: NodeProto, code: int, change: Change) -> None:
    for a in node.attribute:
        if a.type == a.INT and a.name in _TYPES and a.i == code:
            a.i = _DOUBLE
        elif a.type == a.TENSOR and a.t.data_type == code:
            _widen(a.t, change if node.op_type == "Constant" else as_double)
        elif a.type == a.GRAPH:
            for info in (*a.g.input, *a.g.output, *a.g.value_info):
                if info.type.tensor_type.elem_type == code:
                    info.type.tensor_type.elem_type = _DOUBLE
            _graph(a.g, code, as_double, {})
        elif node.op_type == "Constant" and a.name.startswith("value_float") and code == NARROW["float32"]:
            number = held_as(a.name, a)
            _widen(number, change)
            a.CopyFrom(make_attribute("value", number))
