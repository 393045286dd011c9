"""Passes that visit nodes one by one: StmtPass changes their state, GraphInterpreter replaces them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, ClassVar

from onnxopt.analysis import types
from onnxopt.errors import EmissionError, PassError
from onnxopt.graph import Graph, Model, Value
from onnxopt.graph.emission import check_call, refusal
from onnxopt.graph.node import Node
from onnxopt.pipeline.base import GraphPass
from onnxopt.pipeline.context import PassContext
from onnxopt.plaintext import counted
from onnxopt.proto.messages import make_node
from onnxopt.rewriting import Call, Declined, Match
from onnxopt.rewriting.match import Builder
from onnxopt.rewriting.matcher import Bindings
from onnxopt.rewriting.replace import carry_out, check

# -- nodes changed in place ---------------------------------------------------------------------------------------

Links = tuple[Node | None, tuple[object, ...], tuple[object, ...]]


class StmtPass(GraphPass):
    """Changes the state of nodes: attributes, operators, names, metadata. Override `run_node`, `run_graph` or `run`.

    Nodes, their order, inputs and outputs must stay the same: PassError otherwise.
    """

    kind: ClassVar[str] = "stmt"

    def promise(self, model: Model) -> Callable[[], None]:
        before = {scope: list(_links(scope)) for scope in model.scopes()}

        def check() -> None:
            for scope in {**before, **dict.fromkeys(model.scopes())}:
                was, now = before.get(scope, []), list(_links(scope))
                for old, new in zip([*was, None], [*now, None]):
                    if old != new:
                        raise PassError(
                            f"{model.name}: {scope.path}: the StmtPass {self.name} changed what reads what: "
                            f"{_shown(old)} became {_shown(new)}",
                            "make it a GraphPass if it is meant to",
                        )

        return check

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        for node in graph:
            self.run_node(node, ctx)

    def run_node(self, node: Node, ctx: PassContext) -> None:
        """Change the state of `node`; called for each node."""
        raise NotImplementedError(f"{type(self).__name__} has no run_node(self, node, ctx)")


def _links(scope: Graph) -> Iterator[Links]:
    yield from ((node, tuple(node.inputs), tuple(node.outputs)) for node in scope)
    yield None, tuple(scope.inputs), tuple(scope.outputs)


def _shown(links: Links | None) -> str:
    if links is None or links[0] is None:
        return "the end"
    node, inputs, _ = links
    names = ", ".join(str(v) if v is not None else "_" for v in inputs)
    return f"{node!r} ({names})"


# -- positions for hooks ------------------------------------------------------------------------------------------


class Unchanged(Enum):
    """Type of `GraphInterpreter.unchanged`."""

    YES = "unchanged"


# A place has a `match` for emitting nodes; `is_same` tells whether the result of a hook leaves the place unchanged, and
# `replace` applies the result. `replace` raises EmissionError for an invalid result, Declined if impossible.


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
        pairs, value = check(m, result), edge.operand(0)
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
        """Separate the output from its value; the output keeps the name known to callers."""
        graph, given, value = self.match.graph, edge.output, edge.operand(0)
        fresh = graph.model.names.fresh(value.name)
        if graph.owner is None:
            value.rename(fresh)
        else:
            given.name = fresh
        value.output_count -= 1
        graph.outputs[index] = given
        edge.enter(None)


Place = NodePlace | InputPlace | OutputPlace


def _results(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _refuse_nothing(m: Match, result: object, hook: str, same: str) -> None:
    if result is None:
        raise EmissionError(
            f"{m.graph.model.name}: {m.graph.path}: {m.anchor!r}: {hook} returned nothing",
            f"return self.unchanged for what stays, or {same}",
        )


# -- nodes replaced -----------------------------------------------------------------------------------------------

Args = tuple[Value | None, ...]
Result = Value | tuple[Value | None, ...] | Unchanged


@dataclass(frozen=True)
class GraphInterpreter(GraphPass):
    """Visits every scope in order, bodies first, and emits the results of `call_operator`.

    Override `call_operator`: `return super().call_operator(node, args)` emits the node again, `self.op.Add(a, b)` a new
    node (with the name and metadata of the old), `args[0]` none at all. The result replaces the node's outputs; names,
    types and readers stay. Nodes emitted unchanged are not touched, as after `return self.unchanged`. No result, or a
    wrong number of results, is an error.

    `placeholder` is called for each input of a scope before its nodes, `output` for its outputs afterwards; nodes
    emitted there are not passed to `call_operator`.
    """

    kind: ClassVar[str] = "interpreter"

    def call_operator(self, node: Node, args: Args) -> Result:
        """Return the replacement of `node` reading `args`: a value for each used output."""
        return _emit_again(_MATCH.get(), node, args)

    def placeholder(self, value: Value) -> Value | Unchanged:
        """Return the value to read instead of this scope input. The input itself stays."""
        return value

    def output(self, values: tuple[Value, ...]) -> Result:
        """Return the scope's outputs instead of `values`, under the same names: as many."""
        return values

    @property
    def op(self) -> Builder:
        """Emits new nodes: `self.op.Conv(x, w, like=node, pads=[1, 1])`. Only inside the hooks."""
        return _MATCH.get().op

    @property
    def unchanged(self) -> Unchanged:
        """Return value of a hook to leave everything as it was, discarding emitted nodes."""
        return Unchanged.YES

    @property
    def match(self) -> Match:
        """Types (`self.match.shape(x)`) and constants (`self.match.const(array)`). Only inside the hooks."""
        return _MATCH.get()

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        nodes = list(graph)
        if self._has("placeholder"):
            for value in list(graph.inputs):
                self._interpret(InputPlace(value, nodes), partial(self.placeholder, value), ctx)
        for node in nodes:
            if node.graph is graph:
                self._interpret(NodePlace(node), partial(self.call_operator, node, tuple(node.inputs)), ctx)
        if self._has("output") and graph.outputs:
            self._interpret(OutputPlace(graph), partial(self.output, tuple(graph.outputs)), ctx)

    def _has(self, hook: str) -> bool:
        """Whether the hook is overridden; others cost nothing."""
        return getattr(type(self), hook) is not getattr(GraphInterpreter, hook)

    def _interpret(self, place: Place, ask: Callable[[], Any], ctx: PassContext) -> None:
        token = _MATCH.set(place.match)
        try:
            result = ask()
            if result is not Unchanged.YES and not place.is_same(result):
                place.replace(result, ctx)
        except Declined as e:
            if str(e):
                ctx.decline("replaced", str(e), repr(place.match.anchor))
        finally:
            _MATCH.reset(token)


