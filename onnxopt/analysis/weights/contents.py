"""Detection of constants with equal contents, in time linear in their size."""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping, Sequence
from math import gcd
from typing import Final, TypeVar

import numpy as np
from onnx import TensorProto

from onnxopt.analysis.purity import may_train
from onnxopt.graph.value import Value
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.messages import Array, is_external, tensor_bytes

T = TypeVar("T")

MAX_BYTES: Final = 1 << 26
_FIRST: Final = 16  # elements compared before the rest
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


def distinct(array: Array) -> Array:
    """Return the part of `array` held in memory: an axis with stride 0 gets size 1."""
    return array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]


def is_repeated(array: Array) -> bool:
    """Whether memory holds at most a quarter of the elements. They need not be equal: see `one_element`."""
    return 4 * distinct(array).nbytes <= array.nbytes


def one_element(array: Array) -> Array | None:
    """Return the element (rank 0) bitwise equal to all elements of `array`; None if elements differ, and for
    objects."""
    held = distinct(array)
    if not held.size or element_kind(held) == "S":
        return None
    # Compared as integers: rows of single bytes take ten times as long.
    words = np.ascontiguousarray(held).reshape(-1).view(f"u{gcd(held.itemsize, 8)}").reshape(held.size, -1)
    for few in (words[:_FIRST], words):  # in most arrays the first elements differ
        if not (few == words[0]).all():
            return None
    first: Array = held[(0,) * held.ndim].reshape(())
    return first
