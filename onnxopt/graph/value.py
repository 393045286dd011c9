"""A value: what one node produces (or a graph is given) and others read."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
from onnx import TensorProto

from onnxopt.protos import Array, array_to_tensor, element_type

if TYPE_CHECKING:
    from onnxopt.graph.graph import Graph
    from onnxopt.graph.node import Node
    from onnxopt.wire import Stored

Dim = int | str | None
Shape = tuple[Dim, ...]
Type = tuple[int, tuple[int, ...]]
_MANY: Final = 100  # readers, each of which may ask for all


@lru_cache(1 << 10)
def _shared(data_type: int, dims: tuple[int, ...]) -> Type:
    """One object for what is of one type: a network has few."""
    return data_type, dims


class Value:
    """One name in one scope.

    `users` maps each reading node, in nested graphs too, to how many of its inputs read this value, so "used
    once" and "dead" are right by construction. `output_count` is how often a graph lists it as output.
    `dtype` (0 = unknown) and `shape` (None = unknown rank) are *facts*: a rewrite never changes what a
    surviving value holds, so facts learnt once stay true; a new value merely lacks them.
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
        self.constant = False  # an initializer nobody may override, or the output of Constant
        self.tensor: TensorProto | None = None
        self.stored: Stored | None = None  # where the tensor's data stayed, which it does not hold then
        self._array: Array | None = None
        self._digest: bytes | None = None
        self._type: Type | None = None
        self.unasked = False  # made by a pass: what is known of the inputs says its type, once somebody asks
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
        """Does an initializer or a Constant node hold this constant?

        False for a constant that a node makes by repeating fewer elements (ConstantOfShape, Expand): its array is
        known, and its elements may differ.
        """
        return self.constant and (self.producer is None or self.producer.op == "Constant")

    @property
    def only_user(self) -> Node | None:
        """The one node that reads this value, or None if it is read more than once or is a graph output."""
        if len(self.users) != 1 or self.output_count:
            return None
        return next(iter(self.users))

    def feeds_only(self, kind: Callable[[Node], bool]) -> bool:
        """Is it no graph output, and is all that reads it of this kind? Of more than a hundred readers that is not
        known: each of them may ask, and time stays linear."""
        return not self.output_count and len(self.users) <= _MANY and all(map(kind, self.users))

    @property
    def array(self) -> Array:
        """The constant's data, read-only. Only for `constant` values; decoded on first use."""
        if self._array is None:
            if self.tensor is not None:
                array = self.graph.model.decode(self.tensor, self.stored)
                if not array.flags.aligned:  # it begins anywhere in a file
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
        """The element type, if it is known without asking inference, or decoding anything; else 0."""
        if self.dtype or not self.constant or (self.tensor is None and self._array is None):
            return self.dtype
        return self.constant_type()[0]

    @property
    def known_shape(self) -> Shape | None:
        """The same for the shape; None if it is not known."""
        if self.shape is not None or not self.constant or (self.tensor is None and self._array is None):
            return self.shape
        return self.constant_type()[1]

    @property
    def held(self) -> Array | None:
        """The constant's data, if it was decoded, or made, already."""
        return self._array

    def forget(self) -> None:
        """Let go of what was decoded of a tensor: nobody reads it any more, and who does can read it again."""
        self._array = None

    def glance(self) -> Array:
        """As `array`, to be looked at once: of what stayed in a file its pages, wherever they begin, and nothing is
        kept."""
        if self._array is not None:
            return self._array
        if self.tensor is not None and self.stored is not None:
            return self.graph.model.decode(self.tensor, self.stored)
        return self.array

    def digest(self) -> bytes:
        """A hash of the constant's bytes, made on first use. Not for strings, of which an array holds the addresses."""
        if self._digest is None:
            import hashlib

            flat = np.ascontiguousarray(self.glance()).reshape(-1)
            self._digest = hashlib.sha256(flat.view(np.uint8).data).digest()
        return self._digest

    def whole_tensor(self) -> TensorProto:
        """The TensorProto of an initializer, made from its array if it is new, with its data if they stayed in a
        file."""
        if self.tensor is None:
            self.tensor = array_to_tensor(self.array, self.name)
        if self.stored is None:
            return self.tensor
        whole = TensorProto()
        whole.CopyFrom(self.tensor)
        whole.raw_data = bytes(self.graph.model.bytes_of(self.stored))
        return whole

    def constant_type(self) -> Type:
        """(element type, dims) of a constant, without decoding its data. Read on first use: many rules ask."""
        if self._type is None:
            if self.tensor is not None:
                self._type = _shared(self.tensor.data_type, tuple(self.tensor.dims[:]))
            else:
                array = self.array if self._array is None else self._array
                self._type = _shared(element_type(array), array.shape)
        return self._type

    def rename(self, name: str) -> None:
        """Be called `name`, which must be free, wherever the value is made and read."""
        self.name = name
        if self.producer is not None:
            self.producer.stale = True
        for user in self.users:
            user.stale = True

    def redirect_readers(self, other: Value) -> None:
        """Every node that reads this value reads `other` instead; graph outputs stay."""
        model = self.graph.model
        if model.debug:
            model.check_use(other, other.graph, f"what reads `{self.name}`")
        for user in list(self.users):
            for i in user.places(self):
                user.set_input(i, other)

    def replace_all_uses_with(self, other: Value) -> Value:
        """Every node and graph output that reads this value reads `other` instead; `other` computes the same.

        Returns the value to read from now on: `other`, or this one. An output of a scope keeps its name: what made
        `other` makes this value then, and `other` is no more. Raises InvariantError where what makes `other` reads this
        value: it would read itself.
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
        """Take over the type of `other`, which is the same by content, as far as this value's is unknown."""
        self.dtype = self.dtype or other.dtype
        self.shape = self.shape if self.shape is not None else other.shape

    def __repr__(self) -> str:
        return f"%{self.name}"
