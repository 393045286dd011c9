"""Limits on copies of constants with many readers: small files must not become large."""

from __future__ import annotations

from typing import Final

from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.proto.messages import tensor_bytes

READ_BY_MANY: Final = "many others read the constant, and each would get its own"
READERS: Final = 8  # readers that may each have a copy of any size
_COPIES: Final = 1 << 22  # bytes of all copies for more readers
_MAX_DISTANCE: Final = 3  # nodes from a constant to the replaced node


def is_read_by_many(constant: Value, copy: int) -> bool:
    """Whether copies of `copy` bytes for each reader would be too much."""
    readers = len(constant.users)
    if readers <= READERS or copy * readers <= _COPIES or not constant.is_stored:
        return False
    return tensor_bytes(*constant.constant_type()) < 2 * copy  # far smaller results are no copies


def gives_way(constant: Value, copy: int, anchor: Node) -> bool:
    """Whether replacing `anchor` removes as much as a copy of `copy` bytes adds."""
    if not constant.is_stored or tensor_bytes(*constant.constant_type()) < copy:
        return False
    reader = constant.only_user
    for _ in range(_MAX_DISTANCE):
        if reader is None or reader is anchor:
            break
        reader = reader.output.only_user if len(reader.outputs) == 1 else None
    return reader is anchor
