"""The same operator on the same inputs gives the same result: compute it once."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Hashable, MutableMapping
from dataclasses import dataclass

from onnxopt.analysis.contents import Contents
from onnxopt.analysis.training import may_train
from onnxopt.graph import Graph, Model
from onnxopt.graph.node import Node
from onnxopt.graph.schema import CONTROL_FLOW, is_deterministic, is_known
from onnxopt.pipeline import ModelPass, PassContext, PassInfo, register
from onnxopt.rewriting.pattern import COMMUTATIVE

Seen = MutableMapping[Hashable, Node]

# Runtimes look for one DequantizeLinear for each use of a weight.
_KEPT = CONTROL_FLOW | {"QuantizeLinear", "DequantizeLinear"}


@register
@dataclass(frozen=True)
class CommonSubexpressions(ModelPass):
    """f(x) and f(x) are one node, in the scope that holds both; a body reads what the scope around it computed before.

    Applies when: operator, inputs by position (of two that commute, in any order), and all attributes are equal.
    Constants are equal by type, dims and bytes, so that a network that was exported twice is one after one run.
    Keeps: both where both are outputs, which are two values by interface; what a body hands out is its own.
    Not done: random and unknown operators, Dropout and BatchNormalization in training, control flow, QuantizeLinear
    and DequantizeLinear.
    """

    info = PassInfo("common-subexpressions", opt_level=1)

    def run(self, model: Model, ctx: PassContext) -> None:
        contents = Contents()
        for root in (*model.functions.values(), model.graph):
            if not root.skipped:
                _merge_scope(root, {}, contents, ctx)


def _merge_scope(graph: Graph, seen: Seen, contents: Contents, ctx: PassContext) -> None:
    for node in graph:
        for body in node.bodies.values():
            if not body.skipped:
                _merge_scope(body, ChainMap({}, seen), contents, ctx)  # what a body computes is not seen outside
        if not _mergeable(node, graph):
            continue
        first = seen.setdefault(_key(node, contents), node)
        if first is not node and ctx.fuel.left != 0 and _replace(node, first):
            ctx.spend("merged")


def _mergeable(node: Node, graph: Graph) -> bool:
    if node.op in _KEPT or node.bodies or not is_deterministic(node.op) or may_train(node):
        return False
    if not node.used_outputs():
        return False
    return is_known(node.op, graph.opset(node.domain))


def _key(node: Node, contents: Contents) -> Hashable:
    if node.op == "Constant" and node.output.constant:
        return node.op, id(contents.first_like(node.output))
    attributes = sorted((a.name, a.SerializeToString(deterministic=True)) for a in node.proto.attribute)
    inputs = [id(v and contents.first_like(v)) for v in node.inputs]
    if len(inputs) == 2 and node.op in COMMUTATIVE:
        inputs.sort()
    return node.op, tuple(inputs), len(node.outputs), tuple(attributes)


def _replace(node: Node, first: Node) -> bool:
    graph = node.graph
    assert graph is not None
    pairs = list(zip(node.outputs, first.outputs))
    if any(a is not None and a.is_used and (b is None or a.is_output) for a, b in pairs):
        return False
    for a, b in pairs:
        if a is not None and b is not None:
            a.replace_all_uses_with(b)
    graph.remove(node)
    return True
