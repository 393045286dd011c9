"""A Loop or Scan by states: positions among operands and results, dependencies, and trip counts."""

from __future__ import annotations

from typing import Final, Self

from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.inference import SCAN_OF_AXES
from onnxopt.graph import Graph, Value
from onnxopt.graph.model import values_read
from onnxopt.graph.node import Node, producer
from onnxopt.operators import PICKS


class Recurrence:
    """A Loop or Scan. The states of the body begin at operand `first_in` and at result `first_out`."""

    def __init__(self, node: Node, states: int) -> None:
        self.node = node
        self.body = node.bodies["body"]
        self.states = states
        self.first_in, self.first_out = (2, 1) if node.op == "Loop" else (0, 0)

    @classmethod
    def of(cls, node: Node) -> Self | None:
        """Return the recurrence of a node, or None if it is malformed or must not be changed."""
        body = node.bodies.get("body")
        if body is None or body.skipped or node.has_references or node.graph is None:
            return None
        given = max(len(node.inputs), 2) if node.op == "Loop" else len(node.inputs)
        if node.op != "Loop" and node.graph.opset() < SCAN_OF_AXES:
            return None
        loop = cls(node, given - (2 if node.op == "Loop" else int(node.attr("num_scan_inputs", given))))
        results = len(body.outputs) - loop.first_out
        right = 0 <= loop.states <= results and len(body.inputs) == given
        return loop if right and len(node.outputs) <= results else None

    def result(self, i: int) -> Value | None:
        """Return the i-th result of the node, states first."""
        return self.node.outputs[i] if i < len(self.node.outputs) else None

    def joined_along(self, i: int) -> int | None:
        """Return the axis along which a result is collected, or None if backwards."""
        if self.node.op == "Loop":
            return 0
        axes, directions = (self.node.attr(f"scan_output_{said}") or [] for said in ("axes", "directions"))
        at = i - self.states
        if at < len(directions) and directions[at]:
            return None
        return int(axes[at]) if at < len(axes) else 0

    def live(self, read: list[int]) -> set[int]:
        """Return the results in `read`, and the states needed for them or for side effects."""
        place = {v: i for i, v in enumerate(self.body.inputs[self.first_in : self.first_in + self.states])}
        live: set[int] = set()
        stack = [*self.body.outputs[: self.first_out], *(self.body.outputs[self.first_out + i] for i in read)]
        live.update(read)
        for node in self.body:
            if not self.body.is_pure(node):
                stack += values_read(node)
        seen: set[Value] = set()
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in place:
                live.add(place[value])
                stack.append(self.body.outputs[self.first_out + place[value]])
            elif value.producer is not None and value.graph is self.body:
                stack += values_read(value.producer)
        return live


# -- trip counts, derived from counter and condition -----------------------------------------------------------

_COUNTER_TYPES: Final = (TensorProto.INT32, TensorProto.INT64)
_WIDE_FLOATS: Final = (TensorProto.FLOAT, TensorProto.DOUBLE)
_MAX_EXACT_FLOAT32: Final = 1 << 24  # up to here float32 holds all integers; also the assumed longest axis
_ENDLESS: Final = (1 << 31) - 1  # trip count taken as infinite
_MAX_TERMS: Final = 8  # terms of a conjunction
_MAX_STEPS: Final = 16  # steps from a Shape to a number


def is_counter(loop: Recurrence, i: int) -> bool:
    """Whether state `i` counts 0, 1, 2, … as a scalar, like the iteration number."""
    given, step = loop.node.input(2 + i), loop.body.outputs[1 + i].producer
    if given is None or not is_number(given, 0) or step is None or step.graph is not loop.body or step.op != "Add":
        return False
    if loop.body.proto.input[0].type.tensor_type.shape.dim:
        return False
    if types.dtype(given) != types.dtype(loop.body.inputs[2 + i]):
        return False
    return _other(step, loop.body.inputs[2 + i], loop.body.inputs[0]) is not None


def is_implied(loop: Recurrence, condition: Value, most: Value) -> bool:
    """Whether `condition` states that the number of this or the next iteration is below `most`, compared exactly."""
    count, given = compared(condition)
    if count is None or given is None:
        return False
    number, limit, most = source(count), source(given), source(most)
    if not _is_no_more(most, limit) or not _is_exact(given, limit):
        return False
    return number in _counters(loop) or _is_next(loop, number)


def _counters(loop: Recurrence) -> list[Value]:
    """Return the iteration number of the body, and the states that equal it."""
    return [loop.body.inputs[0], *(loop.body.inputs[2 + i] for i in range(loop.states) if is_counter(loop, i))]


