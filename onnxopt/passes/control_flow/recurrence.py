"""Recurrences: steps of a Loop computed at once, axes of a Scan, and initial states of recurrent operators."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.constants import distinct
from onnxopt.analysis.shapes.sizes import known_order
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node
from onnxopt.operators import MULTIDIRECTIONAL, PICKS, RANDOM, RECURRENT, REDUCTIONS, UNARY
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.messages import Array, make_node
from onnxopt.rewriting.parts import insert_new, of_axes
from onnxopt.rewriting.replace import forward_results
from onnxopt.rewriting.rule import FORMS, listed_axes, operands

# Independent iterations of a Loop become a single computation with an additional axis.

_TRIPS: Final = 1 << 12
_PICKED: Final = 1 << 16  # indices stored for all iterations


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
            if reason := batch.reason():
                ctx.decline("batched", reason, repr(node))
            elif ctx.spend("batched", at=node):
                batch.carry_out()


def _trips(node: Node) -> int | None:
    """Return the trip count if constant and no state is carried, else None."""
    body, count, condition = node.bodies["body"], node.inputs[0], node.input(1)
    if len(node.inputs) > 2 or len(body.inputs) != 2 or body.skipped or count is None or not count.constant:
        return None
    goes_on = body.outputs[0]
    maker = goes_on.producer
    handed = maker.inputs[0] if maker is not None and maker.op == "Identity" else goes_on
    always = handed is body.inputs[1] or (handed is not None and handed.constant and handed.array.all())
    begins = condition is None or (condition.constant and condition.array.all())
    trips = int(count.array.reshape(-1)[0]) if count.array.size == 1 else 0
    return trips if always and begins and 1 < trips <= _TRIPS else None


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
        counter = self.body.inputs[0]
        rank = types.rank(counter)
        goes_on = self.body.outputs[0]
        read = goes_on.users or self.body.inputs[1].users.keys() - {goes_on.producer}
        if rank is None or (read and not goes_on.constant):
            return "its counter has an unknown rank, or its condition is read"
        self.found[counter] = np.arange(self.trips, dtype=np.int64).reshape(-1, *[1] * rank)
        results = self.body.outputs[1:]
        for node in self.body:
            if node.output is goes_on:
                continue
            if len(node.outputs) != 1 or node.has_references or node.bodies or node.op in RANDOM:
                return f"{node.op} in its body"
            if why := self._step(node):
                return why
        for v in results:
            made = self.found.get(v)
            if not isinstance(made, _Step) or not made.varies:
                return "a result is the same in each trip"
        return ""

    def _operand(self, v: Value | None) -> Operand:
        return v if v is None else self.found.get(v, v)

    def _step(self, node: Node) -> str:
        given = [self._operand(v) for v in operands(node)]
        if not any(isinstance(v, np.ndarray) or (isinstance(v, _Step) and v.varies) for v in given):
            return self._add(node, given, types.rank(node.output), varies=False)
        data = given[0]
        ranks = [_rank(v) for v in given if v is not None]
        if node.op == "Gather" and not isinstance(data, np.ndarray) and not int(node.attr("axis", 0)):
            return self._gather(node, given, ranks)
        if node.op == "Slice" and isinstance(data, Value):
            return self._slice(node, data, given[1:])
        if node.op in ("Squeeze", "Unsqueeze", *REDUCTIONS) and isinstance(data, np.ndarray | _Step):
            return self._along(node, data)
        if node.op not in UNARY and node.op not in MULTIDIRECTIONAL:
            return f"{node.op} in its body"
        known = [r for r in ranks if r is not None]
        rank = max(known, default=0)
        # Behind the batch axis, each operand has the axes of a single iteration.
        own = [_rank(v) for v in given if isinstance(v, np.ndarray) or (isinstance(v, _Step) and v.varies)]
        if len(known) < len(ranks) or any(r != rank for r in own):
            return "operands of other ranks, or unknown ones"
        return self._add(node, given, rank)

    def _add(
        self, node: Node, given: list[Operand], rank: int | None, axes: list[int] | None = None, varies: bool = True
    ) -> str:
        self.found[node.output] = _Step(len(self.steps), rank, varies)
        self.steps.append((node, given, axes))
        return ""

    def _gather(self, node: Node, given: list[Operand], ranks: list[int | None]) -> str:
        data, places = given[:2]
        if isinstance(data, _Step) and data.varies:
            return "rows of what each trip has its own of"
        if isinstance(places, np.ndarray) and isinstance(data, Value) and data.constant:
            kind, dims = data.constant_type()
            listed = kind == TensorProto.INT64 and 0 < prod(dims) <= _PICKED and dims
            if listed and ((places >= 0) & (places < dims[0])).all():
                self.found[node.output] = data.array[places]
                return ""
        if ranks[0] is None or ranks[1] is None:
            return "operands of other ranks, or unknown ones"
        return self._add(node, given, ranks[0] + ranks[1] - 1)

    def _along(self, node: Node, data: Array | _Step) -> str:
        """Add an operator along axes, counted behind the batch axis."""
        own, axes = _rank(data), listed_axes(node)
        if own is None:
            return "operands of other ranks, or unknown ones"
        if axes is None and node.op in REDUCTIONS and node.input(1) is None:
            axes = [] if node.attr("noop_with_empty_axes", 0) else [*range(own)]
        wide = own + len(axes or ()) if node.op == "Unsqueeze" else own
        if not axes or not all(-wide <= a < wide for a in axes):
            return "axes that are computed, or not there"
        moved = sorted({a % wide + 1 for a in axes})
        if isinstance(data, np.ndarray) and node.op in ("Squeeze", "Unsqueeze"):
            if node.op == "Squeeze" and any(data.shape[a] != 1 for a in moved):
                return "axes that are computed, or not there"
            change = np.squeeze if node.op == "Squeeze" else np.expand_dims
            self.found[node.output] = change(data, tuple(moved))
            return ""
        goes = node.op == "Squeeze" or (node.op in REDUCTIONS and not node.keeps_dims)
        return self._add(node, [data], own - len(moved) if goes else wide, moved)

    def _slice(self, node: Node, data: Value, given: list[Operand]) -> str:
        """Add a Slice as a Gather, if all iterations take equally many elements of an invariant tensor."""
        starts, ends, axes, steps = [*given, None, None][:4]
        dims = types.shape(data)
        size = dims[0] if dims else None
        if not isinstance(size, int) or not isinstance(starts, np.ndarray) or not isinstance(ends, np.ndarray):
            return "slices of what each trip has its own of, of unknown size, or by computed places"
        plain = [v is None or (isinstance(v, Value) and v.constant and v.array.size == 1) for v in (axes, steps)]
        if not all(plain) or starts.shape != (self.trips, 1) or ends.shape != (self.trips, 1):
            return "slices along several axes"
        first, step = (int(v.array.item()) if isinstance(v, Value) else d for v, d in ((axes, 0), (steps, 1)))
        if first not in (0, -len(dims or ())) or step != 1:
            return "slices along another axis, or by steps"
        bounds = [slice(int(a), int(b)).indices(size)[:2] for a, b in zip(starts[:, 0], ends[:, 0])]
        length = bounds[0][1] - bounds[0][0]
        if length < 1 or any(b - a != length for a, b in bounds) or length * self.trips > _PICKED:
            return "slices of different lengths, or empty ones"
        places = np.array([range(a, b) for a, b in bounds], np.int64)
        return self._add(node, [data, places], len(dims or ()))

    def carry_out(self) -> None:
        graph, loop, made = self.graph, self.loop, list[Value]()
        for node, given, axes in self.steps:
            inputs = [self._read(v, made) for v in given]
            if axes is not None and node.op in REDUCTIONS:
                new = self._reduce(node, inputs[0], axes)
            elif axes is not None:
                new = of_axes(graph, node.op, inputs[0], axes, loop)
            elif node.op == "Slice" and isinstance(given[1], np.ndarray):
                new = Node(make_node("Gather", "", "", {"axis": 0}), inputs, [])
            else:
                new = node.copy(inputs, [])
            made.append(insert_new(graph, new, node.output, loop))
        results = [self.found[v] for v in self.body.outputs[1:]]
        forward_results(graph, loop, [made[r.place] for r in results if isinstance(r, _Step)])

    def _read(self, v: Operand, made: list[Value]) -> Value | None:
        if isinstance(v, _Step):
            return made[v.place]
        if isinstance(v, np.ndarray):
            return self.graph.constant(v, f"{self.loop.name or 'loop'}_places", self.loop)
        if v is not None and v.graph is self.body:  # a constant of the body
            return self.graph.constant(v.array, v.name, self.loop)
        return v

    def _reduce(self, node: Node, x: Value | None, axes: list[int]) -> Node:
        keep = {"keepdims": int(node.keeps_dims)}
        if self.graph.opset() < FORMS[node.op].since:
            return Node(make_node(node.op, "", "", {"axes": axes, **keep}), [x], [])
        given = self.graph.constant(np.array(axes, np.int64), f"{node.output.name}_axes", self.loop)
        return Node(make_node(node.op, "", "", keep), [x, given], [])


def _rank(v: Operand) -> int | None:
    """Return the rank of an operand in a single iteration."""
    if isinstance(v, np.ndarray):
        return v.ndim - 1
    if isinstance(v, _Step):
        return v.rank
    return types.rank(v) if v is not None else None


# Transposes around a Scan, replaced by scan axes.

_SCAN_OF_AXES = 9  # first opset with scan axes


@register
class ScanAxes(GraphPass):
    """Scan(Transpose(x)) = Scan(x) along another axis; Transpose(Scan(x)) = Scan(x), collected along another axis.

    Applies when: the Transpose moves the scanned axis and keeps the order of the others, and inner values have no other
    readers.
    Recurrences scan over time, the second axis of a batch; distances of scikit-learn's neighbours scan over rows.
    """

    info = PassInfo("scan-axes", opt_level=1, after=("simplify-loops",), ops=("Scan",))

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.opset() < _SCAN_OF_AXES:
            return
        for node in graph.by_op.get("Scan", ()):
            scanned = node.attr("num_scan_inputs")
            if not node.has_references and isinstance(scanned, int) and 0 < scanned <= len(node.inputs):
                _read_untransposed(node, len(node.inputs) - scanned, ctx)
                _collect_transposed(graph, node, len(node.inputs) - scanned, ctx)


def _read_untransposed(scan: Node, states: int, ctx: PassContext) -> None:
    for i in range(states, len(scan.inputs)):
        given = scan.inputs[i]
        transpose = given.producer if given is not None else None
        if given is None or transpose is None or transpose.op != "Transpose" or given.only_user is not scan:
            continue
        perm, source = _perm(transpose), transpose.inputs[0]
        axes = _axes(scan, "scan_input_axes", len(scan.inputs) - states)
        if perm is None or source is None or len(scan.places(given)) > 1:
            continue
        axis = axes[i - states] % len(perm)
        if _others_stay(perm, axis) and ctx.spend("input", at=transpose):
            axes[i - states] = perm[axis]
            scan.set_input(i, source)
            scan.set_attr("scan_input_axes", axes)


def _collect_transposed(graph: Graph, scan: Node, states: int, ctx: PassContext) -> None:
    for i in range(states, len(scan.outputs)):
        made = scan.outputs[i]
        transpose = made.only_user if made is not None else None
        if made is None or transpose is None or transpose.op != "Transpose" or transpose.graph is not graph:
            continue
        perm = _perm(transpose)
        if perm is None:
            continue
        axes = _axes(scan, "scan_output_axes", len(scan.outputs) - states)
        axis = perm.index(axes[i - states] % len(perm))
        if _others_stay(perm, axis) and ctx.spend("output", at=transpose):
            axes[i - states] = axis
            graph.take_over(transpose.output, scan, i)
            graph.remove(transpose)
            scan.set_attr("scan_output_axes", axes)


def _perm(transpose: Node) -> tuple[int, ...] | None:
    """Return the permutation if valid and known, else None."""
    given: Value | None = transpose.inputs[0]
    rank = types.rank(given) if given is not None else None
    return None if transpose.has_references or not rank else known_order(transpose, rank)


def _others_stay(perm: Sequence[int], axis: int) -> bool:
    rest = [*perm[:axis], *perm[axis + 1 :]]
    return rest == sorted(rest)


def _axes(scan: Node, attribute: str, count: int) -> list[int]:
    given = list(scan.attr(attribute) or [])
    return given + [0] * (count - len(given))


# Optional inputs equal to their default.

_STATES: Final = (5, 6)  # initial states of a recurrent operator
_MAX_EXAMINED: Final = 32  # values examined


@register
class DefaultInputs(GraphPass):
    """Removes initial states of recurrent networks that are zero, for any size.

    Applies when: the state is a constant of zeros, or zeros of a computed shape, perhaps sliced, reshaped or
    concatenated.
    """

    info = PassInfo("default-inputs", opt_level=1, ops=RECURRENT)

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        for op in RECURRENT:
            for node in graph.by_op.get(op, ()):
                for i in _STATES:
                    value = node.input(i)
                    if value is None or not _is_zero(value):
                        continue
                    if ctx.spend("zero_state", at=node):
                        node.set_input(i, None)


def _is_zero(value: Value) -> bool:
    """Whether every element is +0, followed through operators that move or concatenate elements."""
    asked = [value]
    for value in asked:
        if value.constant:
            array = distinct(value.array)
            if element_kind(array) not in "fiu" or array.tobytes().strip(b"\0") or array.any():  # E8M0 has no zero
                return False
            continue
        node = value.producer
        if node is None or node.has_references or len(asked) > _MAX_EXAMINED:
            return False
        if node.op == "ConstantOfShape":
            fill = node.attr("value")
            if fill is not None and fill.tobytes().strip(b"\0"):
                return False
        elif node.op in ("Cast", "Concat") or node.op in PICKS:
            handed_on = node.inputs if node.op == "Concat" else node.inputs[:1]
            asked += [v for v in handed_on if v is not None and v not in asked]
        else:
            return False
    return True
