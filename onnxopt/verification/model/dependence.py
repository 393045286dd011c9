"""What feeds can change of values: their elements, their sizes, their ranks; and what decides upon such."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from onnxopt.verification.model.constants import constants, few
from onnxopt.verification.model.operators import DRAWING, MEASURING, OPENING, STANDARD, having, operator
from onnxopt.verification.model.order import bodies_of, in_order, inside, reads_of

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, NodeProto, TensorProto, ValueInfoProto

NOTHING: Final[Mapping[str, Sequence[int | None]]] = {}
_INTEGERS: Final = (6, 7)  # of TensorProto.DataType
_FEW: Final = 4
_DEEPEST: Final = 20  # functions that call each other
_PASSES: Final = 20  # through a loop whose turns hand something on
_OF_ELEMENTS: Final = having("drawing")


def draws(node: NodeProto) -> bool:
    """Does it make random numbers itself? Dropout does where it is told that it trains."""
    if node.op_type not in DRAWING or node.domain not in STANDARD:
        return False
    return node.op_type != "Dropout" or len(node.input) > 2


def draws_of(node: NodeProto) -> bool:
    """Does it, and of the elements that it reads, not their shape alone?"""
    return node.op_type in _OF_ELEMENTS and draws(node)


def may_draw(operators: Collection[str]) -> bool:
    """Is one of these among them?"""
    return not DRAWING.isdisjoint(operators)


def changing(
    graph: GraphProto,
    dims: Mapping[str, Sequence[int | None]] = NOTHING,
    functions: Iterable[FunctionProto] = (),
) -> Changing:
    """Values of which feeds, or what is drawn, can change the elements. Those of a Shape change with the sizes only,
    and these are given by a fixed signature, as long as no element says otherwise. `dims`: what is known of the shapes
    of values; a number among them, picked out of a Shape, does not change. `functions`: of the model, whose calls are
    followed."""
    found = Changing(dims, _few_integers({t.name: t for t in graph.initializer}) if dims else {})
    found.functions = {(f.domain, f.name): f for f in functions}
    found.values = {i.name for i in graph.input}
    found.shapes = {
        i.name for i in graph.input if not _has_shape(i) or not all(map(is_fixed, i.type.tensor_type.shape.dim))
    }
    found.ranks = {i.name for i in graph.input if not _has_shape(i)}
    found.follow(graph.node)
    return found


class Changing:
    """What can change: the elements of `values`, the sizes of `shapes`, the number of dims of `ranks`.

    `open`: what decides, at every depth, and can change: a branch of an If, or whether a Loop runs at all; each by the
    first value that the node makes. `turning`: Loops that data decide when to end.
    """

    def __init__(self, dims: Mapping[str, Sequence[int | None]], numbers: dict[str, list[int]]) -> None:
        self.values, self.shapes, self.ranks = set[str](), set[str](), set[str]()
        self.open, self.turning = set[str](), set[str]()
        self.functions: dict[tuple[str, str], FunctionProto] = {}
        self._dims, self._numbers = dims, numbers
        self._measured: dict[str, str] = {}  # what a Shape is of
        self._seen: dict[Hashable, list[bool]] = {}  # which outputs, of functions and what of their operands can change

    def follow(self, nodes: Sequence[NodeProto], depth: int = 0) -> None:
        """What these nodes make of what can change. `depth`: of calls."""
        reads = [list(reads_of(n)) for n in nodes]
        for i in in_order(nodes, reads):
            node = nodes[i]
            for output in node.output:  # in another body it may have been the name of something else
                self._measured.pop(output, None)
                self._numbers.pop(output, None)
            if node.op_type == "If" and node.input[0] not in self.values:  # it gives what one branch always does
                self._inside(node, depth)
                for a in node.attribute:
                    self._carry([o.name for o in a.g.output], node.output)
            else:
                self._node(node, set(reads[i]))
                self._inside(node, depth)

    def _node(self, node: NodeProto, read: set[str]) -> None:
        values, shapes, ranks = self.values, self.shapes, self.ranks
        if node.op_type == "Constant" and self._dims:
            self._numbers.update(_few_integers(dict(constants([node]))))
        if node.op_type == "Shape" and not node.attribute:
            self._measured[node.output[0]] = node.input[0]
        elif node.op_type == "Shape":
            ends = {a.name: a.i for a in node.attribute}
            some = self._dims.get(node.input[0], ())[ends.get("start", 0) : ends.get("end")]
            if some and None not in some:
                return
        elif node.op_type == "Gather" and node.input[0] in self._measured:
            places = self._numbers.get(node.input[1], ())
            known_dims = self._dims.get(self._measured[node.input[0]], ())
            if places and all(-len(known_dims) <= p < len(known_dims) and known_dims[p] is not None for p in places):
                return
        changed, sized, ranked = (not known.isdisjoint(read) for known in (values, shapes, ranks))
        told = [node.input[i] for i in OPENING.get(node.op_type, ()) if i < len(node.input)]
        if draws(node):
            changed = True
        elif not _is_known(node):
            sized = ranked = changed or sized or ranked
        elif node.op_type in MEASURING:
            changed, sized, ranked = sized, ranked, False
        else:
            sized |= not values.isdisjoint(told)
            ranked |= not shapes.isdisjoint(told)
            if node.op_type == "SequenceAt" and node.input[1] in values:  # another element has another shape
                sized = ranked = True
        for known, is_so in ((values, changed), (shapes, sized), (ranks, ranked)):
            if is_so:
                known.update(node.output)

    # -- bodies and calls --------------------------------------------------------------------------------

    def _inside(self, node: NodeProto, depth: int) -> None:
        if (node.domain, node.op_type) in self.functions and depth < _DEEPEST:
            return self._call(self.functions[node.domain, node.op_type], node, depth + 1)
        bodies = bodies_of(node)
        if not bodies:
            return None
        deciding = [n for n in node.input[: {"If": 1, "Loop": 2}.get(node.op_type, 0)] if n]
        if not self.values.isdisjoint(deciding):
            self.open.add(next((o for o in node.output if o), ""))
        for body in bodies:
            self._hold(body)
            given, made = [i.name for i in body.input], [o.name for o in body.output]
            if node.op_type == "Loop":
                self.values.update(given[:1])  # it counts: what is asked of that is answered otherwise in some turn
                given = given[1:]
            self._carry(list(node.input[node.op_type == "Loop" :]), given)
            self.follow(body.node, depth)
            if given:
                self._turn(body.node, made[: len(given)], given[: len(made)], depth)
            if node.op_type == "Loop" and made and made[0] in self.values:
                self.turning.add(next((o for o in node.output if o), ""))
        return None

    def _hold(self, body: GraphProto) -> None:
        """What its initializers are, and no more what its names may have been in another body."""
        held = {t.name: t for t in body.initializer}
        for name in (*held, *(i.name for i in body.input)):
            self._numbers.pop(name, None)
        self._numbers.update(_few_integers(held) if self._dims else {})

    def _turn(self, nodes: Sequence[NodeProto], made: Sequence[str], given: Sequence[str], depth: int) -> None:
        """Until what turns hand on says no more."""
        for k in range(_PASSES):
            before = self._sizes
            self._carry(made, given)
            if self._sizes == before:
                return
            if k == _PASSES - 1:  # nobody writes such a loop: anything may change
                self.values.update(o for n in inside(nodes) for o in n.output)
            self.follow(nodes, depth)

    @property
    def _sizes(self) -> list[int]:
        return [len(known) for known in (self.values, self.shapes, self.ranks)]

    def _carry(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        for known in (self.values, self.shapes, self.ranks):
            known.update([t for s, t in zip(sources, targets) if s in known])

    def _call(self, function: FunctionProto, node: NodeProto, depth: int) -> None:
        inner = Changing(NOTHING, {})
        inner.functions, inner._seen = self.functions, self._seen
        inner.open, inner.turning = self.open, self.turning
        for theirs, known in zip((inner.values, inner.shapes, inner.ranks), (self.values, self.shapes, self.ranks)):
            theirs.update(formal for formal, name in zip(function.input, node.input) if name in known)
        key = function.domain, function.name, *(frozenset(known) for known in (inner.values, inner.shapes, inner.ranks))
        if key not in self._seen:
            self._seen[key] = []
            inner.follow(function.node, depth)
            self._seen[key] = [name in inner.values for name in function.output]
        self.values.update(name for name, is_so in zip(node.output, self._seen[key]) if is_so)


def _few_integers(tensors: Mapping[str, TensorProto]) -> dict[str, list[int]]:
    """The elements of constants that may pick dims."""
    found = {name: few(t, _FEW, _INTEGERS) for name, t in tensors.items()}
    return {name: elements for name, elements in found.items() if elements}


def _is_known(node: NodeProto) -> bool:
    if node.op_type == "Squeeze" and len(node.input) < 2 and not node.attribute:
        return False  # all axes of one element: how many depends on sizes
    return "open" not in operator(node.op_type, node.domain).traits


def is_fixed(dim: Any) -> bool:
    """Is it a number? Some exporters write -1 for any."""
    return bool(dim.HasField("dim_value") and dim.dim_value >= 0)


def _has_shape(given: ValueInfoProto) -> bool:
    return bool(given.type.HasField("tensor_type") and given.type.tensor_type.HasField("shape"))
