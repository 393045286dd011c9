"""Dependence of values on inputs: elements, sizes, ranks, and the conditions that depend on inputs."""

from __future__ import annotations

import functools
import itertools
import operator as operator_module
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from onnxopt.verification.model.constants import few
from onnxopt.verification.model.dataflow import STANDARD_BODIES, Forward
from onnxopt.verification.model.functions import Functions, Name, holds
from onnxopt.verification.model.operators import DRAWING, MEASURING, OPENING, STANDARD, having, operator
from onnxopt.verification.model.order import first_of, inside, operator_names, reads_of

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

ELEMENTS: Final = 1
SIZES: Final = 2
RANK: Final = 4
NOTHING: Final[Mapping[str, Sequence[int | None]]] = {}
_INDEX_CODES: Final = (6, 7)  # of TensorProto.DataType
_MAX_READ_ELEMENTS: Final = 4
_OF_ELEMENTS: Final = having("drawing")


def draws(node: NodeProto) -> bool:
    """Return whether a node draws random numbers itself. Dropout draws only with an operand for training mode."""
    if node.op_type not in DRAWING or node.domain not in STANDARD:
        return False
    return node.op_type != "Dropout" or len(node.input) > 2


def draws_of(node: NodeProto) -> bool:
    """Return whether a node draws depending on elements of operands, not only on shapes."""
    return node.op_type in _OF_ELEMENTS and draws(node)


def may_draw(operators: Collection[str]) -> bool:
    """Return whether some of the operators draw random numbers."""
    return not DRAWING.isdisjoint(operators)


def is_random(node: NodeProto, functions: Collection[Name]) -> bool:
    """Return whether a node draws random numbers, itself, in bodies, or by calling one of `functions`."""
    return holds(node, draws, functions)


def count_draws(nodes: Iterable[NodeProto], functions: Functions) -> int:
    """Return the number of drawing nodes in a single run of `nodes`. Each call of a function counts."""
    known: dict[int, int] = {}

    def count(nodes: Iterable[NodeProto]) -> int:
        return sum(draws(n) or called(functions.of(n)) for n in inside(nodes))

    def called(function: FunctionProto | None) -> int:
        if function is None:
            return 0
        if id(function) not in known:
            known[id(function)] = 0  # functions are not recursive
            known[id(function)] = count(function.node)
        return known[id(function)]

    return count(nodes)


def is_random_model(model: ModelProto) -> bool:
    """Return whether a model draws random numbers."""
    bodies = (f.node for f in model.functions)
    if not may_draw(operator_names(itertools.chain(model.graph.node, *bodies))):
        return False
    functions = Functions(model).holding(draws)
    return any(is_random(node, functions) for node in model.graph.node)


def changing(
    graph: GraphProto,
    dims: Mapping[str, Sequence[int | None]] = NOTHING,
    functions: Iterable[FunctionProto] = (),
) -> Changing:
    """Return the `Changing` analysis of a graph, with all graph inputs changeable.

    Results of Shape depend on sizes only, which a fixed signature determines unless elements decide sizes. dims: known
    dims by value, None if unknown; a known dim selected from a Shape is constant. functions: followed in calls.
    """
    found = Changing(dims, functions)
    found.constants.update((t.name, t) for t in graph.initializer)
    for i in graph.input:
        is_sized = _has_shape(i) and all(map(is_fixed, i.type.tensor_type.shape.dim))
        found.facts[i.name] = ELEMENTS | (0 if is_sized else SIZES) | (0 if _has_shape(i) else RANK)
    found.follow(graph.node)
    return found


