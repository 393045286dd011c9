"""Framework for dataflow analysis of a model, forward from inputs.

An analysis is a class with a type of facts, a transfer function of nodes, and a join. The framework supplies a
topological order, bodies of If, Loop and Scan, and calls of functions. Each node is visited once, except in bodies that
carry values between iterations.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

from onnx import FunctionProto, GraphProto, NodeProto, TensorProto

from onnxopt.verification.model.nodes import bodies_of, domain_of, held, int_of, integers, numbers, ordered
from onnxopt.verification.model.operators import having

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
        self._set(formals, [*given, *[None] * (len(formals) - len(given))] if formals else [])
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