def _emit_again(m: Match, node: Node, args: Args) -> Result:
    """Return the results of `node`, emitted again with the operands `args`."""
    if not isinstance(node, Node):
        hint = "what it is given emits the node again; self.op.Abs(*args) emits another operator"
        raise EmissionError(
            f"{m.graph.model.name}: {m.graph.path}: super().call_operator takes a node, not {node!r}", hint
        )
    inputs = list(args)
    while inputs and inputs[-1] is None:
        inputs.pop()
    if inputs != node.inputs:
        check_call(m.graph, node.proto, inputs, [None] * len(node.outputs), node)
    if not m.replaces(node):
        if node.bodies:
            raise PassError(f"{node!r} has bodies and cannot be emitted twice", "emit it once, and use its outputs")
        made = m.op[node.proto.op_type](*inputs, like=node, domain=node.domain, outputs=max(1, len(node.outputs)))
        assert isinstance(made, (Value, tuple))
        return made
    outputs: list[Value | None] = [None if v is None else Value("", m.graph) for v in node.outputs]
    new = Node(node.proto, inputs, outputs)
    new.bodies = node.bodies
    for i, v in enumerate(outputs):
        if v is not None:
            v.producer, v.index = new, i
    m.borrowed.append(node)
    m.new_nodes.append(new)
    values = tuple(outputs)
    return values[0] if len(values) == 1 and values[0] is not None else values


_MATCH: ContextVar[Match] = ContextVar("onnxopt_interpreted")
