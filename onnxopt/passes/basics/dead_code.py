"""What nothing reads goes: nodes, initializers, optional outputs, functions, their inputs and outputs."""

from __future__ import annotations

from collections import Counter

import onnx

from onnxopt.analysis.purity import may_train
from onnxopt.graph import Graph, Model
from onnxopt.graph.annotations import drop_vanished
from onnxopt.graph.domains import is_standard
from onnxopt.graph.model import inner_scopes
from onnxopt.graph.node import Node
from onnxopt.graph.schema import find_schema
from onnxopt.pipeline import ModelPass, PassContext, PassInfo, register
from onnxopt.protos import qualified

_OPTIONAL = onnx.defs.OpSchema.FormalParameterOption.Optional


@register
class DeadCode(ModelPass):
    """Nodes, initializers, optional outputs, functions, their inputs and outputs that nothing reads are removed.

    Keeps: graph inputs; operators the standard does not know, which may have effects; initializers that
    training or quantization annotations name; the outputs of an Attention, on which runtimes insist; inputs of a
    function that a runtime may know by its name.
    """

    info = PassInfo("dead-code", opt_level=1)

    def run(self, model: Model, ctx: PassContext) -> None:
        _drop_nodes(model, ctx)
        _drop_functions(model, ctx)  # first: what nothing calls reads what others give, and calls others
        while model.functions and _drop_function_ends(model, ctx):
            _drop_nodes(model, ctx)
            _drop_functions(model, ctx)
        more = True
        while more:
            for graph in model.open_scopes():
                _drop_initializers(graph, ctx)
            more = not model.graph.skipped and drop_vanished(model.graph)  # which named initializers, maybe


def _drop_nodes(model: Model, ctx: PassContext) -> None:
    for graph in list(model.open_scopes()):  # bodies come before their owners
        node = graph.last
        while node is not None:  # against the order: readers go before what they read
            previous = node.prev
            if not node.is_used and graph.is_pure(node):
                graph.remove(node)
                ctx.count("dead_node")
            elif len(node.outputs) > 1:
                _drop_optional_outputs(node, graph, ctx)
            node = previous


def _drop_function_ends(model: Model, ctx: PassContext) -> bool:
    """Inputs that the body does not read, and outputs that nobody reads at any call. Is there more to be done?"""
    again = False
    for function, calls in _calls(model):
        for i in reversed(range(len(function.inputs))):
            if function.inputs[i].is_used or not ctx.spend("function_input", at=function.inputs[i]):
                continue
            function.drop_input(i)
            for node in calls:
                node.remove_input(i)
            again = True
        for i in reversed(range(len(function.outputs))):
            read = any(v is not None and v.is_used for node in calls for v in node.outputs[i : i + 1])
            if read or len(function.outputs) == 1 or not ctx.spend("function_output", at=function.outputs[i]):
                continue
            function.drop_output(i)
            for node in calls:
                node.remove_output(i)
            again = True
    return again


def _calls(model: Model) -> list[tuple[Graph, list[Node]]]:
    """The functions of which all calls may be changed, and these. Of several of one name a call may be of any."""
    names = Counter(map(_called, model.functions.values()))
    found: dict[str, tuple[Graph, list[Node]]] = {}
    for function in model.functions.values():
        op = _called(function)
        if names[op] == 1 and not function.skipped and not _has_kernels(function.proto.domain):
            found[op] = function, []
    for scope in model.scopes() if found else ():
        for op in [op for op in scope.by_op if op in found]:
            found[op][1].extend(scope.by_op[op])
            if scope.skipped and scope.by_op[op]:
                del found[op]
    return list(found.values())


def _has_kernels(domain: str) -> bool:
    """May a runtime have an operator of that name, and take that?"""
    return is_standard(domain) or domain.startswith("com.microsoft")


def _called(function: Graph) -> str:
    return qualified(function.proto.name, function.proto.domain)


def _drop_optional_outputs(node: Node, graph: Graph, ctx: PassContext) -> None:
    """Unread trailing outputs that the standard lets a node leave out (a Dropout's mask, an LSTM's last state)."""
    schema = find_schema(node.op, graph.opset(node.domain))
    if schema is None or (node.op == "BatchNormalization" and may_train(node)):  # they say that it does
        return
    if node.op == "Attention":  # onnxruntime refuses a past without a present, and rounds otherwise without the scores
        return
    if node.op == "MaxPool" and ctx.opt_level < 2:  # onnxruntime has two: one without Indices hides -inf and NaN
        return
    last = len(node.outputs) - 1
    while last >= 1:
        value = node.outputs[last]
        optional = last < len(schema.outputs) and schema.outputs[last].option == _OPTIONAL
        if not optional or (value is not None and value.is_used) or not ctx.spend("optional_output", at=node):
            break
        node.remove_output(last)
        last -= 1


def _drop_initializers(graph: Graph, ctx: PassContext) -> None:
    unused = [v for v in graph.initializers.values() if not v.users and not v.output_count]
    dead = [v for v in unused if v.constant or not v.is_input]
    if dead:
        graph.remove_initializer(*dead)
        ctx.count("dead_initializer", len(dead))
    if listed := {v for v in dead if v.is_input}:  # IR 3, or frozen: a weight among the inputs, not an interface
        graph.inputs = [v for v in graph.inputs if v not in listed]


def _drop_functions(model: Model, ctx: PassContext) -> None:
    """What is called only by what nothing calls goes with it."""
    if not model.functions:
        return
    dead = dict(model.functions)
    labels: dict[str, list[str]] = {}  # a call names no overload: it keeps all of them
    for label, function in dead.items():
        labels.setdefault(_called(function), []).append(label)
    alive = [model.graph, *(dead.pop(label) for label, function in model.functions.items() if function.skipped)]
    while alive and dead:
        for scope in inner_scopes(alive.pop()):
            for op in scope.by_op:
                if scope.by_op[op]:
                    alive += [dead.pop(label) for label in labels.pop(op, ()) if label in dead]
    if not dead:
        return
    model.drop_functions(dead)
    ctx.count("dead_function", len(dead))
