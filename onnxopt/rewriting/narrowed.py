"""Conversion of a plan to a narrow float type, and of the model-local functions that the plan calls."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, zip_longest
from typing import Final

from onnx import FunctionProto, NodeProto

from onnxopt.analysis import types
from onnxopt.analysis.facts import infer_new
from onnxopt.analysis.narrowing import NONE, Slots
from onnxopt.analysis.shapes.sweep import type_outputs
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model, function_label, inner_scopes
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.graph.writer import write_functions
from onnxopt.proto.messages import tensor_type
from onnxopt.rewriting.narrow_plan import Decline, FloatPlan
from onnxopt.rewriting.retyping import Retyping


def convert(plan: FloatPlan, chosen: dict[Node, None]) -> None:
    """Convert the chosen nodes of a plan, and let chosen calls call narrow copies of their functions."""
    plan.chosen = chosen
    Retyping(plan).apply()
    for node, callee in plan.called.items():
        if node in chosen:
            _call(node, plan.calls.converted(callee))


def _call(node: Node, name: str) -> None:
    """Replace a call by a call of the function's narrow copy."""
    graph = node.scope
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    proto.op_type, proto.overload = name, ""
    call = graph.insert(Node(proto, list(node.inputs), []), node.next)
    for i, value in enumerate(list(node.outputs)):
        if value is not None:
            graph.take_over(value, call, i, removed=True)
    graph.remove(node)


# -- calls of model-local functions -------------------------------------------------------------------------------

_SKIPPED: Final = "its function is marked onnxopt.skip"
_ITSELF: Final = "its function calls itself"
_UNKNOWN: Final = "types inside its function are unknown"
_NO_GAIN: Final = "its function gains nothing"


@dataclass(frozen=True)
class _Call:
    """The arguments of a call.

    `kinds`: element type of each input, 0 if absent. `indices`: whether an input holds floats computed from integers.
    """

    function: str
    kinds: tuple[int, ...]
    indices: tuple[bool, ...]


@dataclass(eq=False, repr=False)
class Callee:
    """A function specialised to the argument types `call`.

    `kinds`: element type of each output. `indices`: whether an output holds floats computed from integers. `slots`:
    inputs and outputs that may be narrow. `wanted`: whether the function contains nodes that should be narrow. `why`:
    the reason for staying wide, or an empty string.
    """

    call: _Call
    kinds: tuple[int, ...] = ()
    indices: tuple[bool, ...] = ()
    slots: Slots = NONE
    wanted: bool = False
    why: str = ""


