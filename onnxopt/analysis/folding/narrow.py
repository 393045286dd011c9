"""Weights stored in fewer bits than used in computation."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from onnx import TensorProto

from onnxopt.graph.node import Node
from onnxopt.proto.messages import Array, tensor_bytes

_DEEP = 16  # nodes between


def is_widened(node: Node, results: Sequence[Array], inside: Collection[Node]) -> bool:
    """Whether a result has as many elements as a constant stored in at most half the bytes.

    Constants are searched from `node` through nodes `inside`. Booleans do not count as weights.
    """
    sizes = {array.size: array.nbytes for array in results}
    stack, seen = [node], {node}
    while stack:
        for v in stack.pop().inputs:
            maker = v.producer if v is not None else None
            if maker is not None and maker in inside:
                if maker not in seen and len(seen) < _DEEP:
                    seen.add(maker)
                    stack.append(maker)
            elif v is not None and v.constant:
                kind, dims = v.constant_type()
                if kind != TensorProto.BOOL and 2 * tensor_bytes(kind, dims) <= sizes.get(math.prod(dims), 0):
                    return True
    return False
