"""Dead code elimination: nodes, initializers, optional outputs, functions."""

from __future__ import annotations

from onnxopt.analysis.constants import may_train
from onnxopt.graph import Graph, Model
from onnxopt.graph.bindings import drop_vanished
from onnxopt.graph.model import inner_scopes
from onnxopt.graph.node import Node
from onnxopt.pipeline import ModelPass, PassContext, PassInfo, register
from onnxopt.proto.messages import qualified


@register
class DeadCode(ModelPass):
    """Removes unused nodes, initializers, optional outputs and functions.

    Keeps: graph inputs, and inputs and outputs of functions; operators unknown to the standard, with possible side
    effects; initializers named by training or quantization annotations; outputs of an Attention, required by runtimes.
    """

    info = PassInfo("dead-code", opt_level=1)

    def run(self, model: Model, ctx: PassContext) -> None:
        _drop_nodes(model, ctx)
        _drop_functions(model, ctx)  # first: uncalled functions read values and call other functions
        more = True
        while more:
            for graph in model.open_scopes():
                _drop_initializers(graph, ctx)
            more = not model.graph.skipped and drop_vanished(model.graph)  # annotations may have named initializers


def _drop_nodes(model: Model, ctx: PassContext) -> None:
    for graph in list(model.open_scopes()):  # bodies come before their owners
        node = graph.last
        while node is not None:  # in reverse order: readers are removed before producers
            previous = node.prev
            if not node.is_used and graph.is_pure(node):
                graph.remove(node)
                ctx.count("dead_node")
            elif len(node.outputs) > 1:
                _drop_optional_outputs(node, graph, ctx)
            node = previous


def _called(function: Graph) -> str:
    return qualified(function.proto.name, function.proto.domain)


def _drop_optional_outputs(node: Node, graph: Graph, ctx: PassContext) -> None:
    """Remove unread optional trailing outputs (a Dropout's mask, an LSTM's last state)."""
    demanded = graph.results_of(node.op)
    if demanded is None or _needs_outputs(node, ctx.opt_level):
        return
    last = len(node.outputs) - 1
    while last >= 1:
        value = node.outputs[last]
        if (
            last not in demanded.optional
            or (value is not None and value.is_used)
            or not ctx.spend("optional_output", at=node)
        ):
            break
        node.remove_output(last)
        last -= 1


def _needs_outputs(node: Node, opt_level: int) -> bool:
    """Whether fewer outputs would change what the node, or a runtime, computes."""
    if node.op == "BatchNormalization":
        return may_train(node)  # further outputs indicate training mode
    if node.op == "MaxPool":
        return opt_level < 2  # onnxruntime has two kernels: the one without Indices hides -inf and NaN
    return node.op == "Attention"  # onnxruntime rejects a past without a present, and rounds differently without scores


def _drop_initializers(graph: Graph, ctx: PassContext) -> None:
    given = graph.initializers.values()
    dead = dict.fromkeys(v for v in given if not v.is_used and (v.constant or not v.is_input))
    if dead:
        graph.remove_initializer(*dead)
        ctx.count("dead_initializer", len(dead))
    # IR 3, or frozen: a weight listed as input is not part of the interface
    if any(v.is_input for v in dead):
        graph.inputs = [v for v in graph.inputs if v not in dead]


def _drop_functions(model: Model, ctx: PassContext) -> None:
    """Remove functions not reachable from the main graph."""
    dead = _uncalled(model)
    if not dead:
        return
    model.drop_functions(dead)
    ctx.count("dead_function", len(dead))


def _uncalled(model: Model) -> dict[str, Graph]:
    """Return the functions not reachable from the main graph, by label."""
    dead = dict(model.functions)
    labels: dict[str, list[str]] = {}  # a call without overload keeps all overloads
    for label, function in dead.items():
        labels.setdefault(_called(function), []).append(label)
    alive = [model.graph, *(dead.pop(label) for label, function in model.functions.items() if function.skipped)]
    while alive and dead:
        called = _operators_in(alive.pop())
        alive += [dead.pop(label) for op in called for label in labels.pop(op, ()) if label in dead]
    return dead


def _operators_in(graph: Graph) -> list[str]:
    """Return the operators of a graph and its bodies."""
    return [op for scope in inner_scopes(graph) for op in scope.by_op if scope.by_op[op]]
