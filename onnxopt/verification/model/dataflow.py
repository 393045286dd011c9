"""Framework for dataflow analysis of a model, forward from inputs, and the analysis of dependence and decisions.

An analysis is a class with a type of facts, a transfer function of nodes, and a join. The framework supplies a
topological order, bodies of If, Loop and Scan, and calls of functions. Each node is visited once, except in bodies that
carry values between iterations.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from operator import or_
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from onnxopt.proto.element_types import TYPES
from onnxopt.proto.messages import tensor_type
from onnxopt.verification.model.nodes import (
    Functions,
    Name,
    bodies_of,
    deciding_of,
    domain_of,
    first_of,
    held,
    holds,
    inside,
    int_of,
    integers,
    numbers,
    operator_of,
    ordered,
    reads_of,
)
from onnxopt.verification.model.operators import END, GIVE_OTHERS, MEASURING, SIZE, STANDARD, having, operands, operator

if TYPE_CHECKING:
    from onnxopt.verification.model.facts import Facts

Fact = TypeVar("Fact", bound=Hashable)

STANDARD_BODIES: Final = having("control")  # the inputs of bodies of further operators are unknown


class Forward(Generic[Fact]):
    """A forward analysis."""

    MUST: ClassVar = False  # must analysis: joining an unknown fact gives unknown; else (may analysis) the known fact
    PASSES: ClassVar = 0  # iterations of a body before a carried fact that still changes becomes `TOP`; 0: one in all
    TOP: ClassVar[Any] = None

    def __init__(self, functions: Iterable[FunctionProto] = ()) -> None:
        self.facts: dict[str, Fact] = {}  # by value, of the current graph and enclosing graphs
        self.constants: dict[str, TensorProto] = {}  # by value
        self.functions = {(domain_of(f.domain), f.name): f for f in functions}
        self._calls: dict[Hashable, list[Fact | None]] = {}

    def join(self, a: Fact, b: Fact) -> Fact | None:
        """Return the fact of a value with either of two different facts; None for unknown."""
        raise NotImplementedError

    def either(self, a: Fact | None, b: Fact | None) -> Fact | None:
        """Return the join of two facts, None for unknown."""
        if a is None or b is None:
            return None if self.MUST else a if b is None else b
        return a if a == b else self.join(a, b)

    def of(self, name: str) -> Fact | None:
        """Return the fact of a value, None for unknown."""
        return self.facts.get(name)

    def integers(self, name: str) -> list[int]:
        """Return the elements of a short constant of integers, else []."""
        return integers(self.constants[name]) if name in self.constants else []

    def numbers(self, name: str) -> list[float]:
        """Return the distinct numbers of a small constant, else []."""
        return numbers(self.constants[name]) if name in self.constants else []

    def _set(self, names: Iterable[str], facts: Iterable[Fact | None]) -> None:
        for name, fact in zip(names, facts):
            if fact is not None:
                self.facts[name] = fact
            else:  # the name may denote a different value in a sibling body
                self.facts.pop(name, None)

    def _called(self, node: NodeProto) -> FunctionProto | None:
        return self.functions.get((domain_of(node.domain), node.op_type)) if self.functions else None

    def _inside(self) -> Any:
        """Return a copy of the analysis for a function, with its own names."""
        inner = copy.copy(self)
        inner.facts, inner.constants = {}, {}
        return inner

    def transfer(self, node: NodeProto, reads: Sequence[Fact | None]) -> Sequence[Fact | None]:
        """Return the facts of the results of a node without bodies."""
        raise NotImplementedError

    def entering(self, node: NodeProto, body: GraphProto, reads: Sequence[Fact | None]) -> Sequence[Fact | None]:
        """Return the facts of the inputs of a node's body."""
        return [None, *reads[1:]] if node.op_type == "Loop" else reads if node.op_type != "If" else []

    def walk(self, graph: GraphProto) -> None:
        """Analyse a graph or body."""
        self.constants.update((t.name, t) for t in graph.initializer)
        self.follow(graph.node)

    def follow(self, nodes: Sequence[NodeProto]) -> None:
        """Analyse nodes, in topological order."""
        for node in ordered(nodes):
            outputs, kind = node.output[:], node.op_type
            for name in outputs:
                self.constants.pop(name, None)  # the name may denote a different value in a sibling body
            if kind == "Constant" and (tensor := held(node)) is not None:
                self.constants[outputs[0]] = tensor
            reads = [*map(self.of, node.input[:])]
            bodies = bodies_of(node)
            if bodies and kind in STANDARD_BODIES:
                made = self._bodies(node, bodies, reads)
            elif (function := self._called(node)) is not None:
                made = self._call(function, node, reads)
            else:
                made = self.transfer(node, reads)
                for body in bodies:
                    self._body(node, body, [] if self.MUST else self.entering(node, body, reads))
            self._set(outputs, made)

    def _bodies(
        self, node: NodeProto, bodies: Sequence[GraphProto], reads: Sequence[Fact | None]
    ) -> Sequence[Fact | None]:
        made: list[Fact | None] | None = None
        for body in bodies:
            found = self._body(node, body, self.entering(node, body, reads))
            made = found if made is None else [self.either(a, b) for a, b in zip(made, found)]
        if node.op_type != "Loop":
            return made or []
        before = reads[2:]  # results of a zero-trip loop
        return [self.either(f, before[k]) if k < len(before) else f for k, f in enumerate((made or [])[1:])]

    def _body(self, node: NodeProto, body: GraphProto, given: Sequence[Fact | None]) -> list[Fact | None]:
        formals, outputs, states = [i.name for i in body.input], [o.name for o in body.output], carried(node, body)
        self._forget((*formals, *(t.name for t in body.initializer)))  # a name may denote a value of a sibling body
        self._set(formals, [*given, *[None] * (len(formals) - len(given))])
        for k in itertools.count():
            self.walk(body)
            after = {f: self.either(self.facts.get(f), self.facts.get(o)) for f, o in states.items()}
            if not self.PASSES or all(self.facts.get(f) == fact for f, fact in after.items()):
                break
            self._set(after, after.values() if k < self.PASSES else [self.TOP] * len(after))
        return [self.facts.get(o) for o in outputs]

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self.constants.pop(name, None)
            self.facts.pop(name, None)

    def _call(self, function: FunctionProto, node: NodeProto, reads: Sequence[Fact | None]) -> Sequence[Fact | None]:
        tensors = [self.constants.get(name) for name in node.input]
        key = (function.domain, function.name, *reads, *(name for name in node.input if name in self.constants))
        if key not in self._calls:
            self._calls[key] = []  # functions are not recursive
            inner = self._inside()
            inner.constants.update((f, t) for f, t in zip(function.input, tensors) if t is not None)
            inner._set(function.input, reads)
            inner.follow(function.node)
            self._calls[key] = [inner.of(name) for name in function.output]
        return self._calls[key]


