"""Which constants hold the same, found in time linear in what they hold."""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping, Sequence
from typing import Final, TypeVar

import numpy as np
from onnx import TensorProto

from onnxopt.analysis.purity import may_train
from onnxopt.graph.value import Value
from onnxopt.protos import is_external, tensor_bytes

T = TypeVar("T")

MAX_BYTES: Final = 1 << 26
_SAMPLED: Final = 16
_FEW: Final = 256  # bytes
_SOME: Final = 1 << 14  # bytes, which are no sooner hashed than compared


class Contents:
    """Values by what they hold: equal are type, dims and bytes.

    A value is decoded only where another has its type and dims, hashed only where a few of its bytes are another's too,
    and once for as long as it lives. Equal to themselves only are strings, what is larger than `max_bytes`, data
    outside the file, which is not read for this, and statistics of a BatchNormalization in training, into which
    runtimes write.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._asked: dict[Value, Value] = {}
        self._first: dict[Hashable, Value | None] = {}  # by what is known of a value
        self._holders: dict[int, Value] = {}  # by the array, of which several may hold the same one

    def first_like(self, value: Value) -> Value:
        """The first value asked for that holds the same: `value` itself where there was none."""
        found = self._asked.get(value)
        if found is None:
            found = self._asked[value] = self._find(value) if self._comparable(value) else value
        return found

    def _find(self, value: Value) -> Value:
        array = value.held
        if array is not None:
            holder = self._holders.setdefault(id(array), value)
            if holder is not value and holder.held is array:
                return self._asked[holder]
        return first_like(value, self._first, (Value.constant_type, _sample, _digest))

    def _comparable(self, value: Value) -> bool:
        node, tensor = value.producer, value.tensor
        if not value.is_stored:
            return False  # a constant that a node makes is merged with that node
        if node is not None and "value" in node.attributes:
            tensor = node.attributes["value"].t
        if tensor is not None and is_external(tensor):
            return False
        for user in value.users:
            if user.op == "BatchNormalization" and value in user.inputs[3:] and may_train(user):
                return False
        data_type, dims = value.constant_type()
        return data_type != TensorProto.STRING and tensor_bytes(data_type, dims) <= self.max_bytes


def first_like(item: T, seen: MutableMapping[Hashable, T | None], told: Sequence[Callable[[T], Hashable]]) -> T:
    """The first of those seen that is equal to `item` in all that they are `told` apart by, `item` itself where there
    was none. What costs more to tell is asked only where all before it is equal, and once of each."""
    key: Hashable = ()
    first: T | None = item
    for i, tell in enumerate(told):
        key = key, tell(item)
        first = seen.setdefault(key, item)
        if first is item:
            break
        if first is not None and i + 1 < len(told):
            seen[key] = None  # from now on more is told
            seen[key, told[i + 1](first)] = first
    assert first is not None
    return first


def _sample(value: Value) -> bytes:
    """All of its bytes, if these are few, else some: an odd step apart, so that they are not the same byte of each
    element."""
    array = value.glance()
    if array.nbytes <= _FEW:
        return array.tobytes()
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat[:: flat.size // _SAMPLED | 1].tobytes()


def _digest(value: Value) -> bytes:
    size = tensor_bytes(*value.constant_type())
    if size <= _FEW:
        return b""  # the sample is all of it
    return value.glance().tobytes() if size <= _SOME else value.digest()
