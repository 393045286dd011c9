"""One walk over a model for each question of what becomes of its values: forward from inputs, backward from outputs.

A question is a class with a kind of fact, a transfer of facts through a node, and a join of the facts of a value that
is made in several ways. The walk does the rest: an order in which nodes can be run, bodies of If, Loop and Scan, and
calls of functions. Each node is seen once, but for bodies that carry something from trip to trip.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from onnxopt.verification.model.constants import constants, held
from onnxopt.verification.model.functions import domain_of
from onnxopt.verification.model.order import bodies_of, ordered

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, NodeProto, TensorProto

Fact = TypeVar("Fact", bound=Hashable)

STANDARD_BODIES: Final = ("If", "Loop", "Scan", "SequenceMap")  # of other operators nobody knows what bodies are given
_DEEPEST: Final = 20  # functions that call each other


class _Walk(Generic[Fact]):
    """What walks in both directions have: `facts` by value of the graph that is walked, and of those around it."""

    MUST: ClassVar = False  # is a value of which nothing is known like no other, or like all?

    def __init__(self, functions: Iterable[FunctionProto] = ()) -> None:
        self.facts: dict[str, Fact] = {}
        self.constants: dict[str, TensorProto] = {}
        self.functions = {(domain_of(f.domain), f.name): f for f in functions}
        self._calls: dict[Hashable, list[Fact | None]] = {}
        self._depth = 0

    def join(self, a: Fact, b: Fact) -> Fact | None:
        """The fact of a value that is one or the other."""
        raise NotImplementedError

    def either(self, a: Fact | None, b: Fact | None) -> Fact | None:
        if a is None or b is None:
            return None if self.MUST else a if b is None else b
        return a if a == b else self.join(a, b)

    def of(self, name: str) -> Fact | None:
        return self.facts.get(name)

    def _set(self, names: Iterable[str], facts: Iterable[Fact | None]) -> None:
        for name, fact in zip(names, facts):
            if fact is not None:
                self.facts[name] = fact
            else:  # in another body it may have been the name of something else
                self.facts.pop(name, None)

    def _called(self, node: NodeProto) -> FunctionProto | None:
        if not self.functions or self._depth >= _DEEPEST:
            return None
        return self.functions.get((domain_of(node.domain), node.op_type))

    def _inside(self) -> Any:
        """The same question inside a function, whose names are its own."""
        inner = copy.copy(self)
        inner.facts, inner.constants, inner._depth = {}, {}, self._depth + 1
        return inner


class Forward(_Walk[Fact]):
    """A question that follows inputs."""

    PASSES: ClassVar = 1  # through a body that carries something

    def transfer(self, node: NodeProto, reads: Sequence[Fact | None]) -> Sequence[Fact | None]:
        """The facts of what a node without bodies makes."""
        raise NotImplementedError

    def entering(self, node: NodeProto, body: GraphProto, reads: Sequence[Fact | None]) -> Sequence[Fact | None]:
        """The facts of the inputs of a node's body."""
        return [None, *reads[1:]] if node.op_type == "Loop" else reads if node.op_type != "If" else []

    def leaving(self, node: NodeProto, body: GraphProto) -> None:
        """A body of a node was walked, for the last time."""

    def exhausted(self, body: GraphProto) -> None:
        """What a loop carries was still another after the last pass."""

    def walk(self, graph: GraphProto) -> None:
        self.constants.update((t.name, t) for t in graph.initializer)
        self.follow(graph.node)

    def follow(self, nodes: Sequence[NodeProto]) -> None:
        facts = self.facts
        for node in ordered(nodes):
            for name in node.output:
                self.constants.pop(name, None)  # in another body it may have been the name of something else
            if node.op_type == "Constant" and (tensor := held(node)) is not None:
                self.constants[node.output[0]] = tensor
            reads = [facts.get(name) for name in node.input]
            bodies = bodies_of(node)
            if bodies and node.op_type in STANDARD_BODIES:
                made = self._bodies(node, bodies, reads)
            elif (function := self._called(node)) is not None:
                made = self._call(function, node, reads)
            else:
                made = self.transfer(node, reads)
                for body in bodies:
                    self._body(node, body, self.entering(node, body, reads))
            self._set(node.output, made)

    def _bodies(
        self, node: NodeProto, bodies: Sequence[GraphProto], reads: Sequence[Fact | None]
    ) -> Sequence[Fact | None]:
        made: list[Fact | None] | None = None
        for body in bodies:
            found = self._body(node, body, self.entering(node, body, reads))
            made = found if made is None else [self.either(a, b) for a, b in zip(made, found)]
        if node.op_type != "Loop":
            return made or []
        before = reads[2:]  # which a loop of no trip gives
        return [self.either(f, before[k]) if k < len(before) else f for k, f in enumerate((made or [])[1:])]

    def _body(self, node: NodeProto, body: GraphProto, given: Sequence[Fact | None]) -> list[Fact | None]:
        formals, outputs = [i.name for i in body.input], [o.name for o in body.output]
        carried = dict(zip(formals[1:] if node.op_type == "Loop" else formals[: _states(node)], outputs))
        for name in formals:
            self.constants.pop(name, None)
        self._set(formals, [*given, *[None] * (len(formals) - len(given))] if formals else [])
        for k in range(self.PASSES + len(carried) * self.MUST):
            self.walk(body)
            after = {f: self.either(self.facts.get(f), self.facts.get(o)) for f, o in carried.items()}
            if all(self.facts.get(f) == fact for f, fact in after.items()):
                break
            if k == self.PASSES - 1 and not self.MUST:
                self.exhausted(body)
                break
            # What is another in the second trip already may be any in a later one.
            self._set(after, [None] * len(after) if self.MUST and k else after.values())
        self.leaving(node, body)
        return [self.facts.get(o) for o in outputs]

    def _call(self, function: FunctionProto, node: NodeProto, reads: Sequence[Fact | None]) -> Sequence[Fact | None]:
        tensors = [self.constants.get(name) for name in node.input]
        key = (function.domain, function.name, *reads, *(name for name in node.input if name in self.constants))
        if key not in self._calls:
            self._calls[key] = []  # nothing calls itself
            inner = self._inside()
            inner.constants.update((f, t) for f, t in zip(function.input, tensors) if t is not None)
            inner._set(function.input, reads)
            inner.follow(function.node)
            self._calls[key] = [inner.of(name) for name in function.output]
        return self._calls[key]


