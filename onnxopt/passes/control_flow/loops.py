"""Loop and Scan: smaller interfaces of bodies, and Loops of 0 or 1 iterations inlined."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.constants import REFUSED, told
from onnxopt.analysis.loops import (
    Recurrence,
    compared,
    conjuncts,
    is_counter,
    is_implied,
    is_number,
    limit_of_trips,
    source,
    starts_below,
)
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node, array_of, present, producer
from onnxopt.graph.schema import signature
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.proto.messages import Array
from onnxopt.rewriting.parts import insert_new, of_lists
from onnxopt.rewriting.replace import forward_results, misleads, obstacle, remove_dead


@register
class SimplifyLoops(GraphPass):
    """Removes carried values of Loop and Scan: a body reads an unchanged value from outside, and a value without
    effect on results is dropped.

    Applies when: a state is passed on unchanged; neither a result nor the decisions based on it are read; a counter
    starts at 0 with step 1; a Loop runs while its counter is below a limit, a constant or a dim (at most 16,777,216 if
    compared as float).
    Keeps: a state that the graph around outputs; bodies marked `onnxopt.skip`.
    Frameworks export recurrences as while loops, which carry weights, the number of steps and all counters.
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


class _Loop(Recurrence):
    """A recurrence to rewrite."""

    @property
    def least(self) -> int:
        """The minimum number of states: 1 for a Loop before opset 11; runtimes reject a Loop without."""
        graph = self.node.graph
        said = signature(self.node.op, graph.opset()) if graph is not None else None
        return max(0, said.inputs[0] - self.first_in) if said is not None and self.node.op == "Loop" else 0

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
        """Remove the entry of a scanned tensor from an attribute."""
        said = self.node.attr(attribute)
        if said is not None and i < len(said):
            self.node.set_attr(attribute, said[:i] + said[i + 1 :] or None)

    # -- unchanged states ----------------------------------------------------------------------------------

    def read_unchanged(self, ctx: PassContext) -> None:
        """Replace a state that is passed on unchanged by its initial value, inside and behind the loop."""
        for i in reversed(range(self.states)):
            given, result = self.node.input(self.first_in + i), self.result(i)
            inside, handed = self.body.inputs[self.first_in + i], self.body.outputs[self.first_out + i]
            if given is None or _named(handed) is not inside:
                continue
            stays = inside.output_count > (handed is inside) or self._stays(result)
            if (stays and not inside.users) or not ctx.spend("unchanged", at=inside):
                continue
            inside.redirect_readers(given)
            if result is not None:
                result.redirect_readers(given)
            if not stays:  # neither the body nor the graph around reads it
                self.drop_result(i)
                self._drop_operand(self.first_in + i)
                self.states -= 1

    def _stays(self, result: Value | None) -> bool:
        """Whether the graph around outputs a result, or the loop needs the state to be valid."""
        is_output = result is not None and result.is_output
        return is_output or len(self.body.outputs) == self.first_out + 1 or self.states <= self.least

    # -- the loop's own counter ------------------------------------------------------------------------------

    def use_own_counter(self, ctx: PassContext) -> None:
        """Replace a state counting 0, 1, 2, … by the iteration number; for other types only as an index."""
        for i in range(self.states):
            inside, own = self.body.inputs[2 + i], self.body.inputs[0]
            if not is_counter(self, i):
                continue
            alike = types.dtype(inside) == TensorProto.INT64
            readers = [n for n in inside.users if alike or (n.op == "Gather" and n.places(inside) == [1])]
            if readers and ctx.spend("counter", at=inside):
                for reader in readers:
                    for place in reader.places(inside):
                        reader.set_input(place, own)

    # -- trips -------------------------------------------------------------------------------------------

    def count_trips(self, ctx: PassContext) -> None:
        """Rewrite Loop(true, body: …, i + 1 < n) = Loop(n, body: …, true) if the loop starts under 0 < n."""
        node, graph = self.node, self.node.graph
        limit = limit_of_trips(self)
        if limit is None or graph is None:
            return
        why = "" if starts_below(self, limit) else "it may begin otherwise, or compare otherwise"
        if ctx.spend("trips", at=node, unless=why):
            if limit.constant:
                limit = graph.constant(limit.array.astype(np.int64), limit.name, node)
            elif types.dtype(limit) != TensorProto.INT64:
                limit = graph.make("Cast", [limit], before=node, to=TensorProto.INT64)
            node.set_input(0, limit)
            node.set_input(1, None)
            self.body.give(0, self.body.inputs[1])

    def trust_trips(self, ctx: PassContext) -> None:
        """Rewrite Loop(n, c, body: …, i + 1 < n and i < n) = Loop(n, c, body: …, true); Loop(n, 0 < n) =
        Loop(n, true)."""
        most = self.node.input(0)
        if most is None:
            return
        asked = conjuncts(self.body.outputs[0], self.body)
        if all(is_implied(self, c, most) for c in asked) and ctx.spend("implied", at=self.node):
            self.body.give(0, self.body.inputs[1])
        self._trust_begin(most, ctx)

    def _trust_begin(self, most: Value, ctx: PassContext) -> None:
        """Rewrite Loop(n, 0 < n) = Loop(n, true)."""
        start = self.node.input(1)
        zero, above = compared(start) if start is not None else (None, None)
        if zero is None or above is None or source(above) is not source(most):
            return
        if zero.constant and zero.array.size == 1 and zero.array.item() == 0 and ctx.spend("begun", at=self.node):
            self.node.set_input(1, None)

    # -- collected results -------------------------------------------------------------------------------

    def give_last(self, ctx: PassContext) -> None:
        """Replace the last element of a collected state by the final state."""
        of = {_named(v): i for i, v in enumerate(self.body.outputs[self.first_out : self.first_out + self.states])}
        for i in range(self.states, len(self.node.outputs)):
            collected, state = self.result(i), of.get(_named(self.body.outputs[self.first_out + i]))
            left = self.result(state) if state is not None else None
            if collected is None or left is None:
                continue
            for pick in [n for n in collected.users if self._takes_last(n, collected, i)]:
                if ctx.spend("last", at=pick):
                    left = pick.output.replace_all_uses_with(left)
                    remove_dead(pick)

    def _takes_last(self, pick: Node, collected: Value, i: int) -> bool:
        """Whether a node is a Gather of the last element of a collected state."""
        if pick.op != "Gather" or pick.places(collected) != [0] or pick.attr("axis") != self.joined_along(i):
            return False
        index = pick.inputs[1]
        return index is not None and is_number(index, -1)

    # -- states without readers ------------------------------------------------------------------------------

    def drop_unread(self, ctx: PassContext) -> None:
        """Remove states and scan outputs not needed for any used result."""
        results = len(self.body.outputs) - self.first_out
        read = [i for i in range(results) if (v := self.result(i)) is not None and v.is_used]
        if not read or len(read) == results:
            return  # left to dead-code
        live = self.live(read)
        if self.least and min(live) >= self.states:
            live = min((self.live([*read, i]) for i in range(self.states)), key=len)
        gone = [i for i in range(results) if i not in live]
        if gone and ctx.spend("unread", at=self.node):
            self._drop(gone)

    def _drop(self, gone: list[int]) -> None:
        """Remove states and scan outputs, with the nodes of the body that compute nothing else."""
        for i in reversed(gone):
            self.drop_result(i)
        for inner in reversed(list(self.body)):
            if not inner.is_used and self.body.is_pure(inner):
                self.body.remove(inner)
        for i in reversed([i for i in gone if i < self.states]):
            self._drop_operand(self.first_in + i)
            self.states -= 1


