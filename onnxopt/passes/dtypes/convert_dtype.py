"""Conversion of a float32 model to float16 or bfloat16 with a minimum of Casts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.masks import HANDS_ON, masks_given_out
from onnxopt.analysis.mincut import ALWAYS, Network
from onnxopt.analysis.narrowing import (
    NARROW,
    NONE,
    RESULT_TYPE,
    Narrowed,
    Slots,
    fill,
    is_heavy,
    narrowed,
    not_narrow,
    slots,
    stays_wide,
)
from onnxopt.analysis.shapes.sweep import learn_shapes
from onnxopt.errors import ModelError, UsageError, any_of
from onnxopt.graph import Graph, Model, Value
from onnxopt.graph.node import Node
from onnxopt.graph.structure import interface_of
from onnxopt.operators import IN_RANGE
from onnxopt.pipeline import ModelPass, PassContext, PassInfo, option, register
from onnxopt.protos import make_node, tensor_bytes
from onnxopt.record import record
from onnxopt.rewriting.guards import scaled_from

FLOAT: Final = int(TensorProto.FLOAT)
_WORTH: Final = 1 << 14  # bytes of a weight from which its operator is converted regardless of Casts


@register
@record(frozen=True)
class ConvertDtype(ModelPass):
    """Converts float32 values and weights to a narrower type, with Casts around operators that stay float32.

    Stays wide: operators without narrow types in the standard; sums over many elements, powers and exponentials,
    angles, coordinates, random numbers, quantizers (table with reasons in `analysis/narrowing.py`); readers of weights
    that overflow or underflow; inputs and outputs of bodies, functions, operators of other domains.
    Where both types are possible, the type with the fewest Casts is chosen.
    """

    info = PassInfo("convert-dtype", opt_level=2)
    dtype: str = option("float16", "float16 or bfloat16")
    keep_io: bool = option(True, "the model's inputs and outputs stay float32")

    def run(self, model: Model, ctx: PassContext) -> None:
        if self.dtype not in NARROW:
            raise UsageError(f"there is no conversion to {self.dtype!r}", f"to {any_of([*NARROW])}")
        opset = model.opsets.get("", 0)
        if not opset:
            return  # no standard operator, as in most tree models
        if opset < (least := 13 if self.dtype == "bfloat16" else 7):
            raise ModelError(
                f"{model.name}: {self.dtype} takes opset {least}, the model has {opset}",
                f"--target-opset {least} converts it first",
            )
        _forget_unstored(model)
        types.update(model)
        for scope in reversed([*model.open_scopes()]):  # outer ones first: behind onnxruntime's own operators
            if not scope.root.is_function and any(v is not None and not v.dtype for n in scope for v in n.outputs):
                learn_shapes(scope)
        plan = _Plan(model, ctx, self.dtype, self.keep_io)
        narrow = plan.narrow()
        chosen = dict.fromkeys(node for node in narrow if ctx.spend("narrow", at=node))
        if chosen or plan.interface:
            _Conversion(plan, chosen).apply()


class _Plan:
    """Chooses the nodes to convert. `weights`: narrowed forms of examined weights."""

    def __init__(self, model: Model, ctx: PassContext, dtype: str, keep_io: bool) -> None:
        self.model = model
        self.ctx = ctx
        self.dtype, self.keep_io = dtype, keep_io
        self.code = NARROW[dtype]
        self.weights: dict[Value, Narrowed] = {}
        self.free: dict[Node, Slots] = {}  # nodes that may be narrow
        self.wanted: dict[Node, None] = {}  # nodes that should be narrow
        self.indices: set[Value] = set()  # floats computed from integers only
        graph = model.graph
        given = () if keep_io else (*graph.inputs, *graph.outputs)
        # Inputs and outputs of the model with a changed type.
        self.interface = {v for v in given if _is_wide(v) and v.name not in graph.initializers}
        self.large: set[Value | None] = set()  # excluded values, and values as large
        self.open = [scope for scope in model.open_scopes() if not scope.root.is_function]
        self.masks = masks_given_out(model, self.open, dtype, self.weight) if keep_io else set()
        for scope in reversed(self.open):  # outer scopes first
            for node in scope:
                self._look(node)

    def _look(self, node: Node) -> None:
        found = self._slots(node)
        floats = [v for v in (*node.inputs, *node.outputs) if v is not None and _is_wide(v)]
        if not floats or self.is_cast(node) or self.widens(node):
            return
        self._trace(node)
        reads = [v for i, v in enumerate(node.inputs) if v is not None and _is_wide(v) and found.takes(i)]
        gives = [v for i, v in enumerate(node.outputs) if v is not None and _is_wide(v) and found.gives(i)]
        why = self._obstacle(node, reads, gives)
        if why[0]:
            if node.op != "Constant":
                self.ctx.decline("narrow", why[0], why[1] or repr(node))
            return
        self.free[node] = found
        if self._is_worth_it(node, reads):
            self.wanted[node] = None

    def _slots(self, node: Node) -> Slots:
        graph = node.graph
        assert graph is not None
        return NONE if stays_wide(node) else slots(node.op, graph.opset(node.domain), self.dtype)

    def _obstacle(self, node: Node, reads: list[Value], gives: list[Value]) -> tuple[str, str]:
        """Return (reason to stay wide, example)."""
        if not reads and not gives:
            return stays_wide(node) or not_narrow(node), ""
        if any(v is not None and not types.dtype(v) for v in (*node.inputs, *node.outputs)):
            return "a type is unknown", ""
        if node.op == "DequantizeLinear":
            source = node.input(0)
            if node.attr("output_dtype", 0) or (source is not None and not source.constant):
                return "it belongs to a quantizer", ""
        for v in reads:
            if v.constant and (why := self.weight(v).why):
                return f"`{v.name}` stays float32: {why}", ""
        if RESULT_TYPE.get(node.op) == "value" and (why := fill(node, self.dtype).why):
            return f"its value stays float32: {why}", ""
        if self.ctx.excluded and (why := self._left_out(node)):
            return why, ""
        if any(v in self.masks for v in (*node.inputs, *node.outputs)):
            self.masks.update(v for v in node.outputs if v is not None and node.op in HANDS_ON)
            return "callers see a mask's number in float32", ""
        return "", ""

    def _left_out(self, node: Node) -> str:
        """Return why a node is excluded. Excluded values were probably too large, as are values derived from them."""
        why = self.ctx.leaves_out(node)
        reads_large = any(v in self.large for v in node.inputs)
        if why or (reads_large and node.op in IN_RANGE):
            self.large.update(v for v in node.outputs if v is not None)
        return why or ("it reads what is left out" if reads_large else "")

    def weight(self, value: Value) -> Narrowed:
        if value not in self.weights:
            self.weights[value] = narrowed(value.array, self.dtype)
        return self.weights[value]

    def _trace(self, node: Node) -> None:
        """Record floats computed from positions (rotation angles), as float16 has too few digits."""
        floats = [v for v in node.inputs if v is not None and _is_wide(v) and not v.constant]
        made_of = all(v in self.indices for v in floats)
        if made_of and not node.bodies and (floats or node.op in ("Cast", "Range")):
            self.indices.update(v for v in node.outputs if v is not None and _is_wide(v))

    def _is_worth_it(self, node: Node, reads: list[Value]) -> bool:
        weights = [v for v in reads if v.constant]
        data = [v for v in reads if not v.constant]
        if scaled_from(node) is not None:
            return False
        if any(tensor_bytes(*v.constant_type()) >= _WORTH for v in weights):
            return True
        if not is_heavy(node.op) or (data and all(v in self.indices for v in data)):
            return False
        if any(v.name in v.graph.initializers for v in data):
            self.ctx.decline("narrow", "a weight is an initializer that callers may override", repr(node))
            return False
        return not any(map(_is_quantized, data))

    # -- the fewest Casts --------------------------------------------------------------------------------

    def narrow(self) -> list[Node]:
        """Return the nodes to convert, in order: a minimum cut over values, with cost 1 for each Cast."""
        vertex = {node: i + 2 for i, node in enumerate(self.free)}
        wide, narrow = 0, 1
        network = Network(len(vertex) + 2)
        for node in self.wanted:
            network.add_edge(vertex[node], narrow, ALWAYS)
        for value in self.values():
            side = vertex.get(value.producer, wide) if value.producer is not None and self.gives(value) else wide
            if self.is_narrow(value):
                side = narrow
            readers: dict[Graph | None, set[int]] = {value.graph: set()}  # a Cast is needed in each scope
            for n in value.users:
                vertices = readers.setdefault(n.graph, set())
                vertices.add(narrow if self.is_cast(n) else vertex[n] if self.reads_free(n, value) else wide)
            if value.is_output:
                readers[value.graph].add(narrow if value in self.interface else wide)
            for vertices in readers.values():
                network.add_star(side, vertices - {side})  # a single Cast serves all readers on the other side
        for node in vertex:
            if (x := scaled_from(node)) is not None:
                side = vertex.get(x.producer, wide) if x.producer is not None and self.gives(x) else wide
                network.tie(vertex[node], narrow if self.is_narrow(x) else side)
        stays = network.source_side(wide, narrow)
        return [node for node, i in vertex.items() if i not in stays]

    def values(self) -> Iterator[Value]:
        """Yield wide values produced by nodes or given by callers, in order."""
        for scope in reversed(self.open):
            yield from (v for v in scope.inputs if _is_wide(v))
            for v in scope.initializers.values():
                if not v.constant and not v.is_input and _is_wide(v):
                    yield v
            for node in scope:
                yield from (v for v in node.outputs if v is not None and not v.constant and _is_wide(v))

    def gives(self, value: Value) -> bool:
        """Whether the value becomes narrow with its producer."""
        node = value.producer
        return node in self.free and self.free[node].gives(value.index)

    def reads_free(self, node: Node, value: Value) -> bool:
        """Whether the node reads the value in its own type, wide or narrow."""
        found = self.free.get(node)
        return found is not None and all(found.takes(i) for i in node.places(value))

    def is_narrow(self, value: Value) -> bool:
        """Whether a narrow form exists in any case: an input, or the operand of a widening Cast.

        An output has the type of its producer; a Cast behind it is counted.
        """
        return (value in self.interface and value.producer is None) or self.narrow_source(value) is not None

    def narrow_source(self, value: Value) -> Value | None:
        """Return the narrow value cast to `value`, or None."""
        node = value.producer
        return node.input(0) if node is not None and self.widens(node) else None

    def widens(self, node: Node) -> bool:
        """Whether a node is a Cast from the narrow type."""
        source = node.input(0) if node.op == "Cast" else None
        return source is not None and types.dtype(source) == self.code

    def is_cast(self, node: Node) -> bool:
        """Whether a node is a Cast to the narrow type."""
        return node.op == "Cast" and node.attr("to") == self.code


class _Conversion:
    """Converts nodes, and inserts Casts between narrow and wide ones."""

    def __init__(self, plan: _Plan, narrow: dict[Node, None]) -> None:
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
                if v is not None and v.constant and _is_wide(v) and plan.free[node].takes(i):
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
            given = proto.input if scope is model.graph else ()
            for info in (*proto.value_info, *proto.output, *given):
                if info.name in self.changed and info.type.tensor_type.elem_type == FLOAT:
                    info.type.tensor_type.elem_type = self.plan.code
        if not self.plan.keep_io:
            model.interface = interface_of(model.proto)
        model.analyses.clear()
        model.version += 1


def _forget_unstored(model: Model) -> None:
    """Treat nodes with repeated elements as ordinary nodes: as weights their constants would be materialized."""
    for v in (v for scope in model.open_scopes() for node in scope for v in node.outputs):
        if v is not None and v.constant and not v.is_stored:
            v.array, v.constant = None, False


def _is_wide(value: Value) -> bool:
    return types.dtype(value) == FLOAT


def _is_quantized(value: Value) -> bool:
    """Whether a value is the output of an activation quantizer."""
    node = value.producer
    source = node.input(0) if node is not None and node.op == "DequantizeLinear" else None
    return source is not None and not source.constant
