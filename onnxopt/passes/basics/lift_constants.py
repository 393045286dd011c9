"""Constant nodes become initializers where a scope can hold them."""

from __future__ import annotations

from onnx import TensorProto

from onnxopt.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, option, register
from onnxopt.proto.messages import tensor_bytes
from onnxopt.startup.record import record


@register
@record(frozen=True)
class LiftConstants(GraphPass):
    """Constant() -> y becomes the initializer y; so does Identity(constant) -> y for an output y of a body.

    Applies when: the constant is dense and the scope holds initializers (not in functions, nor in bodies before IR 4).
    Keeps: the tensor as it is, with its documentation; a Constant that is itself a graph output.
    """

    info = PassInfo("lift-constants", opt_level=1, ops=("Constant", "Identity"))
    max_copy: int = option(1024, "an outer constant that a body only hands out is copied up to this many bytes")

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if not graph.holds_initializers:
            return
        for node in list(graph.by_op.get("Constant", ())):
            value = node.outputs[0]
            if value is None or not value.constant or (value.is_output and graph.is_bound_by_name):
                continue
            tensor = _tensor(node)
            if tensor is not None:
                value.tensor = tensor
                tensor.name = value.name
            else:
                value.array = node.constant_array()
            graph.add_initializer(value, removed=True)
            graph.remove(node)
            ctx.count("constant_to_initializer")
        if not graph.is_bound_by_name:
            for node in list(graph.by_op.get("Identity", ())):
                self._copy_into_body(node, graph, ctx)

    def _copy_into_body(self, node: Node, graph: Graph, ctx: PassContext) -> None:
        """Replace an Identity of a small outer constant by an initializer of the body: outputs must belong to
        the body."""
        source, value = node.inputs[0], node.outputs[0]
        if source is None or value is None or not source.constant or not value.is_output:
            return
        if tensor_bytes(*source.constant_type()) > self.max_copy:
            return
        value.array = source.array
        graph.add_initializer(value, removed=True)
        graph.remove(node)
        ctx.count("constant_body_output")


def _tensor(node: Node) -> TensorProto | None:
    a = node.attributes.get("value")
    return a.t if a is not None else None
