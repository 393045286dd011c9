"""Passes that replace nodes one by one (ExecuTorch's ExportPass, torch.fx's Interpreter)."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from onnxopt.errors import EmissionError, PassError
from onnxopt.graph import Graph, Value
from onnxopt.graph.emission import check_call
from onnxopt.graph.node import Node
from onnxopt.pipeline.base import GraphPass
from onnxopt.pipeline.context import PassContext
from onnxopt.pipeline.places import InputPlace, NodePlace, OutputPlace, Place, Unchanged
from onnxopt.rewriting import Declined, Match
from onnxopt.rewriting.match import Builder

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
    if not isinstance(node, Node):
        hint = "what it is given emits the node again; self.op.Abs(*args) emits another operator"
        raise EmissionError(
            f"{m.graph.model.name}: {m.graph.path}: super().call_operator takes a node, not {node!r}", hint
        )
    inputs = list(args)
    while inputs and inputs[-1] is None:
        inputs.pop()
    if inputs != node.inputs:
        check_call(m.graph, node.op, node.proto, inputs, [None] * len(node.outputs), node)
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
