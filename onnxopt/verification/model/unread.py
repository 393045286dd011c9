"""What leads to no output says nothing of a model: an If among it, which the other has not, is no open part."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from onnxopt.verification.model.functions import domain_of
from onnxopt.verification.model.operators import WITH_BODIES
from onnxopt.verification.model.order import bodies_of, in_order, inside, operator_names, reads_of

if TYPE_CHECKING:
    from onnx import ModelProto


def leave_out_unread(model: ModelProto) -> None:
    """Take the standard's nodes that lead to no output of their graph, body or function out of a model that has bodies.
    Operators of other domains may have effects, and stay with what they read."""
    if not WITH_BODIES.isdisjoint(operator_names(model.graph.node)):
        _prune(model.graph.node, (o.name for o in model.graph.output))
    for function in model.functions:
        if not WITH_BODIES.isdisjoint(operator_names(function.node)):
            _prune(function.node, function.output)


def _prune(nodes: Any, outputs: Iterable[str]) -> None:
    """`nodes`: repeated, and changed in place."""
    for node in nodes:
        for body in bodies_of(node):
            _prune(body.node, (o.name for o in body.output))
    reads = [list(reads_of(node)) for node in nodes]
    needed, dead = set(outputs), []
    for i in reversed(in_order(nodes, reads)):
        if needed.isdisjoint(nodes[i].output) and all(not domain_of(n.domain) for n in inside([nodes[i]])):
            dead.append(i)
        else:
            needed.update(reads[i])
    for i in sorted(dead, reverse=True):
        del nodes[i]
