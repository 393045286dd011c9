"""The same operator on the same inputs gives the same result: compute it once."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Hashable, MutableMapping
from dataclasses import dataclass

from onnxopt.graph import Graph, Model
from onnxopt.graph.node import Node
from onnxopt.graph.schema import CONTROL_FLOW, is_deterministic, is_known
from onnxopt.pipeline import ModelPass, PassContext, PassInfo, register
from onnxopt.rewriting.pattern import COMMUTATIVE

Seen = MutableMapping[Hashable, Node]

# Runtimes look for one DequantizeLinear for each use of a weight.
_KEPT = CONTROL_FLOW | {"QuantizeLinear", "DequantizeLinear", "Dropout", "BatchNormalization", "Constant"}


@register
@dataclass(frozen=True)
class CommonSubexpressions(ModelPass):
    """f(x) and f(x) are one node, in the scope that holds both; a body reads what the scope around it computed before.

    Applies when: operator, inputs by position (of two that commute, in any order), and all attributes are equal.
    Keeps: both where both are outputs, which are two values by interface; what a body hands out is its own.
    Not done: random and unknown operators, control flow, QuantizeLinear and DequantizeLinear.
    """

    info = PassInfo("common-subexpressions", opt_level=1)

    def run(self, model: Model, ctx: PassContext) -> None:
        for root in (*model.functions.values(), model.graph):
            if not root.skipped:
                _merge_scope(root, {}, ctx)


def _merge_scope(graph: Graph, seen: Seen, ctx: PassContext) -> None:
    for node in graph:
        for body in node.bodies.values():
            if not body.skipped:
                _merge_scope(body, ChainMap({}, seen), ctx)  # what a body computes is not seen outside
        if not _mergeable(node, graph):
            continue
        first = seen.setdefault(_key(node), node)
        if first is not node and _replaceable(node, first) and ctx.spend("merged", at=node):
            _replace(node, first)


def _mergeable(node: Node, graph: Graph) -> bool:
    if node.op in _KEPT or node.bodies or not is_deterministic(node.op) or not node.outputs:
        return False
    return is_known(node.op, graph.opset(node.domain))


def _key(node: Node) -> Hashable:
    attributes = sorted((a.name, a.SerializeToString(deterministic=True)) for a in node.proto.attribute)
    inputs = [id(v) for v in node.inputs]
    if len(inputs) == 2 and node.op in COMMUTATIVE:
        inputs.sort()
    return node.op, tuple(inputs), len(node.outputs), tuple(attributes)


def _replaceable(node: Node, first: Node) -> bool:
    pairs = zip(node.outputs, first.outputs)
    return not any(a is not None and a.is_used and (b is None or a.is_output) for a, b in pairs)


def _replace(node: Node, first: Node) -> None:
    graph = node.graph
    assert graph is not None
    for a, b in zip(node.outputs, first.outputs):
        if a is not None and b is not None:
            a.replace_all_uses_with(b)
    graph.remove(node)
