"""A value: the output of a node or an input or initializer of a graph, read by other nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
from onnx import TensorProto

from onnxopt.proto.messages import Array, array_to_tensor, element_type

if TYPE_CHECKING:
    from onnxopt.graph.graph import Graph
    from onnxopt.graph.node import Node
    from onnxopt.proto.wire import Stored

Dim = int | str | None
Shape = tuple[Dim, ...]
Type = tuple[int, tuple[int, ...]]
_MAX_QUERIED_USERS: Final = 100  # readers; each of them may query all


@lru_cache(1 << 10)
def _shared(data_type: int, dims: tuple[int, ...]) -> Type:
    """Return a shared object for equal types: a network has few different ones."""
    return data_type, dims


class Value:
    """A named value of a scope.

    `users` maps each reading node, nested graphs included, to the number of inputs reading this value. `output_count`
    is the number of times a graph lists the value as output. `dtype` (0: unknown) and `shape` (None: unknown rank) are
    *facts*: a rewrite never changes the contents of a surviving value, so a known fact stays true.
    """

    __slots__ = (
        "_array",
        "_digest",
        "_type",
        "constant",
        "dtype",
        "graph",
        "index",
        "is_input",
        "name",
        "output_count",
        "producer",
        "shape",
        "stored",
        "tensor",
        "unasked",
        "users",
    )

    def __init__(self, name: str, graph: Graph, producer: Node | None = None, index: int = 0) -> None:
        self.name = name
        self.graph = graph
        self.producer = producer
        self.index = index
        self.users: dict[Node, int] = {}
        self.output_count = 0
        self.is_input = False
        self.constant = False  # an initializer that cannot be overridden, or the output of a Constant
        self.tensor: TensorProto | None = None
        self.stored: Stored | None = None  # where in the file the tensor's data stayed; the tensor itself has none then
        self._array: Array | None = None
        self._digest: bytes | None = None
        self._type: Type | None = None
        self.unasked = False  # made by a pass: its type is inferred from the inputs on first query
        self.dtype = 0
        self.shape: Shape | None = None

    @property
    def is_output(self) -> bool:
        return self.output_count > 0

    @property
    def is_used(self) -> bool:
        return len(self.users) > 0 or self.output_count > 0

    @property
    def is_stored(self) -> bool:
        """Whether an initializer or a Constant node holds this constant.

        False for a constant computed by repeating elements (ConstantOfShape, Expand), although the array is known.
        """
        return self.constant and (self.producer is None or self.producer.op == "Constant")

    @property
    def only_user(self) -> Node | None:
        """The single node that reads this value; None for several reading inputs, or for a graph output."""
        if len(self.users) != 1 or self.output_count:
            return None
        (user,) = self.users
        return user

    def feeds_only(self, kind: Callable[[Node], bool]) -> bool:
        """Whether the value is no graph output and `kind` holds for all readers.

        False for more than 100 readers: each reader may ask, and the total time must stay linear.
        """
        return not self.output_count and len(self.users) <= _MAX_QUERIED_USERS and all(map(kind, self.users))

    @property
    def array(self) -> Array:
        """The data of a constant, read-only, decoded on first use. Only for `constant` values."""
        if self._array is None:
            if self.tensor is not None:
                array = self.graph.model.decode(self.tensor, self.stored)
                if not array.flags.aligned:  # data in a mapped file may begin at any offset
                    array = np.require(array, requirements="A")
                    array.flags.writeable = False
                self._array = array
            else:
                assert self.producer is not None, f"{self.name} is not constant"
                self._array = self.producer.constant_array()
        return self._array

    @array.setter
    def array(self, array: Array | None) -> None:
        self._array, self._digest, self._type = array, None, None

    @property
    def known_dtype(self) -> int:
        """The element type if known without inference or decoding; else 0."""
        if self.dtype or not self.constant or (self.tensor is None and self._array is None):
            return self.dtype
        return self.constant_type()[0]

    @property
    def known_shape(self) -> Shape | None:
        """The shape if known without inference or decoding; else None."""
        if self.shape is not None or not self.constant or (self.tensor is None and self._array is None):
            return self.shape
        return self.constant_type()[1]

    @property
    def held(self) -> Array | None:
        """The data of the constant if already decoded or made; else None."""
        return self._array

    def forget(self) -> None:
        """Free the decoded array of a tensor, which can be decoded again."""
        self._array = None

    def glance(self) -> Array:
        """Return the data for a single use: not cached, and maybe unaligned in memory."""
        if self._array is not None:
            return self._array
        if self.tensor is not None and self.stored is not None:
            return self.graph.model.decode(self.tensor, self.stored)
        return self.array

    def digest(self) -> bytes:
        """Return a hash of the constant's bytes, cached. Not for strings, whose arrays hold addresses."""
        if self._digest is None:
            import hashlib

            flat = np.ascontiguousarray(self.glance()).reshape(-1)
            self._digest = hashlib.sha256(flat.view(np.uint8).data).digest()
        return self._digest

    def whole_tensor(self) -> TensorProto:
        """Return the TensorProto of an initializer with its data, from the array or the file if needed."""
        if self.tensor is None:
            self.tensor = array_to_tensor(self.array, self.name)
        if self.stored is None:
            return self.tensor
        whole = TensorProto()
        whole.CopyFrom(self.tensor)
        whole.raw_data = bytes(self.graph.model.bytes_of(self.stored))
        return whole

    def constant_type(self) -> Type:
        """Return (element type, dims) of a constant without decoding its data, cached."""
        if self._type is None:
            if self.tensor is not None:
                self._type = _shared(self.tensor.data_type, tuple(self.tensor.dims[:]))
            else:
                array = self.array if self._array is None else self._array
                self._type = _shared(element_type(array), array.shape)
        return self._type

    def rename(self, name: str) -> None:
        """Rename the value to `name`, which must be free, at its producer and all readers."""
        self.name = name
        if self.producer is not None:
            self.producer.stale = True
        for user in self.users:
            user.stale = True

    def redirect_readers(self, other: Value) -> None:
        """Make every reading node read `other` instead of this value; graph outputs stay."""
        model = self.graph.model
        if model.debug:
            model.check_use(other, other.graph, f"what reads `{self.name}`")
        for user in list(self.users):
            for i in user.places(self):
                user.set_input(i, other)

    def replace_all_uses_with(self, other: Value) -> Value:
        """Make all readers and graph outputs of this value use the equal value `other`. Returns the value to read then.

        The result is `other`, or this value if a scope outputs it under its name. In the latter case the producer of
        `other` now produces this value, and `other` no longer exists. Raises InvariantError if the producer of `other`
        reads this value.
        """
        if other is self:
            return self
        if other.producer is not None and other.producer in self.users:
            raise self.graph.reads_itself(self, other)
        if self.dtype or self.shape is not None:
            self.graph.check_type(self, other)
        self.redirect_readers(other)
        other.learn(self)
        return self.graph.give_out(self, other) if self.output_count else other

    def learn(self, other: Value) -> None:
        """Copy the type of `other`, a value of the same content, where this value's type is unknown."""
        self.dtype = self.dtype or other.dtype
        self.shape = self.shape if self.shape is not None else other.shape

    def __repr__(self) -> str:
        return f"%{self.name}"
