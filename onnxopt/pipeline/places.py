"""Positions for which a `GraphInterpreter` calls its hooks (node, input, outputs), and their replacement."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

from onnxopt.analysis import types
from onnxopt.errors import EmissionError
from onnxopt.graph import Graph, Value
from onnxopt.graph.emission import refusal
from onnxopt.graph.node import Node
from onnxopt.pipeline.context import PassContext
from onnxopt.plaintext import counted
from onnxopt.proto.messages import make_node
from onnxopt.rewriting import Call, Match
from onnxopt.rewriting.matcher import Bindings
from onnxopt.rewriting.replace import carry_out, check


class Unchanged(Enum):
    """Type of `GraphInterpreter.unchanged`."""

    YES = "unchanged"


class Place(Protocol):
    """A position passed to a hook. `match`: for emitting nodes."""

    match: Match

    def is_same(self, result: Any) -> bool:
        """Whether the result leaves the position unchanged."""

    def replace(self, result: Any, ctx: PassContext) -> None:
        """Apply the result. Raises EmissionError for an invalid result, Declined if impossible."""


class NodePlace:
    """A node, to be replaced by the result of `call_operator`."""

    def __init__(self, node: Node) -> None:
        bindings = Bindings()
        bindings.covered.append((node, Call((node.op,), (), shared=True)))
        self.match = Match(bindings, node)
        self.node = node

    def is_same(self, result: Any) -> bool:
        """Whether the node itself, with the same inputs, is all that was emitted."""
        m = self.match
        if len(m.new_nodes) != 1 or m.borrowed != [self.node] or m.new_constants:
            return False
        (new,) = m.new_nodes
        return new.inputs == self.node.inputs and list(_results(result)) == new.outputs

    def replace(self, result: Any, ctx: PassContext) -> None:
        m, node = self.match, self.node
        _refuse_nothing(m, result, "call_operator", "super().call_operator(node, args) returns")
        missing = [i for i in node.used_outputs() if i >= len(_results(result)) or _results(result)[i] is None]
        if missing:
            raise refusal(m.graph, node, f"its output {missing[0]} is read, and call_operator returned none for it")
        pairs = check(m, result)
        if ctx.spend("replaced", at=node):
            if node.bodies and node in m.borrowed:  # the bodies now belong to the emitted node
                node.bodies = {}
                m.graph.owners.pop(node, None)
            carry_out(m, pairs)


class _Edge(Node):
    """An Identity standing for a graph input or output to be replaced; in no graph at first."""

    __slots__ = ("label",)

    def __init__(self, label: str, value: Value, graph: Graph) -> None:
        beyond = Value(value.name, graph)
        beyond.dtype, beyond.shape = types.dtype(value), types.shape(value)
        super().__init__(make_node("Identity", "", "", {}), [value], [beyond])
        beyond.producer, self.graph, self.label = self, graph, label

    def enter(self, before: Node | None) -> None:
        """Insert the Identity into the graph."""
        graph, self.graph = self.graph, None
        assert graph is not None
        graph.insert(self, before)

    def __repr__(self) -> str:
        return f"{self.label} `{self.inputs[0].name}`" if self.inputs and self.inputs[0] else super().__repr__()


class InputPlace:
    """A scope input, to be replaced for its readers by the result of `placeholder`. `nodes`: the nodes of the scope."""

    def __init__(self, value: Value, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.edge = _Edge("the input", value, value.graph)
        self.edge.output.users = dict(value.users)  # future readers
        self.match = Match(Bindings(), self.edge)

    def is_same(self, result: Any) -> bool:
        return result is self.edge.inputs[0] or not self.edge.is_used

    def replace(self, result: Any, ctx: PassContext) -> None:
        m, edge = self.match, self.edge
        _refuse_nothing(m, result, "placeholder", "value")
        later = set(self.nodes)
        for v in (*_results(result), *(v for node in m.new_nodes for v in node.inputs)):
            if isinstance(v, Value) and v.producer in later:
                raise refusal(m.graph, edge, f"what is put behind it reads `{v.name}`, which is made later")
        pairs, value = check(m, result), edge.inputs[0]
        assert value is not None
        if ctx.spend("replaced", at=value):
            edge.output.users = {}
            edge.output.name = m.graph.model.names.fresh(value.name)
            value.redirect_readers(edge.output)
            edge.enter(self.nodes[0])
            carry_out(m, pairs)


class OutputPlace:
    """All outputs of a scope, to be replaced by the result of `output`."""

    def __init__(self, graph: Graph) -> None:
        self.edges = [_Edge("the output", value, graph) for value in graph.outputs]
        self.match = Match(Bindings(), self.edges[0])

    def is_same(self, result: Any) -> bool:
        return [*_results(result)] == [edge.inputs[0] for edge in self.edges]

    def replace(self, result: Any, ctx: PassContext) -> None:
        m, graph = self.match, self.match.graph
        _refuse_nothing(m, result, "output", "values")
        results = _results(result)
        if len(results) != len(self.edges):
            said = f"output returned {counted(len(results), 'value')} for {len(self.edges)}"
            raise refusal(graph, m.anchor, said, hint="return one for each, in order")
        changed = [(i, e) for i, (e, new) in enumerate(zip(self.edges, results)) if new is not e.inputs[0]]
        m.anchor = m.before = changed[0][1]
        m.bindings.roots, m.results = tuple(e for _, e in changed), [e.output for _, e in changed]
        for edge in m.bindings.roots:
            edge.output.output_count = 1
        pairs = check(m, tuple(results[i] for i, _ in changed))
        for _, edge in changed:
            value = edge.inputs[0]
            if graph.owner is None and (value is None or value.producer is None):
                m.require(False, "an output that nothing makes is an input, or a constant")
        if ctx.spend("replaced", at=changed[0][1].inputs[0]):
            for i, edge in changed:
                self._part(i, edge)
            carry_out(m, pairs)

    def _part(self, index: int, edge: _Edge) -> None:
        """Separate the output from the value it was; the output keeps the name known to callers."""
        graph, given, value = self.match.graph, edge.output, edge.inputs[0]
        assert value is not None
        fresh = graph.model.names.fresh(value.name)
        if graph.owner is None:
            value.rename(fresh)
        else:
            given.name = fresh
        value.output_count -= 1
        graph.outputs[index] = given
        edge.enter(None)


def _results(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _refuse_nothing(m: Match, result: object, hook: str, same: str) -> None:
    if result is None:
        raise EmissionError(
            f"{m.graph.model.name}: {m.graph.path}: {m.anchor!r}: {hook} returned nothing",
            f"return self.unchanged for what stays, or {same}",
        )
