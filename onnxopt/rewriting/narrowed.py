"""Conversion of nodes and weights to a narrow float type, with Casts at the borders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnx import NodeProto

from onnxopt.analysis.narrowing import RESULT_TYPE, fill
from onnxopt.graph.node import Node
from onnxopt.graph.structure import interface_of
from onnxopt.graph.value import Value
from onnxopt.proto.messages import make_node
from onnxopt.rewriting.narrow_plan import FLOAT, Plan, is_wide

if TYPE_CHECKING:
    from onnxopt.graph.graph import Graph
    from onnxopt.rewriting.narrow_calls import Callee


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
            if any(made.get(v, False) for v in node.outputs if v is not None):
                self._set_type(node)
            for i, v in enumerate(node.inputs):
                if v is not None and v.constant and is_wide(v) and plan.free[node].takes(i):
                    node.set_input(i, self._constant(v))
        for value in values:
            # A Cast to float32 may read a converted value by now; a converted Cast widens nothing.
            source = plan.narrow_source(value) if value.producer not in self.narrow else None
            given = value in plan.interface
            if source is not None:
                self._bypass(value, source)
            elif value.is_output and value.producer is not None and made[value] != given:
                self._feed(value, self._give_out(value, made[value]), given)
            else:
                self._feed(value, None, made[value] or given)
        self._declare()
        for node, callee in plan.called.items():
            if node in self.narrow:
                self._call(node, callee)

    def _call(self, node: Node, callee: Callee) -> None:
        """Replace a call by a call of the function's narrow copy."""
        graph = node.graph
        assert graph is not None
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
                    assert user.graph is not None
                    user.set_input(i, other or self._cast(value, user.graph, wanted))

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
