"""Which constants hold the same, found in time linear in what they hold."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from onnx import TensorProto

from onnxopt.graph.value import Value
from onnxopt.protos import is_external, tensor_bytes

MAX_BYTES: Final = 1 << 26


class Contents:
    """Values by what they hold: equal are type, dims and bytes.

    A value is decoded and hashed only where another has its type and dims, and once for as long as it lives. Equal to
    themselves only are strings, what is larger than `max_bytes`, data outside the file, which is not read for this,
    and weights of a DequantizeLinear, which runtimes fuse one by one.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._asked: dict[Value, Value] = {}
        self._first: dict[Hashable, Value] = {}
        self._equal: dict[Hashable, Value] = {}

    def first_like(self, value: Value) -> Value:
        """The first value asked for that holds the same: `value` itself where there was none."""
        found = self._asked.get(value)
        if found is None:
            found = self._asked[value] = self._find(value) if self._comparable(value) else value
        return found

    def _find(self, value: Value) -> Value:
        kind = value.constant_type()
        first = self._first.setdefault(kind, value)
        if first is value:
            return value
        self._equal.setdefault((kind, first.digest), first)
        return self._equal.setdefault((kind, value.digest), value)

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
