"""Convolutions written as matrix products, as runtimes have no float64 kernels for Conv.

y = b + Σ W_k x_k over positions k of the kernel, with x_k the strided slice of the padded x at offset k. A Conv stays
before opset 11, and if the kernel is computed or padding depends on sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.proto.messages import array_to_tensor, attribute_value, make_node, tensor_to_array
from onnxopt.verification.model.order import reads_of

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

_SINCE: Final = 11  # opset with operands instead of attributes in Pad and Slice
_PLACES: Final = 64  # positions in a kernel
_BYTES: Final = 1 << 26  # bytes of a kernel with its groups in a single matrix
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
    for i, tensor in reversed([*enumerate(graph.initializer)]):
        if tensor.name in known and tensor.name not in read:
            del graph.initializer[i]
    return {name: array for name, array in weights.items() if name in read}


class _Products:
    """A Conv written as equivalent nodes. `kernel`: float64[M, C / group, …]."""

    def __init__(self, graph: GraphProto, conv: NodeProto, kernel: Any) -> None:
        self.graph, self.conv, self.kernel = graph, conv, kernel
        self.attributes = {a.name: attribute_value(a) for a in conv.attribute}
        self.sizes = kernel.shape[2:]
        self.group = self.attributes.get("group", 1)

    def write(self) -> bool:
        """Add the nodes to the graph. Returns False, unchanged, if unsupported."""
        axes = len(self.sizes)
        pads, strides, dilations = (
            list(self.attributes.get(name, default))
            for name, default in (("pads", [0] * 2 * axes), ("strides", [1] * axes), ("dilations", [1] * axes))
        )
        if not axes or (len(pads), len(strides), len(dilations)) != (2 * axes, axes, axes) or min(pads) < 0:
            return False
        padding = self.attributes.get("auto_pad", "NOTSET")
        if padding != "NOTSET" and (padding != "VALID" or any(pads)):
            return False
        is_channelwise = self.kernel.shape[:2] == (self.group, 1)
        matrices = self.kernel if self.group == 1 or is_channelwise else self._in_one()
        if matrices is None or math.prod(self.sizes) > _PLACES or matrices.nbytes > _BYTES:
            return False

        x = self.conv.input[0]
        if any(pads):
            x = self._node("Pad", x, self._ints([0, 0, *pads[:axes], 0, 0, *pads[axes:]]))
        window = [(size - 1) * d for size, d in zip(self.sizes, dilations)]
        total = shape = ""
        for k in np.ndindex(*self.sizes):
            starts = [i * d for i, d in zip(k, dilations)]
            ends = [s - w or _LAST for s, w in zip(starts, window)]
            under = self._node("Slice", x, *map(self._ints, (starts, ends, range(2, axes + 2), strides)))
            shape = shape or self._node("Shape", under)
            columns = self._node("Reshape", under, self._ints([0, 0, -1]))
            matrix = self._constant(np.ascontiguousarray(matrices[(slice(None), slice(None), *k)]))
            product = self._node("Mul", matrix, columns) if is_channelwise else self._node("MatMul", matrix, columns)
            total = self._node("Add", total, product) if total else product
        if len(self.conv.input) > 2 and self.conv.input[2]:
            total = self._node("Add", total, self._node("Reshape", self.conv.input[2], self._ints([-1, 1])))
        sizes = self._node("Slice", shape, *map(self._ints, ([2], [_LAST], [0])))
        shape = self._node("Concat", self._ints([0, self.kernel.shape[0]]), sizes, axis=0)
        self._put("Reshape", [total, shape], self.conv.output[0], {})
        return True

    def _in_one(self) -> Any:
        """Return a block-diagonal kernel of all groups; None if large."""
        rows, columns = self.kernel.shape[0] // self.group, self.kernel.shape[1]
        shape = (self.kernel.shape[0], columns * self.group, *self.sizes)
        if self.kernel.itemsize * math.prod(shape) > _BYTES:
            return None
        found = np.zeros(shape, self.kernel.dtype)
        for g in range(self.group):
            mine = slice(g * rows, (g + 1) * rows)
            found[mine, g * columns : (g + 1) * columns] = self.kernel[mine]
        return found

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
