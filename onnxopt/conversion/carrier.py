"""Which axis of each value follows a dim of the inputs that becomes a symbol, and what is written so that it does."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, NoReturn

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.kernels import evaluate, result_bytes
from onnxopt.analysis.shapes.integers import CONTENTS
from onnxopt.analysis.shapes.sizes import axis_of, product
from onnxopt.analysis.shapes.sweep import ShapeData
from onnxopt.analysis.shapes.symbolic import Expr, Size, divide, symbol
from onnxopt.errors import UsageError
from onnxopt.graph import Graph, Model, Value
from onnxopt.graph.node import Node
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.messages import Array, numpy_dtype

_UNCOMPUTABLE: Final = (ArithmeticError, IndexError, TypeError, ValueError)
_MAX_INDEX_BYTES: Final = 1 << 20  # bytes of indices, that are not looked at
_MOVING: Final = frozenset(("Cast", "Concat", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"))


class Carried(NamedTuple):
    """The axis of a value that follows the dim: its places are `outer` times the dim times `inner` ones."""

    axis: int
    outer: Size = 1
    inner: Size = 1


Results = Sequence[Carried | None]


class Carrier:
    """The state of one conversion: `size` of the dim as it was, `symbol` as it becomes; `at`: the values that follow.

    `was`: shapes and sizes of the model as it was. `now`: the same where the dim is the symbol; what computes sizes
    from a Shape follows by itself there.
    """

    def __init__(self, model: Model, name: str, size: int, inputs: Mapping[Value, int]) -> None:
        self.model, self.graph, self.name, self.size = model, model.graph, name, size
        self.symbol = symbol(name)
        self.was, self.now = ShapeData(), ShapeData(assumed=True)
        self._sweep(self.graph)
        self.now.contents = ChainMap({}, self.was.contents)
        self.at: dict[Value, Carried] = {}
        self.first = next(iter(self.graph), None)
        self._source = next(iter(inputs.items()))
        self._length: Value | None = None
        self._known: dict[Value, Array] = {}
        for value, axis in inputs.items():
            self.follow(value, Carried(axis))

    def _sweep(self, graph: Graph) -> None:
        for node in self.was.sweep(graph):
            for body in node.bodies.values():
                self._sweep(body)

    # -- what follows ------------------------------------------------------------------------------------

    def follow(self, value: Value, carried: Carried) -> None:
        """`value` follows along this axis."""
        dims = list(self.was.shape(value) or ())
        dims[carried.axis] = self.extent(carried)
        self.at[value] = carried
        self.now.dims[value] = tuple(dims)
        if value in self.was.contents:  # as it was
            self.now.contents[value] = np.full(self.was.contents[value].shape, None, dtype=object)

    def extent(self, carried: Carried) -> Size:
        return carried.outer * self.symbol * carried.inner

    def dims(self, node: Node, value: Value | None) -> tuple[Size, ...]:
        """The dims of a value as they were. Refuses a value of unknown rank."""
        found = self.was.shape(value)
        if found is None:
            self.refuse(node, "the rank of what it reads or makes is unknown")
        return found

    def has_symbol(self, value: Value | None) -> bool:
        """Does a value hold sizes that follow?"""
        found = self.now.contents.get(value) if value is not None else None
        return found is not None and any(self.is_symbolic(e) for e in found.reshape(-1).tolist())

    def is_symbolic(self, size: object) -> bool:
        names = [name for m, _ in size.terms for name in m] if isinstance(size, Expr) else []
        return any(name == self.name or (name.startswith("{") and self.name in name) for name in names)

    def computes_size(self, node: Node) -> bool:
        """Is all that the node makes small integers, which follow by themselves where they should?"""
        rule, operands = CONTENTS.get(node.op), [v for v in node.inputs if v is not None]
        of_shape = node.op in ("Shape", "Size")
        if rule is None or len(node.outputs) != 1 or node.outputs[0] is None:
            return False
        if not of_shape and (any(v in self.at for v in operands) or not any(map(self.has_symbol, operands))):
            return False
        try:
            if (dims := self.was.shape(node.output)) is not None:
                self.now.dims.setdefault(node.output, dims)
            made = rule(self.now, node)
            content = made[0] if isinstance(made, list) else made
        except _UNCOMPUTABLE:
            content = None
        is_open = content is not None and None in content.reshape(-1).tolist()
        if content is None or (is_open and node.op not in _MOVING):  # what is not known there, is of another dim
            return False
        self.now.contents[node.output] = content
        if all(isinstance(e, int) for e in content.reshape(-1).tolist()):
            self._known[node.output] = np.array(content.tolist(), numpy_dtype(types.dtype(node.output)))
        return True

    def evaluate(self, node: Node) -> None:
        """Learn what a node makes of numbers that do not follow: indices, of positions."""
        given = [self.numbers(v) for v in node.inputs if v is not None]
        operands = [a for a in given if a is not None and element_kind(a) in "iub"]
        if not given or len(operands) < len(given) or len(given) < len(node.inputs):
            return
        if all(v is not None and v.constant for v in node.inputs) or result_bytes(node, operands) > _MAX_INDEX_BYTES:
            return
        made = evaluate(node, operands, scope_of(node).opset(node.domain))
        for v, array in zip(node.outputs, made or ()):
            if v is not None:
                self._known[v] = array

    def numbers(self, value: Value | None) -> Array | None:
        """What a value holds whatever the dim is, where that is known."""
        if value is None:
            return None
        return value.array if value.constant else self._known.get(value)

    def refuse(self, node: Node, why: str) -> NoReturn:
        """Raises UsageError: the dim cannot follow behind this node."""
        scope = scope_of(node).path
        raise UsageError(
            f"{self.model.name}: {scope}: {node!r}: {why}",
            f"so {self.name!r} cannot become a symbol by rewriting: export the model with a dynamic dim",
        )

    # -- what does not, and has to -----------------------------------------------------------------------

    def match(self, node: Node, index: int, carried: Carried, *, broadcasts: bool) -> None:
        """Have operand `index`, which does not follow, meet what follows along `carried.axis`, an axis of this operand.

        One place is broadcast; a repetition of the same numbers, as folding leaves, is read once and repeated.
        """
        value = node.inputs[index]
        assert value is not None
        dims, axis, inner = self.dims(node, value), carried.axis, carried.inner
        if axis < 0 or (dims[axis] == 1 and broadcasts):
            return
        if carried.outer != 1 or not isinstance(inner, int) or dims[axis] != self.size * inner:
            self.refuse(node, f"`{value.name}` has another size along the axis of {self.name!r}")
        one = self._one_sample(node, value, axis, inner)
        if not (inner == 1 and broadcasts):
            graph = scope_of(node)
            repeats = [graph.constant(np.ones(1, np.int64), "one", node)] * len(dims)
            repeats[axis] = self.length()
            one = graph.make("Tile", [one, graph.make("Concat", repeats, before=node, axis=0)], before=node)
        node.set_input(index, one)

    def _one_sample(self, node: Node, value: Value, axis: int, inner: int) -> Value:
        if self.size == 1:
            return value
        if not self._is_alike(value, axis, inner):
            self.refuse(node, f"`{value.name}` holds different numbers for each of the {self.size} samples")
        if value.constant:
            return scope_of(node).constant(value.array.take(range(inner), axis), value.name, node)
        start, end, at = (scope_of(node).constant(np.array([i]), "bound", node) for i in (0, inner, axis))
        return scope_of(node).make("Slice", [value, start, end, at], before=node)

    def _is_alike(self, value: Value, axis: int, inner: int) -> bool:
        """Are the numbers of all samples proven to be the same?"""
        if value.constant:
            parts = np.split(value.array, self.size, axis)
            return all(p.tobytes() == parts[0].tobytes() for p in parts)
        made = value.producer
        if made is None or inner != 1 or made.op not in ("Expand", "ConstantOfShape"):
            return False
        given = self.was.shape(made.inputs[0]) if made.op == "Expand" else ()
        place = axis + len(given) - len(self.was.shape(value) or ()) if given is not None else 0
        return made.op == "ConstantOfShape" or (given is not None and (place < 0 or given[place] == 1))

    # -- sizes that are written --------------------------------------------------------------------------

    def length(self) -> Value:
        """A vector of one element: how long the dim is."""
        if self._length is None:
            source, axis = self._source
            dims = self.graph.make("Shape", [source], before=self.first)
            at = self.graph.constant(np.array([axis]), "axis", self.first)
            self._length = self.graph.make("Gather", [dims, at], before=self.first, axis=0)
        return self._length

    def written(self, node: Node, carried: Carried) -> Value:
        """A vector of one element: how many places there are along the axis."""
        factor = carried.outer * carried.inner
        if not isinstance(factor, int):
            self.refuse(node, f"its size along the axis of {self.name!r} hangs on other dims, too")
        if factor == 1:
            return self.length()
        times = scope_of(node).constant(np.array([factor]), "factor", node)
        return scope_of(node).make("Mul", [self.length(), times], before=node)

    def rewrite(self, node: Node, index: int, sizes: Array, changed: Mapping[int, int | Carried]) -> None:
        """Change elements of the sizes that operand `index` lists: numbers, or what is computed."""
        value = node.inputs[index]
        assert value is not None
        numbers = [changed.get(i, e) for i, e in enumerate(sizes.tolist())]
        if all(isinstance(e, int) for e in numbers):
            node.set_input(index, scope_of(node).constant(np.array(numbers, np.int64), value.name, node))
            return
        parts: list[Value] = []
        for i in range(len(numbers)):
            new = changed.get(i)
            if isinstance(new, Carried):
                parts.append(self.written(node, new))
            elif isinstance(numbers[i], int):
                parts.append(scope_of(node).constant(np.array([numbers[i]], np.int64), "size", node))
            else:
                at = scope_of(node).constant(np.array([i]), "at", node)
                parts.append(scope_of(node).make("Gather", [value, at], before=node, axis=0))
        node.set_input(index, scope_of(node).make("Concat", parts, before=node, axis=0))

    def sizes(self, node: Node, index: int) -> Array:
        """The sizes that operand `index` lists, where the dim is a symbol; an unknown one is None."""
        content = self.now.content(node.input(index))
        if content is None:
            self.refuse(node, "its sizes are computed of what is not known")
        return content.reshape(-1)


def places(carrier: Carrier, before: Sequence[Size], after: Sequence[Size], c: Carried) -> list[Carried]:
    """Where the axis may be in a tensor of the same elements in the same order, best first.

    The stride of the dim among the elements stays. One place alone is best, then the dim before what it is merged with;
    the last axis holds features, and is the last that is taken.
    """
    stride = c.inner * product(before[c.axis + 1 :])
    found = []
    for axis, size in enumerate(after):
        inner = divide(stride, product(after[axis + 1 :]))
        outer = None if inner is None else divide(size, inner * carrier.size)
        if inner is not None and outer is not None:
            found.append(Carried(axis, outer, inner))
    last = len(after) - 1
    return sorted(
        found,
        key=lambda p: (not (p.outer == 1 and p.inner == 1), p.axis == last, p.outer != 1, abs(p.axis - c.axis), p.axis),
    )


def scope_of(node: Node) -> Graph:
    """Return the graph or body with the node."""
    assert node.graph is not None
    return node.graph


def rank(value: Value | None) -> int:
    return (types.rank(value) or 0) if value is not None else 0


def axis_in(node: Node, name: str, count: int, default: int = 0) -> int:
    """The axis that an attribute names, of so many."""
    return axis_of(int(node.attr(name, default)), count)


def operand(node: Node, index: int) -> Value:
    """An operand that the standard requires."""
    value = node.inputs[index]
    assert value is not None
    return value