class Changing(Forward[int]):
    """Forward analysis of dependence on inputs and random draws: flags `ELEMENTS`, `SIZES`, `RANK`.

    open: first outputs of nodes with changeable branches or trip counts, at any depth. turning: first outputs of Loops
    with a changeable end condition.
    """

    PASSES: ClassVar = 20

    def __init__(
        self, dims: Mapping[str, Sequence[int | None]] = NOTHING, functions: Iterable[FunctionProto] = ()
    ) -> None:
        super().__init__(functions)
        self.open, self.turning = set[str](), set[str]()
        self._dims = dims
        self._measured: dict[str, str] = {}  # {result of Shape: its operand}

    @property
    def values(self) -> set[str]:
        """The values with elements that depend on inputs or draws."""
        return {name for name, fact in self.facts.items() if fact & ELEMENTS}

    def join(self, a: int, b: int) -> int:
        return a | b

    def transfer(self, node: NodeProto, reads: Sequence[int | None]) -> Sequence[int | None]:
        for output in node.output:  # the name may denote a different value in a sibling body
            self._measured.pop(output, None)
        found = None if self._is_known_size(node) else self._after(node, reads) or None
        return [found] * len(node.output)

    def _after(self, node: NodeProto, reads: Sequence[int | None]) -> int:
        every = _all_of(reads)
        if draws(node):
            return every | ELEMENTS
        if not _is_known(node):
            return every | (SIZES | RANK if every else 0)
        if node.op_type in MEASURING:
            return (ELEMENTS if every & SIZES else 0) | (SIZES if every & RANK else 0)
        told = _all_of(reads[k] for k in OPENING.get(node.op_type, ()) if k < len(reads))
        every |= (SIZES if told & ELEMENTS else 0) | (RANK if told & SIZES else 0)
        # A different element of a sequence may have a different shape.
        if node.op_type == "SequenceAt" and (reads[1] or 0) & ELEMENTS:
            every |= SIZES | RANK
        return every

    def _is_known_size(self, node: NodeProto) -> bool:
        """Return whether a node gives known sizes, or selects known sizes from a Shape."""
        if node.op_type == "Shape" and not node.attribute:
            self._measured[node.output[0]] = node.input[0]
        elif node.op_type == "Shape":
            ends = {a.name: a.i for a in node.attribute}
            some = self._dims.get(node.input[0], ())[ends.get("start", 0) : ends.get("end")]
            return bool(some) and None not in some
        elif node.op_type == "Gather" and node.input[0] in self._measured:
            known = self._dims.get(self._measured[node.input[0]], ())
            places = self._places(node.input[1]) if known else []
            return bool(places) and all(-len(known) <= p < len(known) and known[p] is not None for p in places)
        return False

    def _places(self, name: str) -> list[int]:
        return few(self.constants[name], _MAX_READ_ELEMENTS, _INDEX_CODES) if name in self.constants else []

    # -- bodies and calls --------------------------------------------------------------------------------

    def entering(self, node: NodeProto, body: GraphProto, reads: Sequence[int | None]) -> Sequence[int | None]:
        """Return the facts of a body's inputs.

        The iteration number of a Loop changes. Bodies of unknown operators may get anything computed from the operands.
        """
        found = super().entering(node, body, reads)
        if node.op_type not in STANDARD_BODIES:
            return [(_all_of(reads) and ELEMENTS | SIZES | RANK) or None] * len(body.input)
        return [ELEMENTS, *found[1:]] if node.op_type == "Loop" else found

    def _bodies(
        self, node: NodeProto, bodies: Sequence[GraphProto], reads: Sequence[int | None]
    ) -> Sequence[int | None]:
        deciding = reads[: {"If": 1, "Loop": 2}.get(node.op_type, 0)]
        if _all_of(deciding) & ELEMENTS:
            self.open.add(first_of(node))
        captured = _all_of(self.facts.get(name) for name in reads_of(node))
        found = super()._bodies(node, bodies, reads)
        if node.op_type == "If" and not _all_of(deciding) & ELEMENTS:  # the result is always of the same branch
            return found
        return [captured | (SIZES | RANK) if captured else None] * len(node.output)

    def leaving(self, node: NodeProto, body: GraphProto) -> None:
        if node.op_type == "Loop" and body.output and self.facts.get(body.output[0].name, 0) & ELEMENTS:
            self.turning.add(first_of(node))

    def exhausted(self, body: GraphProto) -> None:
        """Assume that all elements change; real loops do not reach this point."""
        self.facts.update((o, self.facts.get(o, 0) | ELEMENTS) for n in inside(body.node) for o in n.output)

    def _inside(self) -> Changing:
        inner: Changing = super()._inside()
        inner._dims, inner._measured = NOTHING, {}
        return inner


def _all_of(facts: Iterable[int | None]) -> int:
    return functools.reduce(operator_module.or_, filter(None, facts), 0)


def _is_known(node: NodeProto) -> bool:
    if node.op_type == "Squeeze" and len(node.input) < 2 and not node.attribute:
        return False  # squeezes all axes of size 1: the rank depends on sizes
    return "open" not in operator(node.op_type, node.domain).traits


def is_fixed(dim: Any) -> bool:
    """Return whether a dim is a number. Some exporters write -1 for a dynamic dim."""
    return bool(dim.HasField("dim_value") and dim.dim_value >= 0)


def _has_shape(given: ValueInfoProto) -> bool:
    return bool(given.type.HasField("tensor_type") and given.type.tensor_type.HasField("shape"))
