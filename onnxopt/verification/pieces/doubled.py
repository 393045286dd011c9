"""A model with numbers of a given type widened to float64, as far as runtimes have kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from onnxopt.proto.messages import array_to_tensor, attribute_value, make_attribute, make_node, tensor_to_array
from onnxopt.verification.model.nodes import held_as, reads_of
from onnxopt.verification.model.operators import MATRICES, SIZED
from onnxopt.verification.programs.program import add_cast
from onnxopt.verification.programs.runner import Prepare
from onnxopt.verification.run import Failed

# -- convolutions as matrix products ----------------------------------------------------------------------
# y = b + Σ W_k x_k over positions k of the kernel, with x_k the strided slice of the padded x at offset k. A Conv stays
# before opset 11, and if the kernel is computed or padding depends on sizes.

_SINCE: Final = 11  # opset with operands instead of attributes in Pad and Slice
_PLACES: Final = 64  # positions in a kernel
_LAST: Final = (1 << 31) - 1


def as_products(model: ModelProto, weights: dict[str, Any]) -> dict[str, Any]:
    """Replace the Convs of the main graph in place. Returns the external weights still read.

    weights: arrays of external initializers.
    """
    graph = model.graph
    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)
    if opset < _SINCE or all(node.op_type != "Conv" for node in graph.node):
        return weights
    known = {t.name: t for t in graph.initializer}
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        name = node.input[1] if node.op_type == "Conv" and not node.domain else ""
        kernel = weights[name] if name in weights else tensor_to_array(known[name]) if name in known else None
        if kernel is None or not _Products(graph, node, kernel).write():
            graph.node.append(node)
    read = {name for node in graph.node for name in reads_of(node)}
    kept = [t for t in graph.initializer if t.name not in known or t.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return {name: array for name, array in weights.items() if name in read}


class _Products:
    """A Conv written as equivalent nodes, with a matrix product for each group. `kernel`: float64[M, C / group, …]."""

    def __init__(self, graph: GraphProto, conv: NodeProto, kernel: Any) -> None:
        self.graph, self.conv, self.kernel = graph, conv, kernel
        self.attributes = {a.name: attribute_value(a) for a in conv.attribute}
        self.sizes = kernel.shape[2:]
        self.group = self.attributes.get("group", 1)

    def _is_explicit(self, pads: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> bool:
        """Return whether the attributes hold all numbers, and the kernel has few positions."""
        axes, padding = len(self.sizes), self.attributes.get("auto_pad", "NOTSET")
        if not axes or (len(pads), len(strides), len(dilations)) != (2 * axes, axes, axes) or min(pads) < 0:
            return False
        is_padded = padding == "NOTSET" or (padding == "VALID" and not any(pads))
        return is_padded and math.prod(self.sizes) <= _PLACES

    def write(self) -> bool:
        """Add the nodes to the graph. Returns False, unchanged, if unsupported."""
        axes = len(self.sizes)
        defaults = {"pads": [0] * 2 * axes, "strides": [1] * axes, "dilations": [1] * axes}
        pads, strides, dilations = (list(self.attributes.get(name, default)) for name, default in defaults.items())
        if not self._is_explicit(pads, strides, dilations):
            return False
        rows, columns = self.kernel.shape[0] // self.group, self.kernel.shape[1]
        matrices = self.kernel.reshape(self.group, rows, columns, *self.sizes)
        x = self.conv.input[0]
        if any(pads):
            x = self._node("Pad", x, self._ints([0, 0, *pads[:axes], 0, 0, *pads[axes:]]))
        total = shape = ""
        for k in np.ndindex(*self.sizes):
            under = self._under(x, k, strides, dilations)
            shape = shape or self._node("Shape", under)
            read = self._node("Reshape", under, self._ints([0, self.group, columns, -1]))
            product = self._node("MatMul", self._constant(np.ascontiguousarray(matrices[(..., *k)])), read)
            total = self._node("Add", total, product) if total else product
        if len(self.conv.input) > 2 and self.conv.input[2]:
            bias = self._node("Reshape", self.conv.input[2], self._ints([self.group, rows, 1]))
            total = self._node("Add", total, bias)
        sizes = self._node("Slice", shape, *map(self._ints, ([2], [_LAST], [0])))
        shape = self._node("Concat", self._ints([0, self.kernel.shape[0]]), sizes, axis=0)
        self._put("Reshape", [total, shape], self.conv.output[0], {})
        return True

    def _under(self, x: str, k: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> str:
        """Add the Slice of `x` under the kernel's position `k`. Returns the result's name."""
        starts = [i * d for i, d in zip(k, dilations)]
        window = [(size - 1) * d for size, d in zip(self.sizes, dilations)]
        ends = [s - w or _LAST for s, w in zip(starts, window)]
        return self._node("Slice", x, *map(self._ints, (starts, ends, range(2, len(k) + 2), strides)))

    def _fresh(self) -> str:
        count = len(self.graph.node) + len(self.graph.initializer)
        return f"{self.conv.output[0]}\N{RIGHTWARDS ARROW}{count}"

    def _node(self, op: str, *inputs: str, **attributes: Any) -> str:
        made = self._fresh()
        self._put(op, inputs, made, attributes)
        return made

    def _put(self, op: str, inputs: Iterable[str], made: str, attributes: Mapping[str, Any]) -> None:
        node = make_node(op, "", "", attributes)
        node.input.extend(inputs)
        node.output.append(made)
        self.graph.node.append(node)

    def _constant(self, array: Any) -> str:
        name = self._fresh()
        self.graph.initializer.append(array_to_tensor(array, name))
        return name

    def _ints(self, numbers: Iterable[int]) -> str:
        return self._constant(np.array([*numbers], np.int64))


# -- wider numbers ----------------------------------------------------------------------------------------

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
        graph = model.graph
        exact = {name for n in graph.node if n.op_type in SIZED for name in n.input[1:]}
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
        for node in (n for function in model.functions for n in function.node):
            _node(node, code, as_double)
        return as_products(model, weights)

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


def _graph(graph: GraphProto, code: int) -> None:
    """Widen a body."""
    for t in graph.initializer:
        if t.data_type == code:
            _widen(t, as_double)
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type == code:
            info.type.tensor_type.elem_type = _DOUBLE
    for node in graph.node:
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
            number = held_as(a.name, a)
            _widen(number, change)
            a.CopyFrom(make_attribute("value", number))
