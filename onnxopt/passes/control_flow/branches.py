"""If: conditions implied by its readers, and the taken branch inlined."""

from __future__ import annotations

from typing import Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.constants import REFUSED
from onnxopt.analysis.shapes.demands import Running, demanded_rank
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node, array_of
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.rewriting.replace import forward_results, misleads, obstacle

_BRANCHES: Final = ("then_branch", "else_branch")
_NOTS: Final = 4  # chained Not operators looked through


@register
class KnownConditions(GraphPass):
    """If(c) A B = A where the readers of the If cannot accept B.

    Applies when: the branches' results have different ranks, and a Conv, LSTM, Transpose or pool in every run of the If
    fails for one branch. PyTorch's exporter writes a `squeeze` of unknown rank like this. Further Ifs on the same
    condition, or its negation, are settled, too.
    Keeps: the If, for inline-branches. Where the original fails, the result may fail later, or not at all.
    Not done: an If with two failing branches; an If inside a branch of another If on the same condition, a case that
    verification could not follow.
    """

    info = PassInfo("known-conditions", opt_level=1, ops=("If",))

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        live = Running(graph)
        for node in list(graph.by_op.get("If", ())):
            condition = node.inputs[0]
            if condition is None or condition.constant or not _has_both(node):
                continue
            known = _left_by_readers(node, live)
            if known is None:
                continue
            for other, truth in _asking_the_same(node, known):
                if _misleads(other, truth):
                    ctx.decline("refused", REFUSED, repr(other))
                elif ctx.spend("refused", at=other):
                    _settle(other, truth)


def _has_both(node: Node) -> bool:
    return set(node.bodies) == set(_BRANCHES)


def _stripped(condition: Value) -> tuple[Value, bool]:
    """Return (condition without Not, whether its truth is unchanged)."""
    straight = True
    for _ in range(_NOTS):
        maker = condition.producer
        if maker is None or maker.op != "Not" or maker.inputs[0] is None:
            break
        condition, straight = maker.inputs[0], not straight
    return condition, straight


def _left_by_readers(node: Node, live: Running) -> bool | None:
    """Return the condition's value if readers accept the result of a single branch only; else None."""
    for value, *results in zip(node.outputs, *(node.bodies[name].outputs for name in _BRANCHES)):
        # most readers require no rank, and need no inference
        asked = demanded_rank(value, live) if value is not None else None
        if asked is None:
            continue
        fail = [rank is not None and rank != asked for rank in map(types.rank, results)]
        if fail[0] != fail[1]:
            return fail[1]
    return None


def _misleads(node: Node, known: bool) -> bool:
    """Whether the branch that never runs might be rejected after the replacement."""
    return misleads(zip(node.outputs, node.bodies[_BRANCHES[not known]].outputs))


def _settle(node: Node, known: bool) -> None:
    assert node.graph is not None
    node.set_input(0, node.graph.constant(np.array(known), "condition", node))


def _asking_the_same(node: Node, known: bool) -> list[tuple[Node, bool]]:
    """Return (If, truth) for all Ifs on the same condition or its negation, in the scope and nested."""
    assert node.inputs[0] is not None
    asked, straight = _stripped(node.inputs[0])
    if asked.graph is not node.graph:
        return [(node, known)]
    found = []
    stack = [(asked, known == straight)]
    for _ in range(_NOTS + 1):
        behind = []
        for value, is_so in stack:
            readers = _changeable_readers(value)
            found += [(n, is_so) for n in readers if n.op == "If" and _has_both(n)]
            behind += [(n.output, not is_so) for n in readers if n.op == "Not" and n.outputs[0] is not None]
        stack = behind
    return found


def _changeable_readers(value: Value) -> list[Node]:
    """Return the readers in scopes that passes may change."""
    return [n for n in value.users if n.graph is not None and not n.graph.skipped]


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
            reason = obstacle(graph, body) or (REFUSED if misleads(zip(node.outputs, body.outputs)) else "")
            if reason:
                ctx.decline("inlined", reason, repr(node))
            elif ctx.spend("inlined", at=node):
                forward_results(graph, node, graph.inline(body))
                inlined = True
        if inlined:
            types.update(graph.model)  # downstream shapes were the union of both branches
