"""Passes that say, node by node, what each becomes (ExecuTorch's ExportPass, torch.fx's Interpreter)."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from onnxopt.errors import EmissionError, PassError
from onnxopt.graph import Graph, Value
from onnxopt.graph.emission import check_call, refusal
from onnxopt.graph.node import Node
from onnxopt.pipeline.base import GraphPass
from onnxopt.pipeline.context import PassContext
from onnxopt.rewriting import Call, Declined, Match
from onnxopt.rewriting.match import Builder
from onnxopt.rewriting.matcher import Bindings
from onnxopt.rewriting.replace import commit


class Unchanged(Enum):
    """What `GraphInterpreter.unchanged` is."""

    YES = "unchanged"


Args = tuple[Value | None, ...]
Result = Value | tuple[Value | None, ...] | Unchanged


@dataclass(frozen=True)
class GraphInterpreter(GraphPass):
    """Walks every scope in order, bodies first, and emits what `call_operator` says.

    Override `call_operator`: `return super().call_operator(node, args)` emits the node again, `self.op.Add(a, b)` a
    new one (which takes over name and metadata), `args[0]` none at all. What results takes the place of the node's
    outputs; their names, types and readers stay. Nodes emitted as they were are not touched, `return self.unchanged`
    says so too. Nothing, too many results, or too few are an error.
    """

    kind: ClassVar[str] = "interpreter"

    def call_operator(self, node: Node, args: Args) -> Result:
        """What `node`, reading `args`, becomes: a value for each output that is used."""
        return _emit_again(_MATCH.get(), node, args)

    @property
    def op(self) -> Builder:
        """Emits new nodes: `self.op.Conv(x, w, like=node, pads=[1, 1])`. Only inside `call_operator`."""
        return _MATCH.get().op

    @property
    def unchanged(self) -> Unchanged:
        """To be returned by `call_operator` for a node that stays as it is, whatever was made on the way."""
        return Unchanged.YES

    @property
    def match(self) -> Match:
        """Types (`self.match.shape(x)`) and constants (`self.match.const(array)`). Only inside `call_operator`."""
        return _MATCH.get()

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        for node in graph:
            bindings = Bindings()
            bindings.covered.append((node, Call((node.op,), (), shared=True)))
            m = Match(bindings, node)
            token = _MATCH.set(m)
            try:
                result = self.call_operator(node, tuple(node.inputs))
                if result is Unchanged.YES or _is_same(m, node, result):
                    continue
                _check(m, node, result)
                if ctx.spend("replaced", at=node):
                    _replace(m, node, result, ctx)
            except Declined as e:
                if str(e):
                    ctx.decline("replaced", str(e), repr(node))
                continue
            finally:
                _MATCH.reset(token)


def _emit_again(m: Match, node: Node, args: Args) -> Result:
    inputs = list(args)
    while inputs and inputs[-1] is None:
        inputs.pop()
    if inputs != node.inputs:
        check_call(m.graph, node.op, inputs, len(node.outputs), node)
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


def _check(m: Match, node: Node, result: object) -> None:
    """Raise EmissionError unless there is a result for each output that is read."""
    if result is None:
        raise EmissionError(
            f"{m.graph.model.name}: {m.graph.path}: {node!r}: call_operator returned nothing",
            "return self.unchanged for a node that stays, or what super().call_operator(node, args) returns",
        )
    results = result if isinstance(result, tuple) else (result,)
    missing = [i for i in node.used_outputs() if i >= len(results) or results[i] is None]
    if missing:
        raise refusal(m.graph, node, f"its output {missing[0]} is read, and call_operator returned none for it")


def _is_same(m: Match, node: Node, result: Result) -> bool:
    """Is all that was emitted the node itself, reading what it reads?"""
    if len(m.new_nodes) != 1 or m.borrowed != [node] or m.new_constants:
        return False
    (new,) = m.new_nodes
    results = result if isinstance(result, tuple) else (result,)
    return new.inputs == node.inputs and list(results) == new.outputs


def _replace(m: Match, node: Node, result: Any, ctx: PassContext) -> None:
    bodies, graph = node.bodies, m.graph
    moved = bool(bodies) and node in m.borrowed
    if moved:  # they belong to the node emitted in its place
        node.bodies = {}
        graph.owners.pop(node, None)
    try:
        commit(m, result)
    except Declined:
        ctx.count("replaced", -1)
        if moved:
            node.bodies = bodies
            graph.owners[node] = None
        raise


_MATCH: ContextVar[Match] = ContextVar("onnxopt_interpreted")
