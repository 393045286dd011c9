"""Inlines the taken branch of an If with a known condition."""

from __future__ import annotations

from onnxopt.analysis import types
from onnxopt.analysis.refusal import REFUSED
from onnxopt.graph import Graph
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.rewriting.inline import forward_results, misleads, obstacle


@register
class InlineBranches(GraphPass):
    """If(true) then A else B = A, inlined into the outer scope.

    Applies when: the condition is constant.
    Keeps: names of the If's results; an Identity for results that are outer values, initializers, or repeated outputs.
    Not done: branches marked `onnxopt.skip`; initializers of a branch in a function, which cannot hold any.
    """

    info = PassInfo("inline-branches", opt_level=1, ops=("If",))

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        inlined = False
        for node in list(graph.by_op.get("If", ())):
            condition = node.inputs[0]
            if condition is None or not condition.constant or condition.array.size != 1:
                continue
            body = node.bodies["then_branch" if bool(condition.array.item()) else "else_branch"]
            reason = obstacle(graph, body) or (REFUSED if misleads(zip(node.outputs, body.outputs)) else "")
            if reason:
                ctx.decline("inlined", reason, repr(node))
            elif ctx.spend("inlined", at=node):
                forward_results(graph, node, graph.inline(body))
                inlined = True
        if inlined:
            types.update(graph.model)  # downstream shapes were the union of both branches