def _named(value: Value) -> Value:
    """Return the value behind Identity nodes."""
    while (node := producer(value, "Identity")) is not None and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


@register
class InlineLoops(GraphPass):
    """Loop(0, cond, v, body) = v; Loop(1, true, v, body) = body(0, true, v), inlined into the outer scope.

    Applies when: the trip count is constant, or the condition is: false at first, or false after the first iteration.
    Keeps: names of the Loop's results; scan outputs, as an element along a new first axis.
    Not done: 0 iterations with a used scan output, whose shape only the runtime knows; bodies marked `onnxopt.skip`.
    """

    info = PassInfo("inline-loops", opt_level=1, ops=("Loop",))

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        inlined = False
        for node in list(graph.by_op.get("Loop", ())):
            trips = _trips(node)
            if trips is None:
                continue
            if ctx.spend("inlined", at=node, unless=_obstacle(graph, node, trips)):
                if trips:
                    _inline(graph, node)
                else:
                    forward_results(graph, node, node.inputs[2:])
                inlined = True
        if inlined:
            types.update(graph.model)  # downstream shapes held for any number of iterations


def _obstacle(graph: Graph, node: Node, trips: int) -> str:
    """Return why a Loop of 0 or 1 iterations must stay, or an empty string."""
    body = node.bodies["body"]
    carried = len(body.inputs) - 2
    if len(node.inputs[2:]) != carried or None in node.inputs[2:]:
        return "it is not given what it carries"
    if trips:
        return obstacle(graph, body) or (REFUSED if misleads(_instead(graph, node, body, carried)) else "")
    if any(v.is_used for v in present(node.outputs[carried:])):
        return "what no trip collects has a shape that is not known"
    return REFUSED if misleads(zip(node.outputs, node.inputs[2:])) else ""


