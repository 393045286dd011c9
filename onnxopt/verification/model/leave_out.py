"""Removal of parts without effect before analysis.

Removed: inputs of branches, constant false training modes of Dropout, dead nodes, declared shapes, and overridable
defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from onnxopt.verification.model.constants import constants, few
from onnxopt.verification.model.functions import domain_of
from onnxopt.verification.model.operators import STANDARD, WITH_BODIES
from onnxopt.verification.model.order import bodies_of, in_order, inside, operator_names, reads_of

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

_MODE: Final = 2  # operand of Dropout: training mode


def leave_out_inputs(model: ModelProto) -> None:
    """Remove the inputs of If branches in place.

    The standard allows none, and nothing is passed; readers get the outer value of the same name.
    """
    for nodes in (model.graph.node, *(f.node for f in model.functions)):
        for node in inside(nodes):
            if node.op_type == "If" and node.domain in STANDARD:
                for branch in bodies_of(node):
                    del branch.input[:]


def leave_out_false_modes(model: ModelProto) -> None:
    """Remove constant false `training_mode` operands of Dropout (the default) in place, also in bodies and functions.

    Overridable initializers are no constants.
    """
    is_listed = model.ir_version < 4  # before, every initializer had to be listed as an input
    given = set() if is_listed else {i.name for i in model.graph.input}
    _in_nodes(model.graph.node, {t.name for t in model.graph.initializer if _is_false(t)} - given)
    for function in model.functions:
        _in_nodes(function.node, set())


def _in_body(body: GraphProto, outer: set[str]) -> None:
    """Process a body. `outer`: names of false constants outside the body."""
    _in_nodes(body.node, outer - {i.name for i in body.input} | {t.name for t in body.initializer if _is_false(t)})


def _in_nodes(nodes: Sequence[NodeProto], outer: set[str]) -> None:
    known = outer.difference(*(node.output for node in nodes))
    known |= {name for name, tensor in constants(nodes) if _is_false(tensor)}
    for node in nodes:
        if node.op_type == "Identity" and known.intersection(node.input):
            known.update(node.output)
        elif node.op_type == "Dropout" and node.domain in STANDARD and known.intersection(node.input[_MODE:]):
            del node.input[_MODE:]
        for body in bodies_of(node):
            _in_body(body, known)


def _is_false(tensor: TensorProto) -> bool:
    return few(tensor, 1, (tensor.BOOL,)) == [False]


def leave_out_unread(model: ModelProto) -> None:
    """Remove dead nodes of the standard domain in place, if the graph or function has bodies.

    Operators of custom domains may have side effects, and stay with their operands.
    """
    if not WITH_BODIES.isdisjoint(operator_names(model.graph.node)):
        prune(model.graph.node, (o.name for o in model.graph.output))
    for function in model.functions:
        if not WITH_BODIES.isdisjoint(operator_names(function.node)):
            prune(function.node, function.output)


def prune(nodes: Any, outputs: Iterable[str]) -> None:
    """Remove nodes of the standard domain without effect on `outputs`, in place, also in bodies."""
    for node in nodes:
        for body in bodies_of(node):
            prune(body.node, (o.name for o in body.output))
    reads = [list(reads_of(node)) for node in nodes]
    needed, dead = set(outputs), []
    for i in reversed(in_order(nodes, reads)):
        if needed.isdisjoint(nodes[i].output) and all(not domain_of(n.domain) for n in inside([nodes[i]])):
            dead.append(i)
        else:
            needed.update(reads[i])
    for i in sorted(dead, reverse=True):
        del nodes[i]


def forget_defaults(proto: ModelProto) -> None:
    """Remove overridable initializers, which onnx's inference takes for constants."""
    if proto.ir_version < 4:  # before, every initializer had to be listed as an input
        return
    graph = proto.graph
    given = {i.name for i in graph.input}
    names = [t.name for t in graph.initializer], [t.values.name for t in graph.sparse_initializer]
    for tensors, its in zip((graph.initializer, graph.sparse_initializer), names):
        for k in reversed([k for k, name in enumerate(its) if name in given]):
            del tensors[k]


def forget_claims(graph: GraphProto) -> None:
    """Remove declared shapes of results, which may be wrong, in place, also in bodies."""
    del graph.value_info[:]
    for output in graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for body in bodies_of(node):
            forget_claims(body)
