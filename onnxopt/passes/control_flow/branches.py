"""If: conditions implied by its readers, and the taken branch inlined."""

from __future__ import annotations

from typing import Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.constants import REFUSED
from onnxopt.analysis.shapes.required_ranks import required_rank, running
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node, array_of
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.rewriting.replace import forward_results, misleads, obstacle

_BRANCHES: Final = ("then_branch", "else_branch")


@register
class KnownConditions(GraphPass):
    """If(c) A B = A where the readers of the If cannot accept B.

    Applies when: the branches' results have different ranks, and a Conv, LSTM, Transpose or pool in every run of the If
    fails for one branch. PyTorch's exporter writes a `squeeze` of unknown rank like this. Further Ifs on the same
    condition are settled, too.
    Keeps: the If, for inline-branches. Where the original fails, the result may fail later, or not at all.
    Not done: an If with two failing branches; an If inside a branch of another If on the same condition, a case that
    verification could not follow.
    """

    info = PassInfo("known-conditions", opt_level=1, ops=("If",))

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        live = running(graph)
        for node in list(graph.by_op.get("If", ())):
            condition = node.inputs[0]
            if condition is None or condition.constant or not _has_both(node):
                continue
            known = _left_by_readers(node, live)
            if known is None:
                continue
            for other in _asking_the_same(node, condition):
                unused = other.bodies[_BRANCHES[not known]]
                why = REFUSED if misleads(zip(other.outputs, unused.outputs)) else ""
                if ctx.spend("refused", at=other, unless=why):
                    other.set_input(0, other.scope.constant(np.array(known), "condition", other))


def _has_both(node: Node) -> bool:
    return set(node.bodies) == set(_BRANCHES)


def _left_by_readers(node: Node, live: set[Node]) -> bool | None:
    """Return the condition's value if readers accept the result of a single branch only; else None."""
    for value, *results in zip(node.outputs, *(node.bodies[name].outputs for name in _BRANCHES)):
        # most readers require no rank, and need no inference
        asked = required_rank(value, live) if value is not None else None
        if asked is None:
            continue
        fail = [rank is not None and rank != asked for rank in map(types.rank, results)]
        if fail[0] != fail[1]:
            return fail[1]
    return None


def _asking_the_same(node: Node, condition: Value) -> list[Node]:
    """Return all Ifs on the condition, in the scope and nested; an If in a body, which may not run, only itself."""
    if condition.graph is not node.graph:
        return [node]
    readers = (n for n in condition.users if n.op == "If" and n.graph is not None and not n.graph.skipped)
    return [n for n in readers if _has_both(n)]


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
            condition = array_of(node.inputs[0])
            if condition is None or condition.size != 1:
                continue
            body = node.bodies["then_branch" if condition.item() else "else_branch"]
            why = obstacle(graph, body) or (REFUSED if misleads(zip(node.outputs, body.outputs)) else "")
            if ctx.spend("inlined", at=node, unless=why):
                forward_results(graph, node, graph.inline(body))
                inlined = True
        if inlined:
            types.update(graph.model)  # downstream shapes were the union of both branches
