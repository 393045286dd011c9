"""Interval analysis of integers: a lower and an upper limit of the elements of each value.

An interval follows from constants, from sizes (under the assumption of `interval_rules.py`), from operators, and from
readers: an index beyond the axis is an error at run time, so indices read by a Gather in the same scope are within the
axis. A result that may overflow wraps around: the interval is the range of the type.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, TypeAlias

from onnxopt.analysis import types
from onnxopt.analysis.interval_rules import MAX_SIZE, RULES, Found, Interval, SizeLimits
from onnxopt.analysis.shapes.sizes import axis_of, product
from onnxopt.analysis.shapes.sweep import learn_shapes
from onnxopt.analysis.shapes.symbolic import Size, TooComplex
from onnxopt.graph import Graph, Model, Value
from onnxopt.graph.node import Node
from onnxopt.operators import of_form
from onnxopt.proto.element_types import BY_CODE, BY_NAME, ElementType, element_kind

Pick: TypeAlias = Callable[[Iterable[int]], int]

_TRUTH: Final = (0, 1)
# Operators with all elements of the first operand in the result.
_WHOLE: Final = of_form("same", "order", "permute")
_PICKED: Final = of_form("same", "order", "permute", "pick") | {"Cast"}  # elements of the first operand only
_INDEXED: Final = ("Gather", "GatherElements", "ScatterElements")
_BY_ROWS: Final = ("GatherND", "ScatterND")
# Operands with dims of the result: (index, least number).
_SIZES: Final = {"Reshape": (1, -1), "Expand": (1, -1), "ConstantOfShape": (0, 0), "TopK": (1, 0), "OneHot": (1, 0)}


class Intervals:
    """The intervals of a model's integers. Function bodies have no types, and no intervals."""

    def __init__(self, model: Model, narrow: Collection[Value] = ()) -> None:
        """`narrow`: int64 inputs to which callers pass 32-bit numbers only."""
        self.sizes = learn_shapes(model.graph)
        self._narrow = narrow
        self._limits: dict[Graph, SizeLimits] = {}
        self._known: dict[Value, Interval] = {}
        self._required: dict[Value, Interval] = {}  # intervals required by readers
        self._upper: dict[Value, Size] = {}  # symbolic upper limits
        self._measure(model.graph)
        self._forward(model.graph)
        self._backward(model.graph)
        self._known = {v: known for v, known in self._known.items() if v.constant}
        self._forward(model.graph)

    def of(self, value: Value | None) -> Found:
        """Return the interval of a value; None if the elements are neither integers nor bool."""
        kind = BY_CODE.get(types.dtype(value))
        if value is None or kind is None or kind.kind not in "iub":
            return None
        if kind.kind == "b":
            return _TRUTH
        known = self._known.get(value)
        if known is None:
            bits = BY_NAME["int32"] if value in self._narrow else kind
            known = self._known[value] = self._bounded(value, (int(bits.low), int(bits.high)), None)
        return known

    def high(self, size: Size, scope: Graph) -> int:
        """Return an upper limit of a size."""
        return self._limits[scope].high(size)

    def count(self, node: Node, axes: Sequence[int] | set[int] | None = None) -> int | None:
        """Return an upper limit of the number of elements along `axes` (default: all) of the first operand."""
        dims = self.sizes.shape(node.input(0))
        if dims is None or node.graph is None:
            return MAX_SIZE  # no tensor has more
        try:
            size = product(dims[a] for a in (range(len(dims)) if axes is None else sorted(axes)))
        except (TooComplex, IndexError):
            return MAX_SIZE
        return min(self.high(size, node.graph), MAX_SIZE)

    # -- sizes -------------------------------------------------------------------------------------------

    def _measure(self, graph: Graph) -> None:
        """Note the dims of all tensors of a scope."""
        parent = graph.parent
        limits = self._limits[graph] = SizeLimits(self._limits[parent] if parent is not None else None)
        made = (v for node in graph for v in node.outputs)
        for v in (*graph.inputs, *graph.initializers.values(), *made):
            dims = self.sizes.shape(v)
            if dims is not None:
                limits.add(dims)
        for node in graph.owners:
            for body in node.bodies.values():
                self._measure(body)

    def dims(self, value: Value | None) -> list[int] | None:
        """Return upper limits of the dims of a value, or None if the rank is unknown."""
        found = self.sizes.shape(value)
        return None if found is None or value is None else [self.high(d, value.graph) for d in found]

    def longest(self, value: Value | None) -> int:
        """Return an upper limit of the largest dim of a value."""
        return max(self.dims(value) or [MAX_SIZE])

    def length(self, node: Node) -> int:
        """Return an upper limit of the size of the first operand along the `axis` of the node."""
        dims = self.dims(node.input(0)) or []
        axis = axis_of(node.attr("axis", 0), len(dims))
        return dims[axis] if 0 <= axis < len(dims) else MAX_SIZE

    # -- forward -----------------------------------------------------------------------------------------

    def _forward(self, graph: Graph) -> None:
        for node in graph:
            for key, body in node.bodies.items():
                self._enter(node, key, body)
                self._forward(body)
            rule = RULES.get(node.op)
            found = rule(self, node) if rule is not None else None
            each: Sequence[Found] = found if isinstance(found, list) else [found] if rule is not None else []  # type: ignore[list-item]
            for v, interval in itertools.zip_longest(node.outputs, each[: len(node.outputs)]):
                if v is not None and (kind := _integers(v)) is not None:
                    self._note_upper(node, v)
                    self._known[v] = self._bounded(v, (int(kind.low), int(kind.high)), interval)

    def _enter(self, node: Node, key: str, body: Graph) -> None:
        """Set the interval of a Loop body's iteration number."""
        if node.op == "Loop" and key == "body" and body.inputs:
            trips = self.of(node.input(0))
            most = max(trips[1] - 1, 0) if trips is not None else int(BY_NAME["int64"].high)
            self._known[body.inputs[0]] = 0, most

    def _bounded(self, value: Value, whole: Interval, found: Found) -> Interval:
        """Return the intersection of `found` (or of `whole` on overflow) with intervals from sizes and readers."""
        if value.constant and element_kind(value.array) in "iu":
            array = value.array
            return (int(array.min()), int(array.max())) if array.size else (0, 0)
        known = whole if found is None or not is_within(found, whole) else found
        if known[0] >= 0 and value in self._upper:
            known = known[0], max(known[0], min(known[1], self.high(self._upper[value], value.graph)))
        return _narrowed(_narrowed(known, self._by_sizes(value)), self._required.get(value))

    def _by_sizes(self, value: Value) -> Found:
        """Return the interval of a value with known symbolic content, else None."""
        elements = self._elements(value)
        if not elements:
            return None
        limits = self._limits[value.graph]
        return min(map(limits.low, elements)), max(map(limits.high, elements))

    def _note_upper(self, node: Node, value: Value) -> None:
        """Note a symbolic upper limit of a result, such as rows times columns."""
        found: Size | None = None
        if node.op == "Range":
            found = self._upper_of_range(node)
        elif node.op in _PICKED and node.inputs:
            found = self._upper_of(node.inputs[0])
        elif node.op in ("Add", "Mul"):
            a, b = map(self._upper_of, node.inputs)
            with contextlib.suppress(TooComplex):
                found = None if a is None or b is None else a + b if node.op == "Add" else a * b
        if found is not None:
            self._upper[value] = found

    def _upper_of_range(self, node: Node) -> Size | None:
        start, limit, delta = ([None, *self._elements(v)][-1] for v in node.inputs)
        counts = isinstance(start, int) and start >= 0 and delta == 1
        return limit - 1 if counts and limit is not None else None

    def _upper_of(self, value: Value | None) -> Size | None:
        """Return a symbolic upper limit of a value without negative elements, else None."""
        if value is None or (self.of(value) or (-1, 0))[0] < 0:
            return None
        elements = self._elements(value)
        one: Size | None = elements[0] if len({*elements}) == 1 else None
        if one is None and elements and value.constant:
            one = max(elements)
        return self._upper.get(value) if one is None else one

    def _elements(self, value: Value | None) -> list[Any]:
        """Return the elements of a value with known symbolic content, else none."""
        content = self.sizes.content(value)
        elements = content.reshape(-1).tolist() if content is not None else []
        return [] if None in elements or any(isinstance(e, bool) for e in elements) else elements

    # -- backward ----------------------------------------------------------------------------------------

    def _backward(self, graph: Graph) -> None:
        """Collect the intervals required by readers of values from the same scope, which runs both or neither."""
        for node in reversed(list(graph)):
            for body in node.bodies.values():
                self._backward(body)
            self._require_indices(node)
            out = self._required.get(node.outputs[0]) if node.outputs and node.outputs[0] is not None else None
            if out is not None:
                self._require_operands(node, out)

    def _require(self, node: Node, index: int, low: int, high: int) -> None:
        value = node.input(index)
        if value is not None and value.graph is node.graph and not value.constant:
            before = self._required.get(value, (low, high))
            self._required[value] = max(low, before[0]), min(high, before[1])

    def _require_indices(self, node: Node) -> None:
        if node.op in _SIZES:
            index, least = _SIZES[node.op]
            self._require(node, index, least, MAX_SIZE)
        elif node.op in _INDEXED:
            size = self.length(node)
            self._require(node, 1, -size, size - 1)
        elif node.op in _BY_ROWS:
            size = self.longest(node.input(0))
            self._require(node, 1, -size, size - 1)

    def _require_operands(self, node: Node, out: Interval) -> None:
        """Derive the intervals of operands from the interval `out` of the result."""
        if node.op in _WHOLE or node.op == "Neg":
            self._require(node, 0, *(out if node.op != "Neg" else (-out[1], -out[0])))
        elif node.op == "Concat":
            for i in range(len(node.inputs)):
                self._require(node, i, *out)
        elif node.op == "Cast":
            self._require_cast(node, out)
        elif node.op in ("Add", "Sub"):
            for i in (0, 1):
                self._require_addend(node, i, out)

    def _require_addend(self, node: Node, i: int, out: Interval) -> None:
        """Derive the interval of an operand of an Add or Sub of the same shape as the result."""
        v, other = node.input(i), self.of(node.input(1 - i))
        if v is None or other is None or not types.same_shape(v, node.output):
            return
        if node.op == "Add":
            self._require(node, i, out[0] - other[1], out[1] - other[0])
        elif i:
            self._require(node, i, other[0] - out[1], other[1] - out[0])
        else:
            self._require(node, i, out[0] + other[0], out[1] + other[1])

    def _require_cast(self, node: Node, out: Interval) -> None:
        """Derive the interval of a Cast's operand, if the new type holds all numbers of the old one."""
        x = node.input(0)
        old, new = _integers(x), _integers(node.output)
        if old is not None and new is not None and new.holds(old):
            self._require(node, 0, *out)

    # -- operators ---------------------------------------------------------------------------------------

    def hull(self, values: Sequence[Value | None], low: Pick = min, high: Pick = max) -> Found:
        """Return the smallest interval with the intervals of all values, or None if one is unknown.

        `low`, `high`: the choice among the ends, for example twice `max` for the interval of a maximum.
        """
        found = [self.of(v) for v in values if v is not None]
        known = [f for f in found if f is not None]
        return (low(f[0] for f in known), high(f[1] for f in known)) if known and None not in found else None


def _integers(value: Value | None) -> ElementType | None:
    """Return the element type of a tensor of integers, else None."""
    kind = BY_CODE.get(types.dtype(value))
    return kind if kind is not None and kind.kind in "iu" else None


def _narrowed(known: Interval, other: Found) -> Interval:
    """Return the intersection with another interval, if there is one."""
    if other is None or max(known[0], other[0]) > min(known[1], other[1]):
        return known
    return max(known[0], other[0]), min(known[1], other[1])


def is_within(a: Interval, b: Interval) -> bool:
    return b[0] <= a[0] and a[1] <= b[1]
