"""How much a constant that many read may be copied: a small file becomes a large one where each gets its own."""

from __future__ import annotations

from typing import Final

from onnxopt.graph.value import Value
from onnxopt.protos import tensor_bytes

READ_BY_MANY: Final = "many others read the constant, and each would get its own"
_READERS: Final = 8  # each may have a copy, however large it is;
_COPIES: Final = 1 << 22  # bytes of all copies for more of them


def is_read_by_many(constant: Value, copy: int) -> bool:
    """Would a copy of so many bytes for each of its readers be too much?"""
    readers = len(constant.users)
    if readers <= _READERS or copy * readers <= _COPIES or constant.is_fill:
        return False
    return tensor_bytes(*constant.constant_type()) < 2 * copy  # else what is made is no copy of it, but far less