def carried(node: NodeProto, body: GraphProto) -> dict[str, str]:
    """Return {state at the beginning of an iteration: state after it} of a Loop or Scan."""
    formals = [i.name for i in body.input]
    states = max(len(node.input) - int_of(node, "num_scan_inputs"), 0) if node.op_type == "Scan" else 0
    return dict(zip(formals[1:] if node.op_type == "Loop" else formals[:states], (o.name for o in body.output)))


# -- dependence, and decisions: operators with discontinuous results, conditions of branches --------------

ELEMENTS: Final = 1
SIZES: Final = 2
RANK: Final = 4
TURN: Final = 8  # elements depend on the iteration of a loop
FLOAT: Final = 16  # floats
GIVEN: Final = 32  # elements depend on elements of inputs, not only on their sizes
_CHANGES: Final = ELEMENTS | SIZES | RANK | TURN
BOTH: Final = frozenset((True, False))
_DECIDING: Final = having("jumps")
_FLOAT_CODES: Final = frozenset(t.code for t in TYPES if t.kind == "f")
# Without any of these, a model neither decides nor hides a part.
MAY_CHANGE: Final = _DECIDING.union(("Cast",), STANDARD_BODIES)
_DRAWING: Final = having("draws")
_OF_ELEMENTS: Final = having("drawing")
_OPENING: Final = operands(END, SIZE)  # by operator, the operands with elements that decide sizes of the result


def is_decision(node: NodeProto) -> bool:
    """Return whether an operator's result is discontinuous."""
    return node.op_type in _DECIDING


