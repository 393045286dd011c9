"""What nothing reads goes: nodes, initializers, optional outputs, functions."""

from __future__ import annotations

import onnx

from onnxopt.graph import Graph, Model
from onnxopt.graph.node import Node
from onnxopt.graph.schema import find_schema
from onnxopt.pipeline import ModelPass, PassContext, PassInfo, register
from onnxopt.rewriting import remove_dead

_OPTIONAL = onnx.defs.OpSchema.FormalParameterOption.Optional


@register
class DeadCode(ModelPass):
    """Nodes, initializers, optional outputs and functions that nothing reads are removed.

    Keeps: graph inputs; operators the standard does not know, which may have effects; initializers that
    training or quantization annotations name.
    """

    info = PassInfo("dead-code", opt_level=1)

    def run(self, model: Model, ctx: PassContext) -> None:
        for graph in list(model.open_scopes()):
            if graph.owner is not None and graph.owner.graph is None:
                continue  # removed with its owner
            node = graph.last
            while node is not None:  # against the order: readers go before what they read
                previous = node.prev
                if not node.used_outputs():
                    ctx.count("dead_node", remove_dead(node))
                    if node.graph is None:
                        node = previous if previous is None or previous.graph is not None else graph.last
                        continue
                _drop_optional_outputs(node, graph, ctx)
                node = previous
        for graph in model.open_scopes():
            _drop_initializers(graph, ctx)
        _drop_functions(model, ctx)


def _drop_optional_outputs(node: Node, graph: Graph, ctx: PassContext) -> None:
    """Unread trailing outputs that the standard lets a node leave out (a Dropout's mask, an LSTM's last state)."""
    last = len(node.outputs) - 1
    if last < 1:
        return
    value = node.outputs[last]
    if value is not None and value.is_used:
        return
    schema = find_schema(node.op, graph.opset(node.domain))
    if schema is None or node.attr("training_mode", 0):  # BatchNormalization in training must give its statistics
        return
    while last >= 1:
        value = node.outputs[last]
        optional = last < len(schema.outputs) and schema.outputs[last].option == _OPTIONAL
        if not optional or (value is not None and value.is_used):
            break
        node.outputs.pop()
        node.stale = True
        graph.touch(node)
        ctx.count("optional_output")
        last -= 1


def _drop_initializers(graph: Graph, ctx: PassContext) -> None:
    for value in list(graph.initializers.values()):
        if not value.is_used and (value.constant or not value.is_input):
            graph.remove_initializer(value)
            if value.is_input:  # IR 3, or frozen: a weight listed among the inputs, not an interface
                graph.inputs.remove(value)
            ctx.count("dead_initializer")


def _drop_functions(model: Model, ctx: PassContext) -> None:
    if not model.functions:
        return
    called = {node.op for node in model.nodes()}
    proto = model.proto
    for label, graph in list(model.functions.items()):
        f = graph.proto
        if graph.skipped or f"{f.domain}::{f.name}" in called or (f.domain in ("", "ai.onnx") and f.name in called):
            continue
        del model.functions[label]
        for i in range(len(proto.functions) - 1, -1, -1):
            if proto.functions[i] is f or proto.functions[i] == f:
                del proto.functions[i]
        model.version += 1
        ctx.count("dead_function")