def _trips(node: Node) -> int | None:
    """Return 0 or 1 if the Loop makes so many iterations, else None."""
    count, condition, going_on = node.inputs[0], node.input(1), node.bodies["body"].outputs[0]
    limit = _scalar(count)
    if (limit is not None and limit <= 0) or _scalar(condition) == 0:
        return 0
    surely_starts = (condition is None or _scalar(condition)) and (count is None or limit is not None)
    if surely_starts and (limit == 1 or _scalar(going_on) == 0):
        return 1
    return None


def _scalar(value: Value | None) -> int | None:
    array = array_of(value)
    return int(array.item()) if array is not None and array.size == 1 else None


def _instead(
    graph: Graph, node: Node, body: Graph, carried: int
) -> Iterator[tuple[Value | None, Array | Value | None]]:
    """Yield (value, replacement) for the body's inputs and the Loop's results."""
    yield from zip(body.inputs, [*_counted(body), *node.inputs[2:]])
    yield from zip(node.outputs, body.outputs[1 : 1 + carried])
    for value, one in zip(node.outputs[carried:], body.outputs[1 + carried :]):
        wide, dims = Value(one.name, graph), told(one)
        wide.dtype, wide.shape = types.dtype(one), None if dims is None else (1, *dims)
        yield value, wide


def _counted(body: Graph) -> tuple[Array, Array]:
    """Return the first iteration number and the true condition, with the ranks declared in the file."""
    ranks = [len(info.type.tensor_type.shape.dim) for info in body.proto.input[:2]]
    return np.zeros([1] * ranks[0], np.int64), np.ones([1] * ranks[1], bool)


def _inline(graph: Graph, node: Node) -> None:
    body = node.bodies["body"]
    carried = len(body.inputs) - 2
    counted = [graph.constant(a, v.name, node) for a, v in zip(_counted(body), body.inputs)]
    _, *results = graph.inline(body, [*counted, *present(node.inputs[2:])])  # all are present, otherwise declined
    collected = [insert_new(graph, of_lists(graph, "Unsqueeze", v, node, [0]), v, node) for v in results[carried:]]
    forward_results(graph, node, [*results[:carried], *collected])
