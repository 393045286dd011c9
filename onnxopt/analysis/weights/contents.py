"""Detection of constants with equal contents, in time linear in their size."""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping, Sequence
from typing import Final, TypeVar

import numpy as np
from onnx import TensorProto

from onnxopt.analysis.purity import may_train
from onnxopt.graph.value import Value
from onnxopt.proto.messages import is_external, tensor_bytes

T = TypeVar("T")

MAX_BYTES: Final = 1 << 26
_SAMPLED: Final = 16
_SMALL_BYTES: Final = 256  # bytes
_SOME: Final = 1 << 14  # bytes; above, hashing is faster than comparing


class Contents:
    """Values by contents: equal type, dims and bytes.

    A value is decoded only if another has its type and dims, and hashed once, only if a few sampled bytes are equal,
    too.
    Never equal to others: strings, constants above `max_bytes`, external data (not read), and statistics of a
    BatchNormalization in training, updated by runtimes.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._asked: dict[Value, Value] = {}
        self._first: dict[Hashable, Value | None] = {}  # by key
        self._holders: dict[int, Value] = {}  # by id of the array, which several values may share

    def first_like(self, value: Value) -> Value:
        """Return the first queried value of equal contents, or `value` itself."""
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
            return False  # a computed constant is merged with its node
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
    """Return the first item in `seen` with equal keys, or `item` itself.

    `told`: key functions, cheap ones first; each is called once for an item, and only if all earlier keys are equal.
    """
    key: Hashable = ()
    first: T | None = item
    for i, tell in enumerate(told):
        key = key, tell(item)
        first = seen.setdefault(key, item)
        if first is item:
            break
        if first is not None and i + 1 < len(told):
            seen[key] = None  # from now on the next key decides
            seen[key, told[i + 1](first)] = first
    assert first is not None
    return first


def _sample(value: Value) -> bytes:
    """Return all bytes if few, else some at an odd stride, to sample different bytes of the elements."""
    array = value.glance()
    if array.nbytes <= _SMALL_BYTES:
        return array.tobytes()
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat[:: flat.size // _SAMPLED | 1].tobytes()


def _digest(value: Value) -> bytes:
    size = tensor_bytes(*value.constant_type())
    if size <= _SMALL_BYTES:
        return b""  # the sample is complete
    return value.glance().tobytes() if size <= _SOME else value.digest()
