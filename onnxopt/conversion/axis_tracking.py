"""The axis of each value that follows a dim of the inputs, once the dim becomes a symbol, and the changes for that."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.kernels import evaluate, result_bytes
from onnxopt.analysis.shapes.integers import CONTENTS
from onnxopt.analysis.shapes.sizes import axis_of, product
from onnxopt.analysis.shapes.sweep import ShapeData, learn_shapes
from onnxopt.analysis.shapes.symbolic import Expr, Size, divide, symbol
from onnxopt.errors import UsageError
from onnxopt.graph import Model, Value
from onnxopt.graph.node import Node
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.messages import Array, numpy_dtype

_MAX_INDEX_BYTES: Final = 1 << 20  # of integers that are computed
_MOVING: Final = frozenset(("Cast", "Concat", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"))


class TrackedAxis(NamedTuple):
    """The axis of a value that follows the dim. Its size is `outer` times the dim times `inner`."""

    axis: int
    outer: Size = 1
    inner: Size = 1


Results = Sequence[TrackedAxis | None]


class AxisTracker:
    """The state of a conversion. `size`: the number before, `symbol`: the dim after. `at`: the values that follow.

    `was`: shapes and sizes of the model before. `now`: shapes and sizes with the symbol; sizes computed from a Shape
    follow without a change.
    """

    def __init__(self, model: Model, name: str, size: int, inputs: Mapping[Value, int]) -> None:
        self.model, self.graph, self.name, self.size = model, model.graph, name, size
        self.symbol = symbol(name)
        self.was, self.now = learn_shapes(self.graph), ShapeData(assumed=True)
        self.now.contents = ChainMap({}, self.was.contents)
        self.at: dict[Value, TrackedAxis] = {}
        self.first = next(iter(self.graph), None)
        self._source = next(iter(inputs.items()))
        self._length: Value | None = None
        self._known: dict[Value, Array] = {}
        for value, axis in inputs.items():
            self.follow(value, TrackedAxis(axis))

    # -- values that follow ------------------------------------------------------------------------------

    def follow(self, value: Value, tracked: TrackedAxis) -> None:
        """Enter `value` as following along this axis."""
        dims = list(self.was.shape(value) or ())
        dims[tracked.axis] = self.extent(tracked)
        self.at[value] = tracked
        self.now.dims[value] = tuple(dims)
        if value in self.was.contents:  # numbers of the old size
            self.now.contents[value] = np.full(self.was.contents[value].shape, None, dtype=object)

    def extent(self, tracked: TrackedAxis) -> Size:
        return tracked.outer * self.symbol * tracked.inner

    def dims(self, node: Node, value: Value | None) -> tuple[Size, ...]:
        """Return the dims of a value before the conversion. Refuses a value of unknown rank."""
        found = self.was.shape(value)
        if found is None:
            self.refuse(node, "the rank of what it reads or makes is unknown")
        return found

    def read_by(self, node: Node) -> dict[int, TrackedAxis]:
        """Return the axis of each operand that follows, by index."""
        return {i: self.at[v] for i, v in enumerate(node.inputs) if v in self.at}

    def has_symbol(self, value: Value | None) -> bool:
        """Return whether elements of a value are sizes that follow."""
        found = self.now.contents.get(value) if value is not None else None
        return found is not None and any(self.is_symbolic(e) for e in found.reshape(-1).tolist())

    def is_symbolic(self, size: object) -> bool:
        names = [name for m, _ in size.terms for name in m] if isinstance(size, Expr) else []
        return any(name == self.name or (name.startswith("{") and self.name in name) for name in names)

    def computes_size(self, node: Node) -> bool:
        """Return whether the node computes small integers from sizes: these follow without a change."""
        is_size = node.op in ("Shape", "Size")
        if not is_size and not (self.at.keys().isdisjoint(node.operands) and any(map(self.has_symbol, node.operands))):
            return False
        if len(node.outputs) != 1 or node.outputs[0] is None:
            return False
        content = self._content(node)
        elements = [None] if content is None else content.reshape(-1).tolist()
        if content is None or (None in elements and node.op not in _MOVING):  # an unknown size is of another dim
            return False
        self.now.contents[node.output] = content
        if all(isinstance(e, int) for e in elements):
            self._known[node.output] = np.array(content.tolist(), numpy_dtype(types.dtype(node.output)))
        return True

    def _content(self, node: Node) -> Array | None:
        """Return the elements of the result of `node`, as numbers and sizes with the symbol; None if unknown."""
        rule, dims = CONTENTS.get(node.op), self.was.shape(node.output)
        if rule is None:
            return None
        if dims is not None:
            self.now.dims.setdefault(node.output, dims)
        made: Any = self.now.apply(rule, node)
        content: Array | None = made[0] if isinstance(made, list) else made
        return content

    def evaluate(self, node: Node) -> None:
        """Compute the integers of a node, such as indices of positions, if no operand follows."""
        operands = [self.numbers(v) for v in node.inputs]
        given = [a for a in operands if a is not None and element_kind(a) in "iub"]
        if len(given) < len(operands) or all(v is not None and v.constant for v in node.inputs):
            return
        if result_bytes(node, given) > _MAX_INDEX_BYTES:
            return
        made = evaluate(node, given, node.scope.opset(node.domain))
        self._known.update((v, array) for v, array in zip(node.outputs, made or ()) if v is not None)

    def numbers(self, value: Value | None) -> Array | None:
        """Return the elements of a value, if known and the same for each size of the dim."""
        if value is None:
            return None
        return value.array if value.constant else self._known.get(value)

    def require(self, node: Node, condition: bool, why: str) -> None:
        """Refuse the node unless `condition` is true."""
        if not condition:
            self.refuse(node, why)

    def refuse(self, node: Node, why: str) -> NoReturn:
        """Raise UsageError: the dim cannot follow behind this node."""
        scope = node.scope.path
        raise UsageError(
            f"{self.model.name}: {scope}: {node!r}: {why}",
            f"so {self.name!r} cannot become a symbol by rewriting: export the model with a dynamic dim",
        )

    # -- operands that do not follow ---------------------------------------------------------------------

    def meet(self, node: Node, axes: Mapping[int, int], tracked: TrackedAxis, *, broadcasts: bool) -> None:
        """Change the operands that do not follow: the size of operand `i` along `axes[i]` becomes that of `tracked`."""
        for index, axis in axes.items():
            value = node.input(index)
            if value is not None and value not in self.at:
                self.match(node, index, tracked._replace(axis=axis), broadcasts=broadcasts)

    def match(self, node: Node, index: int, tracked: TrackedAxis, *, broadcasts: bool) -> None:
        """Change operand `index`: the size along `tracked.axis` becomes that of `tracked`.

        A size of one is broadcast. A repetition of the same numbers, as folding makes, is read once and repeated.
        """
        value = node.operand(index)
        dims, axis, inner = self.dims(node, value), tracked.axis, tracked.inner
        if axis < 0 or (dims[axis] == 1 and broadcasts):
            return
        if tracked.outer != 1 or not isinstance(inner, int) or dims[axis] != self.size * inner:
            self.refuse(node, f"`{value.name}` has another size along the axis of {self.name!r}")
        one = self._one_sample(node, value, axis, inner)
        if not (inner == 1 and broadcasts):
            graph = node.scope
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
            return node.scope.constant(value.array.take(range(inner), axis), value.name, node)
        start, end, at = (node.scope.constant(np.array([i]), "bound", node) for i in (0, inner, axis))
        return node.scope.make("Slice", [value, start, end, at], before=node)

    def _is_alike(self, value: Value, axis: int, inner: int) -> bool:
        """Return whether the numbers of all samples are proven to be the same."""
        if value.constant:
            parts = np.split(value.array, self.size, axis)
            return all(p.tobytes() == parts[0].tobytes() for p in parts)
        made = value.producer
        if made is None or inner != 1:
            return False
        return made.op == "ConstantOfShape" or (made.op == "Expand" and self._repeats(made, axis))

    def _repeats(self, expand: Node, axis: int) -> bool:
        """Return whether an Expand repeats its operand along an axis of the result."""
        given = self.was.shape(expand.inputs[0])
        if given is None:
            return False
        place = axis + len(given) - len(self.was.shape(expand.output) or ())
        return place < 0 or given[place] == 1

    # -- sizes in operands -------------------------------------------------------------------------------

    def length(self) -> Value:
        """Return a vector with the size of the dim."""
        if self._length is None:
            source, axis = self._source
            dims = self.graph.make("Shape", [source], before=self.first)
            at = self.graph.constant(np.array([axis]), "axis", self.first)
            self._length = self.graph.make("Gather", [dims, at], before=self.first, axis=0)
        return self._length

    def written(self, node: Node, tracked: TrackedAxis) -> Value:
        """Return a vector with the size along the axis."""
        factor = tracked.outer * tracked.inner
        if not isinstance(factor, int):
            self.refuse(node, f"its size along the axis of {self.name!r} hangs on other dims, too")
        if factor == 1:
            return self.length()
        times = node.scope.constant(np.array([factor]), "factor", node)
        return node.scope.make("Mul", [self.length(), times], before=node)

    def rewrite(self, node: Node, index: int, sizes: Array, changed: Mapping[int, int | TrackedAxis]) -> None:
        """Change elements of the sizes in operand `index`, to numbers or to computed sizes."""
        value = node.operand(index)
        numbers = [changed.get(i, e) for i, e in enumerate(sizes.tolist())]
        if all(isinstance(e, int) for e in numbers):
            node.set_input(index, node.scope.constant(np.array(numbers, np.int64), value.name, node))
            return
        parts: list[Value] = []
        for i in range(len(numbers)):
            new = changed.get(i)
            if isinstance(new, TrackedAxis):
                parts.append(self.written(node, new))
            elif isinstance(numbers[i], int):
                parts.append(node.scope.constant(np.array([numbers[i]], np.int64), "size", node))
            else:
                at = node.scope.constant(np.array([i]), "at", node)
                parts.append(node.scope.make("Gather", [value, at], before=node, axis=0))
        node.set_input(index, node.scope.make("Concat", parts, before=node, axis=0))

    def sizes(self, node: Node, index: int) -> Array:
        """Return the sizes in operand `index` with the symbol; an unknown size is None."""
        content = self.now.content(node.input(index))
        if content is None:
            self.refuse(node, "its sizes are computed of what is not known")
        return content.reshape(-1)


def places(tracker: AxisTracker, before: Sequence[Size], after: Sequence[Size], c: TrackedAxis) -> list[TrackedAxis]:
    """Return the axes that may hold the dim in a tensor of the same elements in the same order, best first.

    The stride of the dim among the elements stays. The dim as an axis of its own is best, then the dim as the outer
    part of an axis. The last axis holds features, and comes last.
    """
    stride, last = c.inner * product(before[c.axis + 1 :]), len(after) - 1
    found = []
    for axis, size in enumerate(after):
        inner = divide(stride, product(after[axis + 1 :]))
        outer = None if inner is None else divide(size, inner * tracker.size)
        if inner is not None and outer is not None:
            found.append(TrackedAxis(axis, outer, inner))

    def order(p: TrackedAxis) -> tuple[object, ...]:
        return p.outer != 1 or p.inner != 1, p.axis == last, p.outer != 1, abs(p.axis - c.axis), p.axis

    return sorted(found, key=order)


def rank(value: Value | None) -> int:
    return (types.rank(value) or 0) if value is not None else 0


def axis_in(node: Node, name: str, count: int, default: int = 0) -> int:
    """Return the axis in an attribute, of `count` axes."""
    return axis_of(int(node.attr(name, default)), count)