class Backward(_Walk[Fact]):
    """A question that follows what is asked of outputs."""

    def transfer(self, node: NodeProto, wanted: Fact | None) -> Iterator[tuple[str, Fact]]:
        """(operand, what a node asks of it), for what is asked of its results."""
        raise NotImplementedError

    def walk(self, graph: GraphProto) -> None:
        self.constants.update((t.name, t) for t in graph.initializer)
        self.constants.update(constants(graph.node))
        self.follow(graph.node)

    def follow(self, nodes: Sequence[NodeProto]) -> None:
        for node in reversed(ordered(nodes)):
            wanted = functools.reduce(self.either, map(self.facts.get, node.output), None)
            for body in bodies_of(node):
                self._set((o.name for o in body.output), [wanted] * len(body.output))
                self.walk(body)
            function = self._called(node)
            for name, fact in self.transfer(node, wanted) if function is None else self._call(function, node):
                self.facts[name] = self.either(self.facts.get(name), fact) or fact

    def _call(self, function: FunctionProto, node: NodeProto) -> Iterator[tuple[str, Fact]]:
        inner = self._inside()
        given = zip(function.input, node.input)
        inner.constants.update((f, self.constants[name]) for f, name in given if name in self.constants)
        inner._set(function.output, map(self.facts.get, node.output))
        inner.follow(function.node)
        asked = ((name, inner.of(formal)) for formal, name in zip(function.input, node.input))
        return ((name, fact) for name, fact in asked if fact is not None and name not in self.constants)


def _states(node: NodeProto) -> int:
    """How many values a Scan carries; of any other node with a body, none."""
    scanned = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
    return max(len(node.input) - scanned, 0) if node.op_type == "Scan" else 0
