"""A loop carries what it changes, gives out what is read, and counts its trips itself."""

from __future__ import annotations

from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.graph import Graph, Value
from onnxopt.graph.model import values_read
from onnxopt.graph.node import Node
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.rewriting.replace import remove_dead

_INTEGERS: Final = (TensorProto.INT32, TensorProto.INT64)
_FLOATS: Final = (TensorProto.FLOAT, TensorProto.DOUBLE)
_EXACT: Final = 1 << 24  # up to here float32 has all integers, and what one axis of a tensor may have elements
_ENDLESS: Final = (1 << 31) - 1  # trips that no loop makes
_MOST: Final = 8  # conditions that one is made of
_HANDS_ON: Final = ("Cast", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze")
_LONGEST: Final = 16  # steps from a Shape to a number


@register
class SimplifyLoops(GraphPass):
    """Loop and Scan without what they carry for nothing: a body reads what never changes where it comes from, and what
    no result depends on goes. Loop(true, i < n) = Loop(n), and its counter is i; so is Loop(n, i < n).

    Applies when: a state is handed on as it was given; nothing reads a result, nor what it decides; a counter begins
    with 0 and goes up by 1; a Loop goes on as long as its counter is below a number, which is constant or a dim of a
    tensor (of no more than 16,777,216 elements, where it is compared as a float).
    Keeps: a state that is handed out by the graph around; bodies marked `onnxopt.skip`.
    Frameworks write a recurrence as a while loop, which carries its weights, the number of steps and all counters.
    """

    info = PassInfo("simplify-loops", opt_level=1, after=("inline-loops",), ops=("Loop", "Scan"))

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        for node in [*graph.by_op.get("Loop", ()), *graph.by_op.get("Scan", ())]:
            loop = _Loop.of(node)
            if loop is None:
                continue
            loop.read_unchanged(ctx)
            if node.op == "Loop":
                loop.use_own_counter(ctx)
                loop.count_trips(ctx)
                loop.trust_trips(ctx)
            loop.give_last(ctx)
            loop.drop_unread(ctx)


class _Loop:
    """A Loop or Scan. Its states come `first_in` operands and `first_out` results of the body after the first."""

    def __init__(self, node: Node, states: int) -> None:
        self.node = node
        self.body = node.bodies["body"]
        self.states = states
        self.first_in, self.first_out = (2, 1) if node.op == "Loop" else (0, 0)

    @classmethod
    def of(cls, node: Node) -> _Loop | None:
        """None where it is not what the standard says, or not to be touched."""
        body = node.bodies.get("body")
        if body is None or body.skipped or node.has_references or node.graph is None:
            return None
        given = max(len(node.inputs), 2) if node.op == "Loop" else len(node.inputs)
        if node.op == "Loop":
            loop = cls(node, given - 2)
        elif node.graph.opset() >= 9:
            loop = cls(node, given - int(node.attr("num_scan_inputs", given)))
        else:
            return None
        least = loop.first_out + loop.states
        right = loop.states >= 0 and len(body.inputs) == given and len(body.outputs) >= least
        return loop if right and len(node.outputs) <= len(body.outputs) - loop.first_out else None

    def result(self, i: int) -> Value | None:
        """The i-th result of the node, states first."""
        return self.node.outputs[i] if i < len(self.node.outputs) else None

    def drop_state(self, i: int) -> None:
        """The body reads it no more, and the node gives it to nobody."""
        self.drop_result(i)
        self._drop_operand(self.first_in + i)
        self.states -= 1

    def drop_result(self, i: int) -> None:
        self.body.drop_output(self.first_out + i)
        if i < len(self.node.outputs):
            self.node.remove_output(i)
        if self.node.op == "Scan" and i >= self.states:
            self._forget("scan_output_axes", i - self.states)
            self._forget("scan_output_directions", i - self.states)

    def _drop_operand(self, i: int) -> None:
        self.body.drop_input(i)
        self.node.remove_input(i)

    def _forget(self, attribute: str, i: int) -> None:
        """One scanned tensor less, of which an attribute says something."""
        said = self.node.attr(attribute)
        if said is not None and i < len(said):
            self.node.set_attr(attribute, said[:i] + said[i + 1 :] or None)

    # -- what never changes --------------------------------------------------------------------------------

    def read_unchanged(self, ctx: PassContext) -> None:
        """A state that is handed on as it came is what the loop was given for it, in every trip and behind the last."""
        for i in reversed(range(self.states)):
            given, result = self.node.input(self.first_in + i), self.result(i)
            inside, handed = self.body.inputs[self.first_in + i], self.body.outputs[self.first_out + i]
            if given is None or _named(handed) is not inside:
                continue
            stays = inside.output_count > (handed is inside) or (result is not None and result.is_output)
            if (stays and not inside.users) or not ctx.spend("unchanged", at=inside):
                continue
            inside.redirect_readers(given)
            if result is not None:
                result.redirect_readers(given)
            if not stays:
                self.drop_state(i)

    # -- the loop's own counter ------------------------------------------------------------------------------

    def use_own_counter(self, ctx: PassContext) -> None:
        """A state that counts from 0 in ones is the number of the trip; of another type, where something is picked by
        it."""
        for i in range(self.states):
            inside, own = self.body.inputs[2 + i], self.body.inputs[0]
            if not self._counts(i):
                continue
            alike = types.dtype(inside) == TensorProto.INT64
            readers = [n for n in inside.users if alike or (n.op == "Gather" and n.places(inside) == [1])]
            if readers and ctx.spend("counter", at=inside):
                for reader in readers:
                    for place in reader.places(inside):
                        reader.set_input(place, own)

    def _counts(self, i: int) -> bool:
        """Does the state count, from 0 in ones? Its number and that of the trip have no dim then."""
        given, step = self.node.input(2 + i), self.body.outputs[1 + i].producer
        if given is None or not _is_number(given, 0) or step is None or step.graph is not self.body or step.op != "Add":
            return False
        if self.body.proto.input[0].type.tensor_type.shape.dim:
            return False
        if types.dtype(given) != types.dtype(self.body.inputs[2 + i]):
            return False
        return _other(step, self.body.inputs[2 + i], self.body.inputs[0]) is not None

    # -- trips -------------------------------------------------------------------------------------------

    def count_trips(self, ctx: PassContext) -> None:
        """Loop(true, body: …, i + 1 < n) = Loop(n, body: …, true) where the loop begins with 0 < n."""
        node, graph = self.node, self.node.graph
        limit = self._limit()
        if limit is None or graph is None:
            return
        if not self._starts_below(limit):
            ctx.decline("trips", "it may begin otherwise, or compare otherwise", repr(node))
        elif ctx.spend("trips", at=node):
            if limit.constant:
                limit = graph.constant(limit.array.astype(np.int64), limit.name, node)
            elif types.dtype(limit) != TensorProto.INT64:
                limit = graph.make("Cast", [limit], before=node, to=TensorProto.INT64)
            node.set_input(0, limit)
            node.set_input(1, None)
            self.body.give(0, self.body.inputs[1])

    def trust_trips(self, ctx: PassContext) -> None:
        """Loop(n, c, body: …, i + 1 < n and i < n) = Loop(n, c, body: …, true); Loop(n, 0 < n) = Loop(n, true)."""
        most, start = self.node.input(0), self.node.input(1)
        if most is None:
            return
        asked = _conjuncts(self.body.outputs[0], self.body)
        if all(self._is_implied(c, most) for c in asked) and ctx.spend("implied", at=self.node):
            self.body.give(0, self.body.inputs[1])
        zero, above = _compared(start) if start is not None else (None, None)
        if zero is None or above is None or _source(above) is not _source(most):
            return
        if zero.constant and zero.array.size == 1 and zero.array.item() == 0 and ctx.spend("begun", at=self.node):
            self.node.set_input(1, None)

    def _is_implied(self, condition: Value, most: Value) -> bool:
        """Does it say that the number of this trip, or of the next, is below that of trips, as comparing finds it?"""
        count, given = _compared(condition)
        if count is None or given is None:
            return False
        number, limit, most = _source(count), _source(given), _source(most)
        within = limit.constant and most.constant and limit.array.size == 1 and most.array.item() <= limit.array.item()
        if not (limit is most or within) or not (types.dtype(given) in _INTEGERS or _is_small(limit)):
            return False
        counters = [self.body.inputs[0], *(self.body.inputs[2 + i] for i in range(self.states) if self._counts(i))]
        return number in counters or self._is_next(number)

    def _limit(self) -> Value | None:
        """The integer, of around the loop, below which the number of the next trip has to be; None where others end it,
        too."""
        most, going_on = self.node.input(0), self.body.outputs[0]
        endless = most is None or (most.constant and most.array.size == 1 and int(most.array.item()) >= _ENDLESS)
        if not endless or going_on.graph is not self.body or going_on.users or going_on.output_count > 1:
            return None
        count, given = _compared(going_on)
        if count is None or given is None or not self._is_next(_source(count)):
            return None
        limit = _source(given)
        if limit.graph is self.body or types.rank(limit) != 0:
            return None
        whole = types.dtype(limit) in _INTEGERS or (limit.constant and _is_whole(limit))
        return limit if whole else None

    def _is_next(self, value: Value) -> bool:
        """Is it the number of the next trip?"""
        step = value.producer
        if step is None or step.op != "Add" or step.graph is not self.body:
            return False
        states = [self.body.inputs[2 + i] for i in range(self.states) if self._counts(i)]
        return _other(step, self.body.inputs[0], *states) is not None

    def _starts_below(self, limit: Value) -> bool:
        """Does it begin if and only if the limit is above 0, and is each number compared what it is?"""
        _, given = _compared(self.body.outputs[0])
        if not _is_small(limit) and (given is None or types.dtype(given) not in _INTEGERS):
            return False
        start = self.node.input(1)
        if start is None or (start.constant and start.array.size == 1 and bool(start.array.item())):
            return limit.constant and bool(limit.array.item() > 0)
        zero, above = _compared(start)
        if zero is None or above is None or _source(above) is not limit:
            return False
        exact = types.dtype(above) in _INTEGERS or _is_small(limit)
        return exact and zero.constant and zero.array.size == 1 and zero.array.item() == 0

    # -- what is collected -------------------------------------------------------------------------------

    def give_last(self, ctx: PassContext) -> None:
        """The last of what is collected of a state is the state that is left."""
        of = {_named(v): i for i, v in enumerate(self.body.outputs[self.first_out : self.first_out + self.states])}
        for i in range(self.states, len(self.node.outputs)):
            collected, state = self.result(i), of.get(_named(self.body.outputs[self.first_out + i]))
            left = self.result(state) if state is not None else None
            if collected is None or left is None:
                continue
            for pick in [n for n in collected.users if n.op == "Gather" and n.places(collected) == [0]]:
                index = pick.inputs[1]
                if index is None or not _is_number(index, -1) or pick.attr("axis") != self._joined_along(i):
                    continue
                if ctx.spend("last", at=pick):
                    pick.output.replace_all_uses_with(left)
                    remove_dead(pick)

    def _joined_along(self, i: int) -> int | None:
        """The axis along which a result is collected, forwards."""
        if self.node.op == "Loop":
            return 0
        axes, directions = (self.node.attr(f"scan_output_{said}") or [] for said in ("axes", "directions"))
        at = i - self.states
        if at < len(directions) and directions[at]:
            return None
        return int(axes[at]) if at < len(axes) else 0

    # -- what nothing reads ----------------------------------------------------------------------------------

    def drop_unread(self, ctx: PassContext) -> None:
        """What no result that is read depends on is neither carried nor collected."""
        results = len(self.body.outputs) - self.first_out
        read = [i for i in range(results) if (v := self.result(i)) is not None and v.is_used]
        if not read or len(read) == results:
            return  # dead code is another pass
        live = self._live(read)
        gone = [i for i in range(results) if i not in live]
        if not gone or not ctx.spend("unread", at=self.node):
            return
        for i in reversed(gone):
            self.drop_result(i)
        for inner in reversed(list(self.body)):
            if not inner.is_used and self.body.is_pure(inner):
                self.body.remove(inner)
        for i in reversed([i for i in gone if i < self.states]):
            self._drop_operand(self.first_in + i)
            self.states -= 1

    def _live(self, read: list[int]) -> set[int]:
        """The results that are read, and the states on which they, or effects, depend."""
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


def _named(value: Value) -> Value:
    """What it is, by whatever names it goes."""
    while value.producer is not None and value.producer.op == "Identity" and value.producer.inputs[0] is not None:
        value = value.producer.inputs[0]
    return value


def _is_number(value: Value, number: int) -> bool:
    """Is it this integer, without a dim?"""
    return value.constant and value.constant_type() in [(t, ()) for t in _INTEGERS] and value.array.item() == number


def _other(add: Node, *values: Value) -> Value | None:
    """The 1 that is added to one of these; None where it is none."""
    a, b = add.inputs
    if a is None or b is None:
        return None
    if b in values:
        a, b = b, a
    return b if a in values and _is_number(b, 1) else None


def _compared(less: Value) -> tuple[Value | None, Value | None]:
    """The smaller and the larger, if this says that it is so."""
    node = less.producer
    if node is None or node.op not in ("Less", "Greater"):
        return None, None
    a, b = node.inputs
    return (a, b) if node.op == "Less" else (b, a)


def _conjuncts(condition: Value, body: Graph) -> list[Value]:
    """What has to be true for it to be."""
    found: list[Value] = []
    stack = [condition]
    while stack and len(found) < _MOST:
        node = stack[-1].producer
        if node is not None and node.op == "And" and node.graph is body:
            stack[-1:] = [v for v in node.inputs if v is not None]
        else:
            found.append(stack.pop())
    return [*found, *stack]


def _source(value: Value) -> Value:
    """What is cast, from an integer to a type that can hold it; else the value itself."""
    node = value.producer
    if node is None or node.op != "Cast" or node.inputs[0] is None or node.has_references:
        return value
    wide = node.attr("to") in (TensorProto.INT64, *_FLOATS)
    return node.inputs[0] if wide and types.dtype(node.inputs[0]) in _INTEGERS else value


def _is_whole(limit: Value) -> bool:
    """Is it a number that folding has cast already, and an integer?"""
    return limit.constant_type()[0] in _FLOATS and float(limit.array.item()).is_integer()


def _is_small(limit: Value) -> bool:
    """Is it no larger than what float32 can count, being constant or a dim of a tensor?"""
    if limit.constant:
        return bool(abs(limit.array.item()) <= _EXACT)
    value: Value | None = limit
    for _ in range(_LONGEST):
        node = value.producer if value is not None else None
        if node is None or node.op not in _HANDS_ON or (node.op == "Cast" and node.attr("to") not in _INTEGERS):
            return node is not None and node.op == "Shape"
        value = node.inputs[0]
    return False