def draws(node: NodeProto) -> bool:
    """Return whether a node draws random numbers itself. Dropout draws only with an operand for training mode."""
    if node.op_type not in _DRAWING or node.domain not in STANDARD:
        return False
    return node.op_type != "Dropout" or len(node.input) > 2


def draws_of(node: NodeProto) -> bool:
    """Return whether a node draws depending on elements of operands, not only on shapes."""
    return node.op_type in _OF_ELEMENTS and draws(node)


def count_draws(nodes: Iterable[NodeProto], functions: Functions) -> int:
    """Return the number of drawing nodes in a single run of `nodes`. Each call of a function counts."""
    known: dict[Name, int] = {}

    def called(node: NodeProto) -> int:
        name, function = operator_of(node), functions.of(node)
        if function is not None and name not in known:
            known[name] = 0  # functions are not recursive
            known[name] = count(function.node)
        return known.get(name, 0)

    def count(nodes: Iterable[NodeProto]) -> int:
        return sum(draws(n) or called(n) for n in inside(nodes))

    return count(nodes)


def is_random_model(model: ModelProto) -> bool:
    """Return whether a model draws random numbers."""
    functions = Functions(model).holding(draws)
    return any(holds(node, draws, functions) for node in model.graph.node)


class Changing(Forward[int]):
    """Forward analysis of dependence on inputs and random draws, and of decisions on floats.

    A fact is a set of flags: `ELEMENTS`, `SIZES`, `RANK`, `TURN`, and `FLOAT`, `GIVEN`.

    All graph inputs are changeable. Results of Shape depend on sizes only, which a fixed signature determines unless
    elements decide sizes. open: first outputs of nodes with changeable branches or trip counts, at any depth. turning:
    first outputs of Loops with a changeable end condition. deciding: first outputs of decisions on floats
    computed from elements of inputs; sizes do not count, as they are integers, or equal in every result.
    """

    PASSES: ClassVar = 20
    TOP: ClassVar = _CHANGES | FLOAT | GIVEN

    def __init__(self, graph: GraphProto, functions: Iterable[FunctionProto] = (), facts: Facts | None = None) -> None:
        super().__init__(functions)
        self.open, self.turning, self.deciding = set[str](), set[str](), set[str]()
        self._single: Collection[str] = facts.single if facts is not None else ()
        self._truths: Mapping[str, Collection[bool]] = facts.truths if facts is not None else {}
        for i in graph.input:
            shape = tensor_type(i.type)[1]
            is_sized = shape is not None and all(isinstance(d, int) for d in shape)
            fact = GIVEN | ELEMENTS | (0 if is_sized else SIZES) | (RANK if shape is None else 0)
            self.facts[i.name] = fact | FLOAT * _may_be_floats(i.type)
        self.walk(graph)

    def of(self, name: str) -> int | None:
        tensor, fact = self.constants.get(name), self.facts.get(name)
        return (fact or 0) | FLOAT if tensor is not None and tensor.data_type in _FLOAT_CODES else fact

    @property
    def hides(self) -> bool:
        """Whether some part may not run, or a loop may end, depending on data."""
        return bool(self.open or self.turning)

    @property
    def values(self) -> set[str]:
        """The values with elements that depend on inputs or draws."""
        return {name for name, fact in self.facts.items() if fact & ELEMENTS}

    def possible(self, first: str) -> Collection[bool]:
        """Return the possible conditions of an If by its first result; none if the same in every run, and unknown."""
        known = self._truths.get(first, BOTH)
        return known if first in self.open or len(known) == 1 else ()

    def join(self, a: int, b: int) -> int:
        return a | b

    def transfer(self, node: NodeProto, reads: Sequence[int | None]) -> Sequence[int | None]:
        return [self._after(node, reads) | self._given(node, _all_of(reads)) or None] * len(node.output)

    def _given(self, node: NodeProto, every: int) -> int:
        """Return the last two flags of a result, and record a decision. `every`: flags of all operands."""
        kind, is_met = node.op_type, every & (FLOAT | GIVEN) == FLOAT | GIVEN
        if kind in MEASURING:
            return 0
        if kind == "Cast":
            floats = int_of(node, "to", 1) in _FLOAT_CODES
            is_met = is_met and not floats
        else:
            floats = bool(every & FLOAT) and kind not in GIVE_OTHERS
            is_met = is_met and is_decision(node)
        if is_met:
            self.deciding.add(first_of(node))
        return every & GIVEN | FLOAT * floats

    def _set(self, names: Iterable[str], facts: Iterable[int | None]) -> None:
        names = [*names]
        super()._set(names, (f and f & ~(ELEMENTS | TURN) if n in self._single else f for n, f in zip(names, facts)))

    def _after(self, node: NodeProto, reads: Sequence[int | None]) -> int:
        every = _all_of(reads) & _CHANGES
        if draws(node):
            return every | ELEMENTS
        if not _is_known(node):
            return every | (SIZES | RANK if every else 0)
        if node.op_type in MEASURING:
            return (ELEMENTS if every & SIZES else 0) | (SIZES if every & RANK else 0)
        every |= _opened(node, reads)
        # A different element of a sequence may have a different shape.
        if node.op_type == "SequenceAt" and (reads[1] or 0) & ELEMENTS:
            every |= SIZES | RANK
        return every

    # -- bodies and calls --------------------------------------------------------------------------------

    def entering(self, node: NodeProto, body: GraphProto, reads: Sequence[int | None]) -> Sequence[int | None]:
        """Return the facts of a body's inputs.

        The iteration number of a Loop changes, and a state that an iteration computes. Bodies of unknown operators may
        get anything computed from the operands.
        """
        found = super().entering(node, body, reads)
        if node.op_type not in STANDARD_BODIES:
            every = _all_of(reads)
            return [every | (ELEMENTS | SIZES | RANK if every & _CHANGES else 0)] * len(body.input)
        changed = _changing_states(node, body)
        facts = zip(body.input, [ELEMENTS, *found[1:]] if node.op_type == "Loop" else found)
        return [(fact or 0) | TURN if i.name in changed else fact for i, fact in facts]

    def _bodies(
        self, node: NodeProto, bodies: Sequence[GraphProto], reads: Sequence[int | None]
    ) -> Sequence[int | None]:
        deciding = _all_of(reads[: len(deciding_of(node))])
        is_open = bool(deciding & (ELEMENTS | TURN)) and len(self._truths.get(first_of(node), BOTH)) > 1
        if is_open:
            self.open.add(first_of(node))
        captured = _all_of(map(self.of, reads_of(node)))
        found = super()._bodies(node, bodies, reads)
        if node.op_type == "Loop" and self._ends_vary(bodies):
            self.turning.add(first_of(node))
        if node.op_type == "If" and not is_open:  # the result is always of the same branch
            return found
        every = captured | (_all_of(found) & (FLOAT | GIVEN)) | (SIZES | RANK if captured & _CHANGES else 0)
        return [every or None] * len(node.output)

    def _ends_vary(self, bodies: Sequence[GraphProto]) -> bool:
        """Return whether the end condition of a Loop is changeable."""
        ends = [o.name for body in bodies for o in body.output[:1]]
        return bool(_all_of(map(self.facts.get, ends)) & ELEMENTS)


def _opened(node: NodeProto, reads: Sequence[int | None]) -> int:
    """Return the facts of a result's shape that operands give as numbers."""
    told = _all_of(reads[k] for k in _OPENING.get(node.op_type, ()) if k < len(reads))
    return (SIZES if told & (ELEMENTS | TURN) else 0) | (RANK if told & SIZES else 0)


def _changing_states(node: NodeProto, body: GraphProto) -> set[str]:
    """Return the states that an iteration computes, not only hands on."""
    copies = {n.output[0]: n.input[0] for n in body.node if n.op_type == "Identity"}
    return {name for name, after in carried(node, body).items() if name not in (after, copies.get(after))}


def _all_of(facts: Iterable[int | None]) -> int:
    return functools.reduce(or_, filter(None, facts), 0)


def _may_be_floats(kind: TypeProto) -> bool:
    return kind.tensor_type.elem_type in _FLOAT_CODES or kind.HasField("sequence_type")


def _is_known(node: NodeProto) -> bool:
    if node.op_type == "Squeeze" and len(node.input) < 2 and not node.attribute:
        return False  # squeezes all axes of size 1: the rank depends on sizes
    return "open" not in operator(node.op_type, node.domain).traits
