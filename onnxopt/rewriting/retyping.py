"""Gives values a narrower element type, and inserts a Cast between a value and its readers of the other type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from onnxopt.analysis import types
from onnxopt.analysis.narrowing import RESULT_TYPE
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node, producer
from onnxopt.graph.structure import interface_of
from onnxopt.graph.value import Value
from onnxopt.proto.element_types import BY_CODE
from onnxopt.proto.messages import Array, make_node

WIDE_SIDE, NARROW_SIDE = 0, 1  # the ends of a network of types
K = TypeVar("K")


class Plan(ABC, Generic[K]):
    """Chooses values that change from element type `wide` to `narrow`, with their producers and readers.

    K: what changes as one, a node or a group of its operands. `chosen`: those to convert.
    """

    wide: int
    narrow: int
    interface: set[Value]  # inputs and outputs of the root that become narrow
    chosen: Collection[K] = ()

    def __init__(self, model: Model, scopes: Sequence[Graph]) -> None:
        """`scopes`: those that may change."""
        self.model, self.open = model, scopes

    @abstractmethod
    def values(self) -> Iterator[Value]:
        """Yield the wide values in order."""

    @abstractmethod
    def maker(self, value: Value) -> K | None:
        """Return what has to be converted to make a value narrow, or None."""

    @abstractmethod
    def reader(self, node: Node, index: int) -> K | None:
        """Return what has to be converted for a node to read an operand narrow, or None."""

    @abstractmethod
    def constant(self, value: Value) -> Array:
        """Return the data of a stored constant in the narrow type."""

    @abstractmethod
    def fill(self, node: Node) -> Array:
        """Return the value of a ConstantOfShape in the narrow type."""

    def is_cast(self, node: Node) -> bool:
        """Whether a node is a Cast to the narrow type, and reads either type."""
        return node.op == "Cast" and node.attr("to") == self.narrow

    def source(self, value: Value) -> Value | None:
        """Return the narrow value that a Cast widens to `value`, or None."""
        cast = producer(value, "Cast")
        return cast.inputs[0] if cast is not None and types.dtype(cast.inputs[0]) == self.narrow else None

    def star(self, value: Value, vertex: Mapping[K, int]) -> tuple[int, set[int]]:
        """Return (vertex of a value's producer, vertices of its readers): one Cast serves readers of the other type."""
        maker, readers = self.maker(value), set[int]()
        side = WIDE_SIDE if maker is None else vertex.get(maker, WIDE_SIDE)
        # An output has the type of its producer; a Cast behind it is counted.
        if maker is None and ((value.producer is None and value in self.interface) or self.source(value) is not None):
            side = NARROW_SIDE
        for node in value.users:
            for reader in [self.reader(node, i) for i in node.places(value)]:
                stays = NARROW_SIDE if self.is_cast(node) else WIDE_SIDE
                readers.add(stays if reader is None else vertex.get(reader, WIDE_SIDE))
        if value.is_output:
            readers.add(NARROW_SIDE if value in self.interface else WIDE_SIDE)
        return side, readers


class Retyping:
    """Carries out a plan. A value with readers of both types is cast once, in its own scope."""

    def __init__(self, plan: Plan[Any]) -> None:
        self.plan = plan
        self.model = plan.model
        self.casts: dict[Value, Value] = {}
        self.constants: dict[Value, Value] = {}
        self.changed: set[tuple[Graph, str]] = set()  # names of values with a changed type: scopes may share names

    def apply(self) -> None:
        plan = self.plan
        values = [v for v in dict.fromkeys(plan.values()) if not v.is_stored]
        made = {v: plan.maker(v) in plan.chosen for v in values}
        for value in values:
            if made[value]:
                self._set_type(value)
        for scope in plan.open:
            for node in scope:
                self._read_constants(node)
        for value in values:
            self._retype(value, made[value])
        self._declare()

    def _read_constants(self, node: Node) -> None:
        for i, v in enumerate(node.inputs):
            if v is not None and v.is_stored and types.dtype(v) == self.plan.wide and self._takes(node, i):
                node.set_input(i, self._constant(v))

    def _takes(self, node: Node, index: int) -> bool:
        return self.plan.reader(node, index) in self.plan.chosen

    def _set_type(self, value: Value) -> None:
        """Set the attribute with the result type of an operator, if any."""
        node = value.producer
        attribute = RESULT_TYPE.get(node.op) if node is not None else None
        if node is not None and attribute is not None:
            node.set_attr(attribute, self.plan.fill(node) if attribute == "value" else self.plan.narrow)

    def _constant(self, value: Value) -> Value:
        if value not in self.constants:
            array, name = self.plan.constant(value), BY_CODE[self.plan.narrow].name
            self.constants[value] = value.graph.constant(array, f"{value.name}_{name}", value.producer)
        return self.constants[value]

    def _retype(self, value: Value, is_made_narrow: bool) -> None:
        """Give a value its type, and its readers the value in theirs."""
        given = value in self.plan.interface
        if value.is_output and value.producer is not None and is_made_narrow != given:
            self._feed(value, self._give_out(value, is_made_narrow), given)
            return
        # A Cast to the wide type may read a converted value by now.
        self._feed(value, None if is_made_narrow else self.plan.source(value), is_made_narrow or given)

    def _feed(self, value: Value, other: Value | None, is_narrow: bool) -> None:
        """Give each reader of `value` its type. `is_narrow`: type of `value`; `other`: the value in the other type."""
        if is_narrow:
            value.dtype = self.plan.narrow
            self.changed.add((value.graph, value.name))
            if value.constant:
                value.array, value.constant = None, False  # repeated elements, known in the wide type
        for user in list(value.users):
            for i in user.places(value):
                if self._takes(user, i) != is_narrow and not self.plan.is_cast(user):
                    user.set_input(i, other or self._cast(value, not is_narrow))

    def _give_out(self, value: Value, is_narrow: bool) -> Value:
        """Keep the type of graph output `value`: the producer makes an inner value, cast to the output. Returns the
        inner value."""
        graph, node, index = value.graph, value.producer, value.index
        assert node is not None
        inner = self._new(value, is_narrow)
        cast = Node(make_node("Cast", "", "", {"to": self._code(not is_narrow)}), [inner], [])
        graph.insert(cast, node.next)
        graph.take_over(value, cast)
        node.outputs[index] = inner
        inner.producer, inner.index = node, index
        return inner

    def _cast(self, value: Value, is_narrow: bool) -> Value:
        """Return the value in the other type."""
        if value not in self.casts:
            made, graph, behind = self._new(value, is_narrow), value.graph, value.producer
            node = Node(make_node("Cast", "", "", {"to": self._code(is_narrow)}), [value], [made])
            graph.insert(node, behind.next if behind is not None else graph.first)
            self.casts[value] = made
        return self.casts[value]

    def _new(self, value: Value, is_narrow: bool) -> Value:
        code = self._code(is_narrow)
        made = Value(self.model.names.fresh(f"{value.name}_{BY_CODE[code].name}"), value.graph)
        made.dtype, made.shape = code, value.shape
        return made

    def _code(self, is_narrow: bool) -> int:
        return self.plan.narrow if is_narrow else self.plan.wide

    def _declare(self) -> None:
        """Update declared types."""
        model, plan = self.model, self.plan
        for scope in plan.open:
            proto: Any = scope.proto
            ends = () if scope.is_function else (*proto.output, *(proto.input if scope is model.graph else ()))
            for info in (*proto.value_info, *ends):
                if (scope, info.name) in self.changed and info.type.tensor_type.elem_type == plan.wide:
                    info.type.tensor_type.elem_type = plan.narrow
        if any(v.graph is model.graph for v in plan.interface):
            model.interface = interface_of(model.proto)
        model.analyses.clear()
        model.version += 1
