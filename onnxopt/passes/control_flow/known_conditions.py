"""What a condition is wherever the model runs is what it is."""

from __future__ import annotations

from typing import Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.refusal import REFUSED
from onnxopt.analysis.shapes.demands import Running, demanded_rank
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.rewriting.inline import misleads

_BRANCHES: Final = ("then_branch", "else_branch")
_NOTS: Final = 4  # one of another, that are looked through


@register
class KnownConditions(GraphPass):
    """If(c) A B = A where what reads it cannot take B.

    Applies when: the results of the branches have different numbers of axes, and a Conv, an LSTM, a Transpose or a pool
    that runs whenever the If does fails for one of them. PyTorch's exporter writes a `squeeze` like this, of which it
    does not know what it does. So is what else asks the same condition, or the opposite.
    Keeps: the If, for inline-branches. Where the original fails, the result may fail later, or not.
    Not done: an If of which both branches would fail; one in a branch of another on the same condition, which the judge
    could not follow.
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
    """What the condition says, and whether it says so, or the opposite."""
    straight = True
    for _ in range(_NOTS):
        maker = condition.producer
        if maker is None or maker.op != "Not" or maker.inputs[0] is None:
            break
        condition, straight = maker.inputs[0], not straight
    return condition, straight


def _left_by_readers(node: Node, live: Running) -> bool | None:
    """What the condition has to be, where what reads the result takes what one branch gives, and not the other's."""
    for value, *results in zip(node.outputs, *(node.bodies[name].outputs for name in _BRANCHES)):
        asked = demanded_rank(value, live) if value is not None else None  # most ask nothing: no inference then
        if asked is None:
            continue
        fail = [rank is not None and rank != asked for rank in map(types.rank, results)]
        if fail[0] != fail[1]:
            return fail[1]
    return None


def _misleads(node: Node, known: bool) -> bool:
    """Would a branch that never runs be refused for what it learns of a result?"""
    return misleads(zip(node.outputs, node.bodies[_BRANCHES[not known]].outputs))


def _settle(node: Node, known: bool) -> None:
    assert node.graph is not None
    node.set_input(0, node.graph.constant(np.array(known), "condition", node))


def _asking_the_same(node: Node, known: bool) -> list[tuple[Node, bool]]:
    """The If, and what else asks its condition, or the opposite, where that is known: in its scope, and inside. With
    the answers."""
    assert node.inputs[0] is not None
    asked, straight = _stripped(node.inputs[0])
    if asked.graph is not node.graph:
        return [(node, known)]
    found = []
    stack = [(asked, known == straight)]
    for _ in range(_NOTS + 1):
        behind = []
        for value, is_so in stack:
            readers = [n for n in value.users if n.graph is not None and not n.graph.skipped]
            found += [(n, is_so) for n in readers if n.op == "If" and _has_both(n)]
            behind += [(n.output, not is_so) for n in readers if n.op == "Not" and n.outputs[0] is not None]
        stack = behind
    return found
