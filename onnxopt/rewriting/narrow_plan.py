"""Choice of the nodes converted to a narrow float type with the fewest Casts: a minimum cut of a flow network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeGuard

from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.narrowing import (
    ALWAYS,
    HANDS_ON,
    NARROW,
    NONE,
    RESULT_TYPE,
    Narrowed,
    Network,
    Slots,
    fill,
    is_heavy,
    masks_given_out,
    narrowed,
    not_narrow,
    slots,
    stays_wide,
)
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import inner_scopes
from onnxopt.graph.node import Node, producer
from onnxopt.graph.value import Value
from onnxopt.operators import IN_RANGE
from onnxopt.proto.messages import Array, tensor_bytes
from onnxopt.rewriting.retyping import NARROW_SIDE, WIDE_SIDE, Plan
from onnxopt.rewriting.rule import scaled_from

if TYPE_CHECKING:
    from onnxopt.rewriting.narrowed import Callee, Calls

FLOAT: Final = int(TensorProto.FLOAT)
_WORTH: Final = 1 << 14  # bytes of a weight from which its operator is converted regardless of Casts
Decline = Callable[[str, str], None]  # called with (reason, example)


class FloatPlan(Plan[Node]):
    """Chooses the nodes to convert in a graph and its bodies. `weights`: narrowed forms of examined constants."""

    def __init__(
        self,
        root: Graph,
        calls: Calls,
        *,
        keep_io: bool = False,
        decline: Decline,
        leaves_out: Callable[[Node], str] | None = None,
        indices: Iterable[Value] = (),
        absent: Iterable[Value] = (),
    ) -> None:
        """Examine all nodes.

        `root`: the main graph, or a function with types set by `calls`. `keep_io`: inputs and outputs of the model stay
        float32. `leaves_out`: returns the reason for excluding a node, or an empty string. `indices`: inputs with
        floats computed from integers. `absent`: inputs without argument.
        """
        super().__init__(root.model, [scope for scope in inner_scopes(root) if not scope.skipped])
        self.root, self.calls, self.keep_io = root, calls, keep_io
        self.decline, self.leaves_out = decline, leaves_out
        self.dtype, self.wide, self.narrow = calls.dtype, FLOAT, NARROW[calls.dtype]
        self.weights: dict[Value, Narrowed] = {}
        self.free: dict[Node, Slots] = {}  # nodes that may be narrow
        self.wanted: dict[Node, None] = {}  # nodes that should be narrow
        self.called: dict[Node, Callee] = {}  # functions called by free nodes
        self.indices = {*indices}  # floats computed from integers only
        self.absent = {*absent}
        self.large: set[Value | None] = set()  # excluded values, and values as large
        self.masks = masks_given_out(self.model, self.open, self.dtype, self.weight) if keep_io else set()
        for scope in reversed(self.open):  # outer scopes first
            for node in scope:
                self._look(node)
        self.interface = self._interface()  # inputs and outputs of the root with a changed type

    def _interface(self) -> set[Value]:
        """Return the root's narrow inputs and outputs: all or none of a model; of a function, at free nodes."""
        root = self.root
        if not root.is_function:
            given = () if self.keep_io else (*root.inputs, *root.outputs)
            return {v for v in given if is_wide(v) and v.name not in root.initializers}
        read = {v for v in root.inputs if is_wide(v) and any(self.reader(n, i) for n in v.users for i in n.places(v))}
        return (read - {*root.outputs}) | {v for v in root.outputs if is_wide(v) and self.maker(v)}

    def _is_asked(self, node: Node) -> bool:
        """Return whether a node has wide values, and is no Cast or source of the plan."""
        wide = any(map(is_wide, (*node.inputs, *node.outputs)))
        return wide and not self.is_cast(node) and not any(map(self.source, node.results))

    def _look(self, node: Node) -> None:
        callee = self.calls.of(node, self)
        found = NONE if stays_wide(node) else slots(node.op, node.scope.opset(node.domain), self.dtype)
        if callee is not None:
            found = callee.slots
        if not self._is_asked(node):
            return
        if callee is None:
            self._trace(node)
        reads = [v for i, v in enumerate(node.inputs) if is_wide(v) and found.takes(i)]
        gives = [v for i, v in enumerate(node.outputs) if is_wide(v) and found.gives(i)]
        if why := self._obstacle(node, reads, gives, callee):
            if node.op != "Constant":
                self.decline(why, repr(node))
            return
        self.free[node] = found
        if callee is not None:
            self.called[node] = callee
        if self._is_worth_it(node, reads) or (callee is not None and callee.wanted):
            self.wanted[node] = None

    def _obstacle(self, node: Node, reads: list[Value], gives: list[Value], callee: Callee | None) -> str:
        """Return the reason to stay wide, or an empty string."""
        if callee is not None and callee.why:
            return callee.why
        if callee is None and not reads and not gives:
            return stays_wide(node) or not_narrow(node)
        if any(not types.dtype(v) and v not in self.absent for v in (*node.operands, *node.results)):
            return "a type is unknown"
        if node.op == "DequantizeLinear" and (node.attr("output_dtype", 0) or _is_quantized(node.output)):
            return "it belongs to a quantizer"
        return self._wide_number(node, reads) or self._asked_for(node)

    def _wide_number(self, node: Node, reads: list[Value]) -> str:
        """Return why a constant read, or the value of a node, has no narrow form; empty if all have."""
        for v in reads:
            if v.constant and (why := self.weight(v).why):
                return f"`{v.name}` stays float32: {why}"
        if RESULT_TYPE.get(node.op) == "value" and (why := fill(node, self.dtype).why):
            return f"its value stays float32: {why}"
        return ""

    def _asked_for(self, node: Node) -> str:
        """Return why a node is excluded, or read by callers in float32; empty if neither."""
        if self.leaves_out is not None and (why := self._left_out(node, self.leaves_out)):
            return why
        if self.masks.isdisjoint((*node.operands, *node.results)):
            return ""
        if node.op in HANDS_ON:
            self.masks.update(node.results)
        return "callers see a mask's number in float32"

    def _left_out(self, node: Node, leaves_out: Callable[[Node], str]) -> str:
        """Return why a node is excluded. Excluded values were probably too large, as are values derived from them."""
        why = leaves_out(node)
        reads_large = any(v in self.large for v in node.inputs)
        if why or (reads_large and node.op in IN_RANGE):
            self.large.update(node.results)
        return why or ("it reads what is left out" if reads_large else "")

    def weight(self, value: Value) -> Narrowed:
        if value not in self.weights:
            self.weights[value] = narrowed(value.array, self.dtype)
        return self.weights[value]

    def _trace(self, node: Node) -> None:
        """Record floats computed from positions (rotation angles), as float16 has too few digits."""
        floats = [v for v in node.operands if is_wide(v) and not v.constant]
        if self.indices.issuperset(floats) and not node.bodies and (floats or node.op in ("Cast", "Range")):
            self.indices.update(filter(is_wide, node.results))

    def _is_worth_it(self, node: Node, reads: list[Value]) -> bool:
        if scaled_from(node) is not None:
            return False
        if any(v.constant and tensor_bytes(*v.constant_type()) >= _WORTH for v in reads):
            return True
        data = [v for v in reads if not v.constant]
        if not is_heavy(node.op) or (data and self.indices.issuperset(data)):
            return False
        if any(v.name in v.graph.initializers for v in data):
            self.decline("a weight is an initializer that callers may override", repr(node))
            return False
        return not any(map(_is_quantized, data))

    # -- the fewest Casts --------------------------------------------------------------------------------

    def cut(self) -> tuple[list[Node], int]:
        """Return (nodes to convert, in order, number of Casts then): a minimum cut over values, a Cast costs 1."""
        vertex = {node: i + 2 for i, node in enumerate(self.free)}
        network = Network(len(vertex) + 2)
        for node in self.wanted:
            network.add_edge(vertex[node], NARROW_SIDE, ALWAYS)
        stars = [self.star(v, vertex) for v in self.values()]
        for side, vertices in stars:
            network.add_star(side, vertices)
        for node in vertex:
            if (x := scaled_from(node)) is not None:
                network.tie(vertex[node], self.star(x, vertex)[0])
        stays = {*network.source_side(WIDE_SIDE, NARROW_SIDE)}
        casts = sum(any((side in stays) != (i in stays) for i in vertices) for side, vertices in stars)
        return [node for node, i in vertex.items() if i not in stays], casts

    def values(self) -> Iterator[Value]:
        """Yield wide values produced by nodes or given by callers, in order."""
        for scope in reversed(self.open):
            yield from filter(is_wide, scope.inputs)
            yield from (v for v in scope.initializers.values() if not v.constant and not v.is_input and is_wide(v))
            for node in scope:
                yield from (v for v in node.results if not v.constant and is_wide(v))

    # -- answers for the conversion ----------------------------------------------------------------------

    def maker(self, value: Value) -> Node | None:
        node = value.producer
        return node if node in self.free and self.free[node].gives(value.index) else None

    def reader(self, node: Node, index: int) -> Node | None:
        return node if node in self.free and self.free[node].takes(index) else None

    def constant(self, value: Value) -> Array:
        return self.weight(value).array

    def fill(self, node: Node) -> Array:
        return fill(node, self.dtype).array


def is_wide(value: Value | None) -> TypeGuard[Value]:
    """Whether a value is present and float32."""
    return value is not None and types.dtype(value) == FLOAT


def _is_quantized(value: Value) -> bool:
    """Whether a value is the output of an activation quantizer."""
    node = producer(value, "DequantizeLinear")
    source = node.input(0) if node is not None else None
    return source is not None and not source.constant
