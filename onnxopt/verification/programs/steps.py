"""Stepped floats: results of a quantizer or of rounding to integers, which jump between steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.verification.model.operators import AFFINE, CUTTING, STANDARD, having
from onnxopt.verification.programs.program import Program

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

_MAX_CHANGED: Final = 1 << 22  # elements; of larger tensors, only the scales are perturbed
_STEP_TYPES: Final = {1: np.float32, 10: np.float16}  # by TensorProto.DataType
_ROUNDED: Final = 4 / 3  # a number with all mantissa bits in use
_EXACT_SUFFIX: Final = "\N{RIGHTWARDS ARROW}exact"
# Operators that move numbers of the first operand, or select some.
_KEEPS: Final = (having("moves") - having("joined", "retypes") - {"Pad"}) | having("picks") | {"Relu"}
_SHIFTS: Final = frozenset(("Add", "Sub"))  # of integers: scaling afterwards would round them
_SCALES: Final = (AFFINE - _SHIFTS) | (CUTTING & having("bends"))  # by constants, for all elements alike
_MAKES: Final = having("rounds") | {"DequantizeLinear", "Sign"}


def is_stepped(program: Program, value: str) -> bool:
    """Return whether a value comes from a DequantizeLinear of variable integers, or from rounding to integers.

    Only operators that move, scale or shift may lie between, as in quantization by Round, Clip and Mul.
    """
    are_integers = False
    while value in program.maker and value not in program.fixed:
        node = program.nodes[program.maker[value]]
        if node.domain not in STANDARD:
            return False
        if node.op_type in _MAKES:
            return _varies(program, node.input[0]) and not (are_integers and node.op_type == "DequantizeLinear")
        are_integers |= node.op_type in _SHIFTS
        value = _handed_on(program, node, are_integers=are_integers)
    return False


def _varies(program: Program, name: str) -> bool:
    return not program.is_constant(name) and name not in program.fixed


def _handed_on(program: Program, node: NodeProto, *, are_integers: bool) -> str:
    """Return the operand whose numbers a node moves, scales or shifts alike; "" for none."""
    if node.op_type in _KEEPS:
        return str(node.input[0])
    if node.op_type not in _SCALES | _SHIFTS or (are_integers and node.op_type in ("Mul", "Div")):
        return ""
    reads = [r for r in node.input if _varies(program, r)]
    return reads[0] if len(reads) == 1 else ""


def shake_dequantized(model: ModelProto, change: Callable[[Any], Any]) -> None:
    """Add a perturbation of each constant dequantized number, as for float weights.

    A perturbed scale moves all elements alike; with elements at two breakpoints, only some may jump.
    """
    graph = model.graph
    tensors = {t.name: t for t in graph.initializer}
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        graph.node.append(node)
        if node.op_type != "DequantizeLinear" or any(name not in tensors for name in node.input[:2]):
            continue
        dims = list(tensors[node.input[0]].dims)
        dtype = _STEP_TYPES.get(tensors[node.input[1]].data_type)
        if (
            dtype is None
            or not 1 < math.prod(dims) <= _MAX_CHANGED
            or any(a.name == "output_dtype" for a in node.attribute)
        ):
            continue
        rounded = np.full(dims, _ROUNDED, dtype)
        made, factor = node.output[0], f"{node.output[0]}{_EXACT_SUFFIX} factor"
        graph.node[-1].output[0] = f"{made}{_EXACT_SUFFIX}"
        graph.node.add(op_type="Mul", input=[f"{made}{_EXACT_SUFFIX}", factor], output=[made])
        raw = (change(rounded) / rounded).astype(dtype).tobytes()
        graph.initializer.add(name=factor, dims=dims, data_type=tensors[node.input[1]].data_type, raw_data=raw)
