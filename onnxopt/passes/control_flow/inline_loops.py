"""Inlines Loops known to make 0 or 1 iterations."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.refusal import REFUSED, told
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.proto.messages import Array
from onnxopt.rewriting.inline import forward_results, misleads, obstacle
from onnxopt.rewriting.parts import insert_new, of_axes


@register
class InlineLoops(GraphPass):
    """Loop(0, cond, v, body) = v; Loop(1, true, v, body) = body(0, true, v), inlined into the outer scope.

    Applies when: the trip count is constant, or the condition is: false at first, or false after the first iteration.
    Keeps: names of the Loop's results; scan outputs, as an element along a new first axis.
    Not done: 0 iterations with a used scan output, whose shape only the runtime knows; bodies marked `onnxopt.skip`.
    """

    info = PassInfo("inline-loops", opt_level=1, ops=("Loop",))

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        inlined = False
        for node in list(graph.by_op.get("Loop", ())):
            trips, body = _trips(node), node.bodies["body"]
            carried = len(body.inputs) - 2
            if trips is None:
                continue
            if [v is not None for v in node.inputs[2:]] != [True] * carried:
                ctx.decline("inlined", "it is not given what it carries", repr(node))
                continue
            if trips == 0:
                if any(v is not None and v.is_used for v in node.outputs[carried:]):
                    ctx.decline("inlined", "what no trip collects has a shape that is not known", repr(node))
                elif misleads(zip(node.outputs, node.inputs[2:])):
                    ctx.decline("inlined", REFUSED, repr(node))
                elif ctx.spend("inlined", at=node):
                    forward_results(graph, node, node.inputs[2:])
                    inlined = True
                continue
            reason = obstacle(graph, body) or (REFUSED if misleads(_instead(graph, node, body, carried)) else "")
            if reason:
                ctx.decline("inlined", reason, repr(node))
            elif ctx.spend("inlined", at=node):
                _inline(graph, node, body, carried)
                inlined = True
        if inlined:
            types.update(graph.model)  # downstream shapes held for any number of iterations


def _trips(node: Node) -> int | None:
    """Return 0 or 1 if the Loop makes so many iterations, else None."""
    count, condition, going_on = node.inputs[0], node.input(1), node.bodies["body"].outputs[0]
    limit = _scalar(count)
    if (limit is not None and limit <= 0) or _scalar(condition) == 0:
        return 0
    surely_starts = (condition is None or _scalar(condition)) and (count is None or limit is not None)
    if surely_starts and (limit == 1 or _scalar(going_on) == 0):
        return 1
    return None


def _scalar(value: Value | None) -> int | None:
    return int(value.array.item()) if value is not None and value.constant and value.array.size == 1 else None


def _instead(
    graph: Graph, node: Node, body: Graph, carried: int
) -> Iterator[tuple[Value | None, Array | Value | None]]:
    """Yield (value, replacement) for the body's inputs and the Loop's results."""
    yield from zip(body.inputs, [*_counted(body), *node.inputs[2:]])
    yield from zip(node.outputs, body.outputs[1 : 1 + carried])
    for value, one in zip(node.outputs[carried:], body.outputs[1 + carried :]):
        wide, dims = Value(one.name, graph), told(one)
        wide.dtype, wide.shape = types.dtype(one), None if dims is None else (1, *dims)
        yield value, wide


def _counted(body: Graph) -> tuple[Array, Array]:
    """Return the first iteration number and the true condition, with the ranks declared in the file."""
    ranks = [len(info.type.tensor_type.shape.dim) for info in body.proto.input[:2]]
    return np.zeros([1] * ranks[0], np.int64), np.ones([1] * ranks[1], bool)


def _inline(graph: Graph, node: Node, body: Graph, carried: int) -> None:
    counted = [graph.constant(a, v.name, node) for a, v in zip(_counted(body), body.inputs)]
    carried_in = [v for v in node.inputs[2:] if v is not None]  # all are present, otherwise declined
    _, *results = graph.inline(body, [*counted, *carried_in])
    collected = [insert_new(graph, of_axes(graph, "Unsqueeze", v, [0], node), v, node) for v in results[carried:]]
    forward_results(graph, node, [*results[:carried], *collected])
