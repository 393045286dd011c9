"""The cost of a node before execution: bytes of its results, and scalar operations."""

from __future__ import annotations

from dataclasses import dataclass

from onnxopt.analysis import types
from onnxopt.analysis.measures.flops import operations
from onnxopt.graph.node import Node
from onnxopt.proto.messages import tensor_bytes


@dataclass(frozen=True)
class Work:
    bytes: int
    operations: int


def work(node: Node) -> Work | None:
    """Return an upper bound; None if a size is unknown."""
    made = 0
    for v in node.outputs:
        if v is None:
            continue
        shape, data_type = types.static_shape(v), types.dtype(v)
        if shape is None or not data_type:
            return None
        made += tensor_bytes(data_type, shape)
    moved = made
    for v in node.inputs:
        if v is not None:
            shape, data_type = types.static_shape(v), types.dtype(v)
            if shape is None or not data_type:
                return None
            moved += tensor_bytes(data_type, shape)
    return Work(made, max(moved, operations(node)))