def limit_of_trips(loop: Recurrence) -> Value | None:
    """Return the outer integer that bounds the next iteration number, if nothing else ends the loop; else None."""
    going_on = loop.body.outputs[0]
    if not _is_endless(loop.node.input(0)) or going_on.users or going_on.output_count > 1:
        return None
    count, given = compared(going_on)
    if going_on.graph is not loop.body or count is None or given is None or not _is_next(loop, source(count)):
        return None
    limit = source(given)
    return limit if limit.graph is not loop.body and _is_whole(limit) else None


def _is_endless(most: Value | None) -> bool:
    """Whether a trip count limits nothing."""
    return most is None or (_is_one(most) and int(most.array.item()) >= _ENDLESS)


def _is_next(loop: Recurrence, value: Value) -> bool:
    """Whether a value is the number of the next iteration."""
    step = value.producer
    if step is None or step.op != "Add" or step.graph is not loop.body:
        return False
    return _other(step, *_counters(loop)) is not None


def starts_below(loop: Recurrence, limit: Value) -> bool:
    """Whether the loop starts exactly if the limit is above 0, and all comparisons are exact."""
    _, given = compared(loop.body.outputs[0])
    if not _is_exact(given, limit):
        return False
    start = loop.node.input(1)
    if start is None or (_is_one(start) and bool(start.array.item())):
        return limit.constant and bool(limit.array.item() > 0)
    zero, above = compared(start)
    if zero is None or above is None or source(above) is not limit:
        return False
    return _is_exact(above, limit) and _is_zero(zero)


def _is_exact(value: Value | None, limit: Value) -> bool:
    """Whether a comparison of `value`, which may be the limit cast to float, is exact."""
    return types.dtype(value) in _COUNTER_TYPES or _is_small(limit)


def is_number(value: Value, number: int) -> bool:
    """Whether a value is the scalar integer constant `number`."""
    return (
        value.constant and value.constant_type() in [(t, ()) for t in _COUNTER_TYPES] and value.array.item() == number
    )


def _other(add: Node, *values: Value) -> Value | None:
    """Return the constant 1 added to one of these values, or None."""
    a, b = add.inputs
    if a is None or b is None:
        return None
    if b in values:
        a, b = b, a
    return b if a in values and is_number(b, 1) else None


def compared(less: Value) -> tuple[Value | None, Value | None]:
    """Return (smaller, larger) as asserted by a Less or Greater, or (None, None)."""
    node = less.producer
    if node is None or node.op not in ("Less", "Greater"):
        return None, None
    a, b = node.inputs
    return (a, b) if node.op == "Less" else (b, a)


def conjuncts(condition: Value, body: Graph) -> list[Value]:
    """Return the terms of a conjunction."""
    found: list[Value] = []
    stack = [condition]
    while stack and len(found) < _MAX_TERMS:
        node = stack[-1].producer
        if node is not None and node.op == "And" and node.graph is body:
            stack[-1:] = node.operands
        else:
            found.append(stack.pop())
    return [*found, *stack]


def source(value: Value) -> Value:
    """Return the operand of a lossless integer Cast, else the value itself."""
    node = value.producer
    if node is None or node.op != "Cast" or node.inputs[0] is None or node.has_references:
        return value
    wide = node.attr("to") in (TensorProto.INT64, *_WIDE_FLOATS)
    return node.inputs[0] if wide and types.dtype(node.inputs[0]) in _COUNTER_TYPES else value


def _is_whole(limit: Value) -> bool:
    """Whether a limit is a single integer, also as a float constant cast by folding."""
    kind = types.dtype(limit)
    if types.rank(limit) != 0 or not limit.constant:
        return types.rank(limit) == 0 and kind in _COUNTER_TYPES
    return kind in _COUNTER_TYPES or (kind in _WIDE_FLOATS and float(limit.array.item()).is_integer())


def _is_no_more(a: Value, b: Value) -> bool:
    """Whether `a` is `b`, or both are constants and `a` is at most `b`."""
    return a is b or (_is_one(a) and _is_one(b) and bool(a.array.item() <= b.array.item()))


def _is_zero(value: Value) -> bool:
    return _is_one(value) and bool(value.array.item() == 0)


def _is_one(value: Value) -> bool:
    return value.constant and value.array.size == 1


def _is_small(limit: Value) -> bool:
    """Whether a constant or dim is within float32's exact integers."""
    if limit.constant:
        return _is_one(limit) and bool(abs(limit.array.item()) <= _MAX_EXACT_FLOAT32)
    value: Value | None = limit
    for _ in range(_MAX_STEPS):
        node = producer(value)
        if node is None or not (node.op in PICKS or (node.op == "Cast" and node.attr("to") in _COUNTER_TYPES)):
            return node is not None and node.op == "Shape"
        value = node.inputs[0]
    return False
