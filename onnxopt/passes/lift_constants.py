"""Constant nodes become initializers where a scope can hold them."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto

from onnxopt.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register


@register
@dataclass(frozen=True)
class LiftConstants(GraphPass):
    """Constant() -> y is the initializer y.

    Applies when: the constant is dense and the scope holds initializers (not in functions, nor in bodies before IR 4).
    Keeps: the tensor as it is, with its documentation; a Constant that is itself a graph output.
    """

    info = PassInfo("lift-constants", opt_level=1)

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if not graph.holds_initializers:
            return
        for node in list(graph.by_op.get("Constant", ())):
            value = node.outputs[0]
            if value is None or not value.constant or value.is_output:
                continue
            tensor = _tensor(node)
            if tensor is not None:
                value.tensor = tensor
                tensor.name = value.name
            else:
                value.array = node.constant_array()
            node.outputs[0] = None
            graph.remove(node)
            graph.add_initializer(value)
            ctx.count("constant_to_initializer")


def _tensor(node: Node) -> TensorProto | None:
    a = node.attributes.get("value")
    return a.t if a is not None else None