class Calls:
    """Examines and copies the functions of a model, by call, for plans of the narrow type `dtype`."""

    def __init__(self, model: Model, dtype: str, decline: Decline) -> None:
        """`decline`: called with (reason, example) for nodes in functions that stay wide."""
        self.model, self.dtype, self._decline = model, dtype, decline
        self._known: dict[_Call, Callee] = {}
        self._made: dict[_Call, str] = {}  # names of narrow copies
        self._open: list[str] = []  # functions being examined, to detect recursion

    def of(self, node: Node, plan: FloatPlan) -> Callee | None:
        """Return the function called by a node, or None for an operator. Sets unknown types of the node's outputs."""
        callee = self._of(node, plan.indices)
        if callee is not None:
            for v, kind, made_of_integers in zip(node.outputs, callee.kinds, callee.indices):
                if v is not None:
                    v.dtype = v.dtype or kind
                    plan.indices |= {v} if made_of_integers else set()
        return callee

    def _of(self, node: Node, indices: Collection[Value]) -> Callee | None:
        label = function_label(node.domain, node.proto.op_type, node.proto.overload)
        function = self.model.functions.get(label) if self.model.functions else None
        if function is None:
            return None
        given = [v for _, v in zip_longest(function.inputs, node.inputs)]
        kinds = tuple(0 if v is None else types.dtype(v) for v in given)
        call = _Call(label, kinds, tuple(v in indices for v in given))
        if any(v is not None and not kind for v, kind in zip(given, kinds)):
            return Callee(call, why="a type is unknown")
        if label in self._open:
            return Callee(call, why=_ITSELF)
        if call not in self._known:
            self._open.append(label)
            self._known[call] = self._callee(function, call)
            self._open.pop()
        return self._known[call]

    def _callee(self, function: Graph, call: _Call) -> Callee:
        with self._typed(function, call):
            plan = self._plan(function, call, self._decline)
            kinds = tuple(types.dtype(v) for v in function.outputs)
            indices = tuple(v in plan.indices for v in function.outputs)
            given, made = (tuple(v in plan.interface for v in ends) for ends in (function.inputs, function.outputs))
            why = _SKIPPED if function.skipped else "" if all(kinds) else _UNKNOWN
            if not why and not plan.wanted and not _gains(plan):
                why = _NO_GAIN
            return Callee(call, kinds, indices, NONE if why else Slots(given, made), bool(plan.wanted), why)

    def _plan(self, function: Graph, call: _Call, decline: Decline) -> FloatPlan:
        return FloatPlan(
            function,
            self,
            decline=decline,
            indices=[v for v, is_index in zip(function.inputs, call.indices) if is_index],
            absent=[v for v, kind in zip(function.inputs, call.kinds) if not kind],
        )

    def converted(self, callee: Callee) -> str:
        """Return the name of the function's narrow copy, made on the first request."""
        call = callee.call
        if call not in self._made:
            original = self.model.functions[call.function].proto
            if not self._made:
                write_functions(self.model)
            proto = FunctionProto()
            proto.CopyFrom(original)
            proto.overload = ""
            names = (f"{original.name}_{self.dtype}{f'_{i}' if i else ''}" for i in count())
            proto.name = next(n for n in names if function_label(proto.domain, n) not in self.model.functions)
            copy = self.model.add_function(proto)
            forget_unstored(inner_scopes(copy))
            with self._typed(copy, call):
                plan = self._plan(copy, call, lambda reason, example: None)  # declines were reported for the original
                convert(plan, dict.fromkeys(plan.cut()[0]))
            self._made[call] = proto.name
        return self._made[call]

    @contextmanager
    def _typed(self, function: Graph, call: _Call) -> Iterator[None]:
        """Set the element types of values in `function` for `call`; on exit forget types and shapes.

        Functions are polymorphic: another call may pass arguments of different types.
        """
        for v, kind in zip(function.inputs, call.kinds):
            v.dtype = kind
        self._type(function)
        try:
            yield
        finally:
            for scope in inner_scopes(function):
                for v in (*scope.inputs, *(v for node in scope for v in node.results)):
                    v.dtype, v.shape = 0, None

    def _type(self, scope: Graph) -> None:
        for node in scope:
            callee = self._of(node, ())
            if callee is not None:
                for v, kind in zip(node.outputs, callee.kinds):
                    if v is not None:
                        v.dtype = kind
                continue
            for body in node.bodies.values():
                self._type_body(node, body)
            type_outputs(node)
            if any(v is not None and not v.constant and not v.dtype for v in node.outputs):
                infer_new(node)

    def _type_body(self, node: Node, body: Graph) -> None:
        """Set types of a body's inputs, as declared or else as the node's inputs; and of the node's results."""
        for i, (v, info) in enumerate(zip(body.inputs, body.proto.input)):
            given = node.input(i)
            v.dtype = tensor_type(info.type)[0] or (types.dtype(given) if given is not None else 0)
        self._type(body)
        for result, made in zip(node.outputs, body.outputs[1 if node.op == "Loop" else 0 :]):
            if result is not None:
                result.dtype = types.dtype(made)


def _gains(plan: FloatPlan) -> bool:
    """Whether narrow ends add fewer Casts inside the function than one each, which they may save outside."""
    casts, ends = plan.cut()[1], plan.interface
    plan.interface = set()
    casts -= plan.cut()[1]
    plan.interface = ends
    return casts < len(ends)


def forget_unstored(scopes: Iterable[Graph]) -> None:
    """Treat nodes with repeated elements as ordinary nodes: as weights their constants would be materialized."""
    for v in (v for scope in scopes for node in scope for v in node.outputs):
        if v is not None and v.constant and not v.is_stored:
            v.array, v.constant = None, False
