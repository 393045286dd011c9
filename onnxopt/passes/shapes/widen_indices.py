"""Index arithmetic in 32 bits between Casts, computed in 64 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sweep import ShapeData
from onnxopt.graph import Graph, Model, Value
from onnxopt.graph.node import Node, present
from onnxopt.pipeline import ModelPass, PassContext, PassInfo, register
from onnxopt.rewriting.replace import remove_dead

_ALL: Final = ("Add", "Concat", "Div", "Mod", "Mul", "Neg", "Sub")  # operands of the same type
_FIRST: Final = ("Gather", "Identity", "ReduceProd", "Reshape", "Slice", "Squeeze", "Unsqueeze")
_MAX_STEPS: Final = 32  # steps between the Casts


@register
class WidenIndices(ModelPass):
    """Cast(f(Cast(x))) = f(x), for sizes x and index arithmetic f in 32 bits.

    Applies when: each intermediate number is known as an expression of sizes that fits 32 bits, and is read only by
    Casts and intermediate nodes.
    Keeps: a Cast to 32 bits with other readers.
    TensorFlow computes shapes in 32 bits, while shape operands require 64.
    """

    info = PassInfo("widen-indices", opt_level=1, after=("shape-arithmetic",), ops=("Cast",))

    def run(self, model: Model, ctx: PassContext) -> None:
        casts = [n for g in model.open_scopes() if not g.root.is_function for n in g.by_op.get("Cast", ())]
        if any(n.attr("to") == TensorProto.INT32 and _reads(n, TensorProto.INT64) for n in casts):
            if not model.graph.skipped:
                _run_graph(model.graph, ShapeData(), ctx)


def _reads(cast: Node, data_type: int) -> bool:
    return cast.inputs[0] is not None and types.dtype(cast.inputs[0]) == data_type


def _run_graph(graph: Graph, data: ShapeData, ctx: PassContext) -> None:
    for node in list(data.sweep(graph)):
        for body in node.bodies.values():
            if not body.skipped:
                _run_graph(body, data, ctx)
    for node in list(graph.by_op.get("Cast", ())):
        if node.graph is graph and _reads(node, TensorProto.INT32):
            between = _between(node, data)
            if between and ctx.spend("widened", at=node):
                _widen(graph, between)


def _between(cast: Node, data: ShapeData) -> list[Node]:
    """Return the nodes between Casts from 64 bits and the final Casts (one is `cast`), in topological order.

    Empty if no Cast would be removed.
    """
    found: dict[Node, None] = {}
    first: set[Node] = set()
    stack = _computed(cast.inputs[:1])
    while stack:
        value = stack.pop()
        node = value.producer
        if node is None or not _is_known(value, data):
            return []
        if node.op == "Cast" and _reads(node, TensorProto.INT64):
            first.add(node)
        elif node not in found:
            if len(found) == _MAX_STEPS or not _may_widen(node, value, cast.graph):
                return []
            found[node] = None
            stack += _computed([*_operands(node), *(v for u in value.users if u.op != "Cast" for v in u.outputs)])
    return [n for n in cast.scope if n in found] if _removes(found, first) else []


def _computed(values: Sequence[Value | None]) -> list[Value]:
    return [v for v in present(values) if not v.constant]


def _removes(found: dict[Node, None], first: set[Node]) -> bool:
    """Whether a Cast in front of the nodes, or behind them, is removed."""
    if any(u.op == "Cast" and u.attr("to") == TensorProto.INT64 for n in found for u in n.output.users):
        return True
    return any(not n.output.is_output and found.keys() >= n.output.users.keys() for n in first)


def _is_known(value: Value, data: ShapeData) -> bool:
    """Whether all elements of an integer value are sizes."""
    content = data.content(value)
    return content is not None and None not in content.reshape(-1).tolist()


def _may_widen(node: Node, value: Value, graph: Graph | None) -> bool:
    """Whether the node computes `value` of 64 bits as well, and its readers, of the same graph, read them."""
    if node.op not in (*_ALL, *_FIRST) or node.graph is not graph or value.is_output:
        return False
    return all(u.graph is graph and value not in u.inputs[len(_operands(u)) :] for u in value.users)


def _operands(node: Node) -> Sequence[Value | None]:
    """Return the operands of the result's type."""
    return node.inputs[:1] if node.op in _FIRST else node.inputs


def _source(graph: Graph, v: Value, before: Node) -> Value:
    """Return a constant of 64 bits, or the operand of a Cast."""
    cast = None if v.constant else v.producer
    source = cast.inputs[0] if cast is not None else None
    return source or graph.constant(v.array.astype(np.int64), v.name, before)


def _widen(graph: Graph, between: list[Node]) -> None:
    for narrow, made in _compute_wide(graph, between).items():
        for cast in [u for u in narrow.users if u.op == "Cast" and narrow.producer in between]:
            cast.set_input(0, made)
            if cast.attr("to") == TensorProto.INT64:
                made = cast.output.replace_all_uses_with(made)
                graph.remove(cast)
    for node in reversed(between):
        remove_dead(node)


def _compute_wide(graph: Graph, between: list[Node]) -> dict[Value, Value]:
    """Insert the nodes in 64 bits. Returns the wide value of each operand and result."""
    wide: dict[Value, Value] = {}
    for node in between:
        inputs = list(node.inputs)
        for i, v in enumerate(_operands(node)):
            if v is not None and v not in wide:
                wide[v] = _source(graph, v, node)
            inputs[i] = wide[v] if v is not None else None
        made = Value(graph.model.names.fresh(node.output.name, "_wide"), graph)
        made.dtype, made.shape = TensorProto.INT64, node.output.shape
        graph.insert(node.copy(inputs, [made]), node)
        wide[node.output] = made
    return wide
