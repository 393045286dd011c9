"""Floats that a quantizer made: they are steps, and jump from one to another as its integers do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.verification.pieces.program import Program

if TYPE_CHECKING:
    from onnx import ModelProto

_LARGE: Final = 1 << 22  # numbers: of more, their scales change only
_FLOATS: Final = {1: np.float32, 10: np.float16}  # by TensorProto.DataType
_ROUNDED: Final = 4 / 3  # a number that has all its bits
_EXACT: Final = "\N{RIGHTWARDS ARROW}exact"
# Operators that hand on the numbers of what they read first, or some of them.
_KEEPS: Final = frozenset((
    "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split", "Gather", "Expand", "Tile",
    "MaxPool", "Relu", "DepthToSpace", "SpaceToDepth",
))  # fmt: skip


def is_dequantized(program: Program, value: str) -> bool:
    """Does it come of a DequantizeLinear whose integers can change, and only by being moved?"""
    while value in program.maker and value not in program.fixed:
        node = program.nodes[program.maker[value]]
        if node.domain not in ("", "ai.onnx") or not (node.op_type == "DequantizeLinear" or node.op_type in _KEEPS):
            return False
        value = node.input[0]
        if node.op_type == "DequantizeLinear":
            return not program.is_constant(value) and value not in program.fixed
    return False


def shake_dequantized(model: ModelProto, change: Callable[[Any], Any]) -> None:
    """Have each number that is dequantized of a constant changed as weights are. One scale moves all of a tensor alike;
    what is on an edge in two places may jump in one of them."""
    graph = model.graph
    tensors = {t.name: t for t in graph.initializer}
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        graph.node.append(node)
        if node.op_type != "DequantizeLinear" or any(name not in tensors for name in node.input[:2]):
            continue
        dims = list(tensors[node.input[0]].dims)
        dtype = _FLOATS.get(tensors[node.input[1]].data_type)
        if dtype is None or not 1 < math.prod(dims) <= _LARGE or any(a.name == "output_dtype" for a in node.attribute):
            continue
        rounded = np.full(dims, _ROUNDED, dtype)
        made, factor = node.output[0], f"{node.output[0]}{_EXACT} factor"
        graph.node[-1].output[0] = f"{made}{_EXACT}"
        graph.node.add(op_type="Mul", input=[f"{made}{_EXACT}", factor], output=[made])
        raw = (change(rounded) / rounded).astype(dtype).tobytes()
        graph.initializer.add(name=factor, dims=dims, data_type=tensors[node.input[1]].data_type, raw_data=raw)
