"""Numpy kernels for operators of shape arithmetic and weight layout.

Only operations with bitwise equal results in every correct implementation: data movement, integers, and the correctly
rounded + - * / sqrt of IEEE 754. All others are left to a runtime. The kernels fold index arithmetic without a session
and without importing a runtime.

A kernel takes (node, inputs, opset) and returns an array for each output, or None if it does not support the operands.
Results may be zero-stride views (Expand, ConstantOfShape): large arrays are materialized only when needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from onnxopt.analysis.broadcasting import broadcast_shape
from onnxopt.analysis.kernels import arithmetic, movement  # noqa: F401 - they register theirs
from onnxopt.analysis.kernels.registry import KERNELS, NUMBERS, Inputs, Invalid
from onnxopt.graph.node import Node
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.messages import Array, tensor_bytes

__all__ = ["Invalid", "evaluate", "result_bytes"]

# Kernels that return views.
_VIEWS: Final = frozenset(
    {"Expand", "ConstantOfShape", "Shape", "Size", "Identity", "Transpose", "Slice", "Squeeze", "Unsqueeze"}
)


def exists(op: str) -> bool:
    return op in KERNELS


def evaluate(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    """Return the node's outputs, or None if no kernel supports the operands.

    Raises Invalid if the node would fail at run time: it must stay, and fail as before.
    """
    kernel = KERNELS.get(node.op)
    if kernel is None or any(x is not None and element_kind(x) not in NUMBERS for x in inputs):
        return None
    try:
        with np.errstate(all="ignore"):
            results = kernel(node, inputs, opset)
    except (ValueError, IndexError, TypeError, KeyError, AssertionError, ZeroDivisionError, OverflowError):
        return None  # unusual operands are left to a runtime
    return None if results is None else [np.asarray(r) for r in results]


def result_bytes(node: Node, inputs: Inputs) -> int:
    """Return the bytes allocated by `evaluate`: 0 for views and without a kernel."""
    if node.op in _VIEWS or not exists(node.op):
        return 0
    arrays = [x for x in inputs if x is not None]
    if node.op == "Range":
        return _range_bytes(arrays)
    if node.op == "NonZero":
        return sum(8 * x.size * max(1, x.ndim) for x in arrays)
    if node.op == "Tile" and len(arrays) == 2:
        return arrays[0].nbytes * max(0, math.prod(int(r) for r in arrays[-1].reshape(-1)))
    if node.op == "Gather" and len(arrays) == 2:
        axis = int(node.attr("axis"))
        size = arrays[0].shape[axis] if -arrays[0].ndim <= axis < arrays[0].ndim else 1
        return arrays[0].nbytes // max(1, size) * arrays[1].size
    try:
        shape = broadcast_shape(*(x.shape for x in arrays))
    except ValueError:
        return sum(x.nbytes for x in arrays)
    if node.op == "Cast":
        return tensor_bytes(node.attr("to"), shape)
    return max(math.prod(shape) * max(x.itemsize for x in arrays), sum(x.nbytes for x in arrays)) if arrays else 0


def _range_bytes(operands: Sequence[Array]) -> int:
    """Return the bytes of Range(start, limit, delta); 0 if they are not integers."""
    if len(operands) != 3 or any(x.size != 1 or element_kind(x) not in "iuf" for x in operands):
        return 0
    if not all(float(x.item()).is_integer() for x in operands):
        return 0
    start, limit, delta = (int(x.item()) for x in operands)
    return max(0, -((start - limit) // delta)) * operands[0].itemsize if delta else 0
