"""Dead code elimination: nodes, initializers, optional outputs, functions, function inputs and outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from onnx import ModelProto

from onnxopt.analysis.constants import may_train
from onnxopt.graph import Graph, Model
from onnxopt.graph.bindings import drop_vanished
from onnxopt.graph.model import inner_scopes
from onnxopt.graph.node import Node
from onnxopt.graph.schema import is_standard
from onnxopt.pipeline import ModelPass, PassContext, PassInfo, register
from onnxopt.proto.messages import all_nodes, qualified, training_graphs


@register
class DeadCode(ModelPass):
    """Removes unused nodes, initializers, optional outputs, functions, and unused inputs and outputs of functions.

    Keeps: graph inputs; operators unknown to the standard, with possible side effects; initializers named by training
    or quantization annotations; outputs of an Attention, required by runtimes; inputs of functions that a runtime may
    implement itself.
    """

    info = PassInfo("dead-code", opt_level=1)

    def run(self, model: Model, ctx: PassContext) -> None:
        _drop_nodes(model, ctx)
        _drop_functions(model, ctx)  # first: uncalled functions read values and call other functions
        while model.functions and _drop_function_ends(model, ctx):
            _drop_nodes(model, ctx)
            _drop_functions(model, ctx)
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
            elif node.outputs[1:]:
                _drop_optional_outputs(node, graph, ctx)
            node = previous


def _drop_function_ends(model: Model, ctx: PassContext) -> bool:
    """Remove unread inputs of functions, and outputs unread at all calls. Returns whether any was removed."""
    changed = [drop(*call, ctx) for call in _calls(model) for drop in (_drop_inputs, _drop_outputs)]
    return any(changed)


def _drop_inputs(function: Graph, calls: list[Node], ctx: PassContext) -> bool:
    again = False
    for i in reversed(range(len(function.inputs))):
        if not function.inputs[i].is_used and ctx.spend("function_input", at=function.inputs[i]):
            function.drop_input(i)
            for node in calls:
                node.remove_input(i)
            again = True
    return again


def _drop_outputs(function: Graph, calls: list[Node], ctx: PassContext) -> bool:
    again = False
    for i in reversed(range(len(function.outputs))):
        read = any(v is not None and v.is_used for node in calls for v in node.outputs[i : i + 1])
        if not read and len(function.outputs) > 1 and ctx.spend("function_output", at=function.outputs[i]):
            function.drop_output(i)
            for node in calls:
                node.remove_output(i)
            again = True
    return again


def _calls(model: Model) -> list[tuple[Graph, list[Node]]]:
    """Return functions with all their calls, if all may be changed. Overloaded functions are left out."""
    names = Counter(map(_called, model.functions.values()))
    names.update(_called_in_training(model.proto))
    found = {_called(f): (f, list[Node]()) for f in model.functions.values() if _may_change(f, names)}
    for scope in model.scopes() if found else ():
        for op in [op for op in scope.by_op if op in found]:
            found[op][1].extend(scope.by_op[op])
            if scope.skipped and scope.by_op[op]:
                del found[op]
    return list(found.values())


def _may_change(function: Graph, names: Counter[str]) -> bool:
    """Whether the inputs and outputs of a function may change: no overload, kernel or call in training has the name."""
    domain = function.proto.domain
    has_kernels = is_standard(domain) or domain.startswith("com.microsoft")
    return names[_called(function)] == 1 and not function.skipped and not has_kernels


def _called(function: Graph) -> str:
    return qualified(function.proto.name, function.proto.domain)


def _called_in_training(proto: ModelProto) -> set[str]:
    """Return the operators of the training graphs, which the index does not model."""
    return {qualified(n.op_type, n.domain) for graph in training_graphs(proto) for n in all_nodes(graph.node)}


def _drop_optional_outputs(node: Node, graph: Graph, ctx: PassContext) -> None:
    """Remove unread optional trailing outputs (a Dropout's mask, an LSTM's last state)."""
    demanded = graph.signature(node.op)
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
    dead = {v: None for v in given if not v.users and not v.output_count and (v.constant or not v.is_input)}
    if dead:
        graph.remove_initializer(*dead)
        ctx.count("dead_initializer", len(dead))
    # IR 3, or frozen: a weight listed as input is not part of the interface
    if any(v.is_input for v in dead):
        graph.inputs = [v for v in graph.inputs if v not in dead]


def _drop_functions(model: Model, ctx: PassContext) -> None:
    """Remove functions not reachable from the main graph or a training graph."""
    dead = _uncalled(model)
    if not dead:
        return
    model.drop_functions(dead)
    ctx.count("dead_function", len(dead))


def _uncalled(model: Model) -> dict[str, Graph]:
    """Return the functions not reachable from the main graph or a training graph, by label."""
    dead = dict(model.functions)
    labels: dict[str, list[str]] = {}  # a call without overload keeps all overloads
    for label, function in dead.items():
        labels.setdefault(_called(function), []).append(label)
    alive = [model.graph, *(dead.pop(label) for label, function in model.functions.items() if function.skipped)]
    called: Iterable[str] = _called_in_training(model.proto)
    while dead:
        alive += [dead.pop(label) for op in called for label in labels.pop(op, ()) if label in dead]
        if not alive:
            break
        called = [op for scope in inner_scopes(alive.pop()) for op in scope.by_op if scope.by_op[op]]
    return dead
