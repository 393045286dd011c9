"""How much a constant that many read may be copied: a small file becomes a large one where each gets its own."""

from __future__ import annotations

from typing import Final

from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.protos import tensor_bytes

READ_BY_MANY: Final = "many others read the constant, and each would get its own"
READERS: Final = 8  # each may have a copy, however large it is;
_COPIES: Final = 1 << 22  # bytes of all copies for more of them
_NEAR: Final = 3  # nodes from a constant to what is replaced


def is_read_by_many(constant: Value, copy: int) -> bool:
    """Would a copy of so many bytes for each of its readers be too much?"""
    readers = len(constant.users)
    if readers <= READERS or copy * readers <= _COPIES or not constant.is_stored:
        return False
    return tensor_bytes(*constant.constant_type()) < 2 * copy  # else what is made is no copy of it, but far less


def gives_way(constant: Value, copy: int, anchor: Node) -> bool:
    """Does as much as a copy of so many bytes go, when what `anchor` makes is made otherwise? Then nothing grows."""
    if not constant.is_stored or tensor_bytes(*constant.constant_type()) < copy:
        return False
    reader = constant.only_user
    for _ in range(_NEAR):
        if reader is None or reader is anchor:
            break
        reader = reader.output.only_user if len(reader.outputs) == 1 else None
    return reader is anchor
