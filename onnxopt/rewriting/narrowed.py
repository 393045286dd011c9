"""Conversion of a plan to a narrow float type, and of the model-local functions that the plan calls."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, zip_longest
from typing import Any, Final

from onnx import FunctionProto, NodeProto

from onnxopt.analysis import types
from onnxopt.analysis.narrowing import NONE, RESULT_TYPE, Slots, fill
from onnxopt.analysis.shapes.sweep import type_outputs
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model, function_label, inner_scopes
from onnxopt.graph.node import Node
from onnxopt.graph.structure import interface_of
from onnxopt.graph.value import Value
from onnxopt.graph.writer import write_functions
from onnxopt.proto.messages import make_node, tensor_type
from onnxopt.rewriting.narrow_plan import FLOAT, Decline, Plan, is_wide


class Conversion:
    """Converts nodes, and inserts Casts between narrow and wide ones."""

    def __init__(self, plan: Plan, narrow: dict[Node, None]) -> None:
        self.plan = plan
        self.model = plan.model
        self.narrow = narrow
        self.casts: dict[tuple[Value, Graph], Value] = {}
        self.constants: dict[Value, Value] = {}
        self.changed: set[str] = set()  # names of values with a changed type

    def apply(self) -> None:
        plan = self.plan
        values = list(plan.values())
        made = {v: plan.gives(v) and v.producer in self.narrow for v in values}
        for node in self.narrow:
            if any(made.get(v, False) for v in node.results):
                self._set_type(node)
            self._narrow_constants(node)
        for value in values:
            self._cast_readers(value, made[value])
        self._declare()
        for node, callee in plan.called.items():
            if node in self.narrow:
                self._call(node, callee)

    def _narrow_constants(self, node: Node) -> None:
        for i, v in enumerate(node.inputs):
            if is_wide(v) and v.constant and self.plan.free[node].takes(i):
                node.set_input(i, self._constant(v))

    def _cast_readers(self, value: Value, is_made_narrow: bool) -> None:
        """Let the readers of a value read its wide or narrow form."""
        # A Cast to float32 may read a converted value by now; a converted Cast widens nothing.
        source = self.plan.narrow_source(value) if value.producer not in self.narrow else None
        given = value in self.plan.interface
        if source is not None:
            self._bypass(value, source)
        elif value.is_output and value.producer is not None and is_made_narrow != given:
            self._feed(value, self._give_out(value, is_made_narrow), given)
        else:
            self._feed(value, None, is_made_narrow or given)

    def _call(self, node: Node, callee: Callee) -> None:
        """Replace a call by a call of the function's narrow copy."""
        graph = node.scope
        proto = NodeProto()
        proto.CopyFrom(node.proto)
        proto.op_type, proto.overload = self.plan.calls.converted(callee), ""
        call = graph.insert(Node(proto, list(node.inputs), []), node.next)
        for i, value in enumerate(list(node.outputs)):
            if value is not None:
                graph.take_over(value, call, i, removed=True)
        graph.remove(node)

    def _code(self, is_narrow: bool) -> int:
        return self.plan.code if is_narrow else FLOAT

    def _feed(self, value: Value, other: Value | None, is_narrow: bool) -> None:
        """Give each reader of `value` its type. `is_narrow`: type of `value`; `other`: the value in the other type."""
        if is_narrow:
            value.dtype = self.plan.code
            self.changed.add(value.name)
        for user in list(value.users):
            for i in user.places(value):
                wanted = user in self.narrow and self.plan.free[user].takes(i)
                if wanted != is_narrow and not self.plan.is_cast(user):
                    user.set_input(i, other or self._cast(value, user.scope, wanted))

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

    def _new(self, value: Value, is_narrow: bool) -> Value:
        name = self.plan.dtype if is_narrow else "float32"
        made = Value(self.model.names.fresh(f"{value.name}_{name}"), value.graph)
        made.dtype, made.shape = self._code(is_narrow), value.shape
        return made

    def _bypass(self, value: Value, source: Value) -> None:
        """Make converted readers read the operand of a widening Cast."""
        for user in list(value.users):
            if user in self.narrow:
                for i in user.places(value):
                    if self.plan.free[user].takes(i):
                        user.set_input(i, source)

    def _cast(self, value: Value, scope: Graph, is_narrow: bool) -> Value:
        """Return the value in the other type, cast in the reading scope; captured values stay unchanged."""
        known = self.casts.get((value, scope))
        if known is not None:
            return known
        made = self.casts[value, scope] = self._new(value, is_narrow)
        node = Node(make_node("Cast", "", "", {"to": self._code(is_narrow)}), [value], [made])
        behind = value.producer if value.graph is scope else None
        scope.insert(node, behind.next if behind is not None else scope.first)
        return made

    def _constant(self, value: Value) -> Value:
        if value not in self.constants:
            array = self.plan.weight(value).array
            assert array is not None
            self.constants[value] = value.graph.constant(array, f"{value.name}_{self.plan.dtype}", value.producer)
        return self.constants[value]

    def _set_type(self, node: Node) -> None:
        """Set the attribute with the result type of an operator."""
        attribute = RESULT_TYPE.get(node.op)
        if attribute == "value":
            node.set_attr("value", fill(node, self.plan.dtype).array)
        elif attribute is not None:
            node.set_attr(attribute, self.plan.code)

    def _declare(self) -> None:
        """Update declared types."""
        model = self.model
        for scope in self.plan.open:
            proto: Any = scope.proto
            ends = () if scope.is_function else (*proto.output, *(proto.input if scope is model.graph else ()))
            for info in (*proto.value_info, *ends):
                if info.name in self.changed and info.type.tensor_type.elem_type == FLOAT:
                    info.type.tensor_type.elem_type = self.plan.code
        if not self.plan.keep_io and not self.plan.root.is_function:
            model.interface = interface_of(model.proto)
        model.analyses.clear()
        model.version += 1


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

    def of(self, node: Node, plan: Plan) -> Callee | None:
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

    def _plan(self, function: Graph, call: _Call, decline: Decline) -> Plan:
        return Plan(
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
                Conversion(plan, dict.fromkeys(plan.narrow())).apply()
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
            self._forget(function)

    def _forget(self, function: Graph) -> None:
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
                types.infer_node(node)

    def _type_body(self, node: Node, body: Graph) -> None:
        """Set types of a body's inputs, as declared or else as the node's inputs; and of the node's results."""
        for i, (v, info) in enumerate(zip(body.inputs, body.proto.input)):
            given = node.input(i)
            v.dtype = tensor_type(info.type)[0] or (types.dtype(given) if given is not None else 0)
        self._type(body)
        for result, made in zip(node.outputs, body.outputs[1 if node.op == "Loop" else 0 :]):
            if result is not None:
                result.dtype = types.dtype(made)


def _gains(plan: Plan) -> bool:
    """Whether narrow inputs and outputs add at most one Cast each inside the function."""
    ends = plan.interface
    if not ends:
        return False
    casts = plan.costs()
    plan.interface = set()
    casts -= plan.costs()
    plan.interface = ends
    return casts <= len(ends)


def forget_unstored(scopes: Iterable[Graph]) -> None:
    """Treat nodes with repeated elements as ordinary nodes: as weights their constants would be materialized."""
    for v in (v for scope in scopes for node in scope for v in node.outputs):
        if v is not None and v.constant and not v.is_stored:
            v.array, v.constant = None, False
