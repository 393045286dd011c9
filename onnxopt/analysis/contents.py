"""Which constants hold the same, found in time linear in what they hold."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.graph.value import Value
from onnxopt.protos import is_external, tensor_bytes

MAX_BYTES: Final = 1 << 26
_SAMPLED: Final = 16


class Contents:
    """Values by what they hold: equal are type, dims and bytes.

    A value is decoded only where another has its type and dims, hashed only where a few of its bytes are another's too,
    and once for as long as it lives. Equal to themselves only are strings, what is larger than `max_bytes`, data
    outside the file, which is not read for this, and weights of a DequantizeLinear, which runtimes fuse one by one.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._asked: dict[Value, Value] = {}
        self._first: dict[Hashable, Value] = {}  # by what is known of a value, the more the more others are like it

    def first_like(self, value: Value) -> Value:
        """The first value asked for that holds the same: `value` itself where there was none."""
        found = self._asked.get(value)
        if found is None:
            found = self._asked[value] = self._find(value) if self._comparable(value) else value
        return found

    def _find(self, value: Value) -> Value:
        key: Hashable = ()
        first = value
        for tell in (Value.constant_type, _sample, Value.digest):
            if key in self._first:  # it was told apart by less so far
                other = self._first[key]
                self._first.setdefault((key, tell(other)), other)
            key = key, tell(value)
            first = self._first.setdefault(key, value)
            if first is value:
                break
        return first

    def _comparable(self, value: Value) -> bool:
        node, tensor = value.producer, value.tensor
        if not value.constant or (node is not None and node.op != "Constant"):
            return False  # a fill is known, but not stored: whoever merges nodes merges it
        if node is not None and "value" in node.attributes:
            tensor = node.attributes["value"].t
        if tensor is not None and is_external(tensor):
            return False
        if any(user.op == "DequantizeLinear" and user.inputs[0] is value for user in value.users):
            return False
        data_type, dims = value.constant_type()
        return data_type != TensorProto.STRING and tensor_bytes(data_type, dims) <= self.max_bytes


def _sample(value: Value) -> bytes:
    """Some of its bytes: an odd step apart, so that they are not the same byte of each element."""
    flat = np.ascontiguousarray(value.array).reshape(-1).view(np.uint8)
    return flat[:: flat.size // _SAMPLED | 1].tobytes()
