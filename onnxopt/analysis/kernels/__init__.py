"""Numpy kernels for the operators that shape arithmetic and weight reshuffling are made of.

Only operations whose result is the same bits in every correct implementation: data movement, integers, and the
correctly rounded + - * / sqrt of IEEE 754. Everything else is left to a real runtime. They exist so that folding
a model's index arithmetic needs neither a session nor the import of a runtime.

A kernel takes (node, inputs, opset) and returns one array per output, or None where it will not answer.
Results may be zero-stride views (Expand, ConstantOfShape): nothing big is made before it is known to be wanted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from onnxopt.analysis.broadcasting import broadcast_shape
from onnxopt.analysis.kernels import arithmetic, movement  # noqa: F401 - they register theirs
from onnxopt.analysis.kernels.registry import KERNELS, NUMBERS, Inputs, Invalid
from onnxopt.element_types import element_kind
from onnxopt.graph.node import Node
from onnxopt.protos import Array, tensor_bytes

__all__ = ["Invalid", "evaluate", "result_bytes"]

# Their kernels return views.
_VIEWS: Final = frozenset(
    {"Expand", "ConstantOfShape", "Shape", "Size", "Identity", "Transpose", "Slice", "Squeeze", "Unsqueeze"}
)


def exists(op: str) -> bool:
    return op in KERNELS


def evaluate(node: Node, inputs: Inputs, opset: int) -> list[Array] | None:
    """The node's outputs, or None if there is no kernel for these operands.

    Raises Invalid where the node would fail at run time: it stays as it was, and fails where it always did.
    """
    kernel = KERNELS.get(node.op)
    if kernel is None or any(x is not None and element_kind(x) not in NUMBERS for x in inputs):
        return None
    try:
        with np.errstate(all="ignore"):
            results = kernel(node, inputs, opset)
    except (ValueError, IndexError, TypeError, KeyError, AssertionError, ZeroDivisionError, OverflowError):
        return None  # odd operands: let a runtime decide
    return None if results is None else [np.asarray(r) for r in results]


def result_bytes(node: Node, inputs: Inputs) -> int:
    """Bytes that `evaluate` will make. Views cost nothing; what has no kernel is measured by its shape."""
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
    """What Range makes of (start, limit, delta); 0 where they are no integers."""
    if len(operands) != 3 or any(x.size != 1 or element_kind(x) not in "iuf" for x in operands):
        return 0
    if not all(float(x.item()).is_integer() for x in operands):
        return 0
    start, limit, delta = (int(x.item()) for x in operands)
    return max(0, -((start - limit) // delta)) * operands[0].itemsize if delta else 0
