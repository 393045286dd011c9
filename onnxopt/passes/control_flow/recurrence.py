"""Recurrences: steps of a Loop computed at once, axes of a Scan, and initial states of recurrent operators."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.constants import repeated
from onnxopt.analysis.shapes.sizes import known_order
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node, array_of, producer, sole_reader
from onnxopt.operators import MULTIDIRECTIONAL, RANDOM, RECURRENT, REDUCTIONS, UNARY
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.messages import Array, make_node
from onnxopt.rewriting.parts import insert_new, of_lists
from onnxopt.rewriting.replace import forward_results
from onnxopt.rewriting.rule import Declined, canonical_operands, listed_axes, require

_TRIPS: Final = 1 << 12
_PICKED: Final = 1 << 16  # indices stored for all iterations
_SCAN_OF_AXES: Final = 9  # first opset with scan axes
_STATES: Final = (5, 6)  # initial states of a recurrent operator
_MAX_EXAMINED: Final = 32  # values examined
_RANKS: Final = "operands of other ranks, or unknown ones"
_AXES: Final = "axes that are computed, or not there"


class _Step(NamedTuple):
    """Result of a step: its index, its rank in a single iteration, and whether it varies between iterations."""

    place: int
    rank: int | None
    varies: bool


Operand: TypeAlias = "Value | Array | _Step | None"  # Array: what each iteration reads, along a new first axis


@register
class BatchLoops(GraphPass):
    """Loop(n; i → f(x[aᵢ])) = f(Gather(x, a)), with the iterations as first axis.

    Applies when: the trip count is constant, no state is carried, and the body picks rows and slices at constant
    indices and computes with them: Gather, Slice, Reduce, elementwise operators. PyTorch's EmbeddingBag is exported
    like this, with an iteration for each bag.
    Not done: slices of different lengths.
    """

    # At -O2, as the order of summation may change.
    info = PassInfo("batch-loops", opt_level=2, after=("inline-loops", "simplify-loops"), ops=("Loop",))

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.opset() < 8:
            return  # attributes name the broadcast axes
        for node in list(graph.by_op.get("Loop", ())):
            trips = _trips(node)
            if trips is None:
                continue
            types.settle(graph.model)  # bodies are inferred together with the graph around
            batch = _Batch(node, trips)
            if ctx.spend("batched", at=node, unless=batch.reason()):
                batch.carry_out()


def _trips(node: Node) -> int | None:
    """Return the trip count if constant and no state is carried, else None."""
    body, count, condition = node.bodies["body"], node.inputs[0], node.input(1)
    number = array_of(count)
    if len(node.inputs) > 2 or len(body.inputs) != 2 or body.skipped or number is None or number.size != 1:
        return None
    trips = int(number.reshape(-1)[0])
    return trips if _goes_on(body) and (condition is None or _is_true(condition)) and 1 < trips <= _TRIPS else None


def _goes_on(body: Graph) -> bool:
    """Whether the body returns its condition, or true."""
    maker = producer(body.outputs[0], "Identity")
    handed = maker.inputs[0] if maker is not None else body.outputs[0]
    return handed is body.inputs[1] or _is_true(handed)


def _is_true(condition: Value | None) -> bool:
    array = array_of(condition)
    return array is not None and bool(array.all())


def _is_plain(node: Node) -> bool:
    """Whether a node has a single result, the same in each run, and no body."""
    return len(node.outputs) == 1 and not node.has_references and not node.bodies and node.op not in RANDOM


class _Batch:
    """A Loop as a batched computation: operator, operands and axes of each step."""

    def __init__(self, loop: Node, trips: int) -> None:
        assert loop.graph is not None
        self.loop, self.trips, self.graph = loop, trips, loop.graph
        self.body = loop.bodies["body"]
        self.steps: list[tuple[Node, list[Operand], list[int] | None]] = []
        self.found: dict[Value, Array | _Step] = {}

    def reason(self) -> str:
        """Return why the Loop must stay, or an empty string."""
        try:
            self._look()
        except Declined as e:
            return str(e)
        return ""

    def _look(self) -> None:
        """Find the step for each node of the body. Raises Declined."""
        counter, goes_on = self.body.inputs[0], self.body.outputs[0]
        rank = types.rank(counter)
        read = goes_on.users or self.body.inputs[1].users.keys() - {goes_on.producer}
        known = rank is not None and (not read or goes_on.constant)
        require(known, "its counter has an unknown rank, or its condition is read")
        self.found[counter] = np.arange(self.trips, dtype=np.int64).reshape(-1, *[1] * (rank or 0))
        for node in self.body:
            if node.output is not goes_on:
                require(_is_plain(node), f"{node.op} in its body")
                self._step(node)
        made = (self.found.get(v) for v in self.body.outputs[1:])
        require(all(isinstance(v, _Step) and v.varies for v in made), "a result is the same in each trip")

    def _operand(self, v: Value | None) -> Operand:
        return v if v is None else self.found.get(v, v)

    def _step(self, node: Node) -> None:
        given = [self._operand(v) for v in canonical_operands(node)]
        own = [_rank(v) for v in given if _varies(v)]
        if not own:
            self._add(node, given, types.rank(node.output), varies=False)
            return
        data = given[0]
        if node.op == "Gather" and not isinstance(data, np.ndarray) and not int(node.attr("axis", 0)):
            self._gather(node, given)
        elif node.op == "Slice" and isinstance(data, Value):
            self._slice(node, data, given[1:])
        elif node.op in ("Squeeze", "Unsqueeze", *REDUCTIONS) and isinstance(data, np.ndarray | _Step):
            self._along(node, data)
        else:
            self._elementwise(node, given, own)

    def _elementwise(self, node: Node, given: list[Operand], own: list[int | None]) -> None:
        """Add an elementwise operator. Behind the batch axis, each operand has the axes of a single iteration."""
        require(node.op in UNARY or node.op in MULTIDIRECTIONAL, f"{node.op} in its body")
        ranks = [_rank(v) for v in given if v is not None]
        rank = max((r for r in ranks if r is not None), default=0)
        require(None not in ranks and all(r == rank for r in own), _RANKS)
        self._add(node, given, rank)

    def _add(
        self, node: Node, given: list[Operand], rank: int | None, axes: list[int] | None = None, varies: bool = True
    ) -> None:
        self.found[node.output] = _Step(len(self.steps), rank, varies)
        self.steps.append((node, given, axes))

    def _gather(self, node: Node, given: list[Operand]) -> None:
        data, places = given[:2]
        require(not isinstance(data, _Step) or not data.varies, "rows of what each trip has its own of")
        if isinstance(places, np.ndarray) and isinstance(data, Value) and _lists(data, places):
            self.found[node.output] = data.array[places]
            return
        rank, picked = _rank(data), _rank(places)
        require(rank is not None and picked is not None, _RANKS)
        self._add(node, given, (rank or 0) + (picked or 0) - 1)

    def _along(self, node: Node, data: Array | _Step) -> None:
        """Add an operator along axes, counted behind the batch axis."""
        own = _rank(data)
        require(own is not None, _RANKS)
        rank = own or 0
        axes = _axes_along(node, rank)
        wide = rank + len(axes) if node.op == "Unsqueeze" else rank
        require(axes and all(-wide <= a < wide for a in axes), _AXES)
        moved = sorted({a % wide + 1 for a in axes})
        if isinstance(data, np.ndarray) and node.op not in REDUCTIONS:
            self.found[node.output] = _of_known(node.op, data, tuple(moved))
        else:
            goes = node.op == "Squeeze" or (node.op in REDUCTIONS and not node.keeps_dims)
            self._add(node, [data], rank - len(moved) if goes else wide, moved)

    def _slice(self, node: Node, data: Value, given: list[Operand]) -> None:
        """Add a Slice as a Gather, if all iterations take equally many elements of an invariant tensor."""
        starts, ends, axes, steps = [*given, None, None][:4]
        size, rank = types.length_of(data, 0), len(types.dims_of(data))
        if size is None or not isinstance(starts, np.ndarray) or not isinstance(ends, np.ndarray):
            raise Declined("slices of what each trip has its own of, of unknown size, or by computed places")
        first, step = _number(axes, 0), _number(steps, 1)
        alone = first is not None and step is not None and starts.shape == ends.shape == (self.trips, 1)
        require(alone, "slices along several axes")
        require(first in (0, -rank) and step == 1, "slices along another axis, or by steps")
        self._add(node, [data, _places_between(starts[:, 0], ends[:, 0], size)], rank)

    def carry_out(self) -> None:
        graph, loop, made = self.graph, self.loop, list[Value]()
        for node, given, axes in self.steps:
            new = self._batched(node, given, [self._read(v, made) for v in given], axes)
            made.append(insert_new(graph, new, node.output, loop))
        results = [self.found[v] for v in self.body.outputs[1:]]
        forward_results(graph, loop, [made[r.place] for r in results if isinstance(r, _Step)])

    def _batched(self, node: Node, given: list[Operand], inputs: list[Value | None], axes: list[int] | None) -> Node:
        """Return the operator that runs a step for all iterations."""
        if axes is not None:
            keep = {"keepdims": int(node.keeps_dims)} if node.op in REDUCTIONS else {}
            return of_lists(self.graph, node.op, inputs[0], self.loop, axes, **keep)
        if node.op == "Slice" and isinstance(given[1], np.ndarray):
            return Node(make_node("Gather", "", "", {"axis": 0}), inputs, [])
        return node.copy(inputs, [])

    def _read(self, v: Operand, made: list[Value]) -> Value | None:
        if isinstance(v, _Step):
            return made[v.place]
        if isinstance(v, np.ndarray):
            return self.graph.constant(v, f"{self.loop.name or 'loop'}_places", self.loop)
        if v is not None and v.graph is self.body:  # a constant of the body
            return self.graph.constant(v.array, v.name, self.loop)
        return v


def _axes_along(node: Node, rank: int) -> list[int]:
    """Return the axes that a node adds, drops or reduces; none if computed, or nothing is reduced."""
    if node.op in REDUCTIONS and node.input(1) is None and not node.attr("noop_with_empty_axes", 0):
        return listed_axes(node) or [*range(rank)]
    return listed_axes(node) or []


def _of_known(op: str, data: Array, axes: tuple[int, ...]) -> Array:
    """Return the result of a Squeeze or Unsqueeze of known numbers."""
    if op == "Unsqueeze":
        return np.expand_dims(data, axes)
    require(all(data.shape[a] == 1 for a in axes), _AXES)
    return np.squeeze(data, axes)


def _varies(v: Operand) -> bool:
    """Whether each iteration reads an operand of its own."""
    return isinstance(v, np.ndarray) or (isinstance(v, _Step) and v.varies)


def _number(v: Operand, default: int) -> int | None:
    """Return the number in an operand, or the default of an absent one; None if computed, or several."""
    if v is None:
        return default
    return int(v.array.item()) if isinstance(v, Value) and v.constant and v.array.size == 1 else None


def _places_between(starts: Array, ends: Array, size: int) -> Array:
    """Return the places taken by each iteration; declines unless all take equally many."""
    bounds = [slice(int(a), int(b)).indices(size)[:2] for a, b in zip(starts, ends)]
    length = bounds[0][1] - bounds[0][0]
    equal = length > 0 and all(b - a == length for a, b in bounds) and length * len(bounds) <= _PICKED
    require(equal, "slices of different lengths, or empty ones")
    return np.array([range(a, b) for a, b in bounds], np.int64)


def _lists(data: Value, places: Array) -> bool:
    """Whether `data` is a short list of integers, and has elements at all `places`."""
    kind, dims = data.constant_type() if data.constant else (0, ())
    is_list = kind == TensorProto.INT64 and dims and 0 < prod(dims) <= _PICKED
    return bool(is_list and ((places >= 0) & (places < dims[0])).all())


def _rank(v: Operand) -> int | None:
    """Return the rank of an operand in a single iteration."""
    if isinstance(v, np.ndarray):
        return v.ndim - 1
    if isinstance(v, _Step):
        return v.rank
    return types.rank(v) if v is not None else None


@register
class ScanAxes(GraphPass):
    """Transpose(Scan(x)) = Scan(x), collected along another axis.

    Applies when: the Transpose moves the scanned axis and keeps the order of the others, and inner values have no other
    readers. Distances of scikit-learn's neighbours scan over rows.
    """

    info = PassInfo("scan-axes", opt_level=1, after=("simplify-loops",), ops=("Scan",))

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        for node in graph.by_op.get("Scan", ()) if graph.opset() >= _SCAN_OF_AXES else ():
            scanned = node.attr("num_scan_inputs")
            if not node.has_references and isinstance(scanned, int) and 0 < scanned <= len(node.inputs):
                _collect_transposed(graph, node, len(node.inputs) - scanned, ctx)


def _collect_transposed(graph: Graph, scan: Node, states: int, ctx: PassContext) -> None:
    for i in range(states, len(scan.outputs)):
        transpose = sole_reader(scan.outputs[i], "Transpose")
        if transpose is None or transpose.graph is not graph or transpose.has_references:
            continue
        perm = known_order(transpose, len(types.dims_of(transpose.inputs[0])))
        if not perm:
            continue
        given = list(scan.attr("scan_output_axes") or [])
        axes = given + [0] * (len(scan.outputs) - states - len(given))
        axis = perm.index(axes[i - states] % len(perm))
        rest = [*perm[:axis], *perm[axis + 1 :]]
        if rest == sorted(rest) and ctx.spend("output", at=transpose):
            axes[i - states] = axis
            graph.take_over(transpose.output, scan, i)
            graph.remove(transpose)
            scan.set_attr("scan_output_axes", axes)


@register
class DefaultInputs(GraphPass):
    """Removes initial states of recurrent networks that are zero, for any size.

    Applies when: the state is a constant of zeros, or zeros of a computed shape, perhaps sliced, reshaped or
    concatenated.
    """

    info = PassInfo("default-inputs", opt_level=1, ops=RECURRENT)

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        for op in RECURRENT:
            for node, i in product(graph.by_op.get(op, ()), _STATES):
                value = node.input(i)
                if value is not None and _is_zero(value) and ctx.spend("zero_state", at=node):
                    node.set_input(i, None)


def _is_zero(value: Value) -> bool:
    """Whether every element is +0, followed through operators that move or concatenate elements."""
    asked = [value]
    for value in asked:
        joined = producer(value, "Concat") if not value.constant else None
        element = repeated(value, "Cast")
        if joined is not None and len(asked) <= _MAX_EXAMINED:
            asked += [v for v in joined.operands if v not in asked]
        elif element is None or element_kind(element) not in "fiu" or element.any() or np.signbit(element):
            return False  # E8M0 has no zero
    return True
