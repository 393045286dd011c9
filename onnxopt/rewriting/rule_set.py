"""Rules by what a match begins with: the operator of its last node, and what that reads."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Final

from onnxopt.graph.node import Node
from onnxopt.rewriting.pattern import Call
from onnxopt.rewriting.rule import Rule

Candidates = Sequence[tuple[Rule, Sequence[Call]]]

_KEPT: Final = 256  # a few for each pass: who searches for a wrong rule leaves out one after the other


class _Question:
    """What does an anchor read at `index`: a result of one of `ops`, a constant? Most patterns fail at that, and most
    anchors read what others do: who is left is found once for each answer."""

    __slots__ = ("answers", "index", "left", "ops")

    def __init__(self, index: int, left: Candidates) -> None:
        self.index, self.left = index, left
        asked = (ops for _, patterns in left for p in patterns for i, ops in p.form if i == index)
        self.ops = frozenset(op for ops in asked for op in ops)
        self.answers: dict[Hashable, _Question | Candidates] = {}

    def answer(self, kind: Hashable, node: Node) -> _Question | Candidates:
        """Who is left where the answer is of this kind, as that of `node` is."""
        fitting = ((rule, [p for p in patterns if _fits(p, self.index, node)]) for rule, patterns in self.left)
        self.answers[kind] = found = _ask([(rule, patterns) for rule, patterns in fitting if patterns], self.index + 1)
        return found


def _ask(left: Candidates, first: int) -> _Question | Candidates:
    """The next question that tells these apart, about input `first` or a later one; themselves if there is none."""
    asked = [i for _, patterns in left for p in patterns for i, _ in p.form if i >= first]
    return _Question(min(asked), left) if asked else left


def _fits(pattern: Call, index: int, node: Node) -> bool:
    """Does the node read there a result of such an operator, or a constant, where the pattern has that?"""
    for i, ops in pattern.form:
        if i == index < len(node.inputs):  # what is behind may be an attribute
            v = node.inputs[i]
            return v is not None and (v.producer is not None and v.producer._op in ops if ops else v.constant)
    return True


class RuleSet:
    """Rules in their order, by anchor operator. `depth`: nodes in a row that the deepest pattern covers."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.all = rules
        self.by_anchor: dict[str, list[Rule]] = {}
        self.depth = 1
        for rule in rules:
            self.depth = max(self.depth, rule.depth)
            for anchor in sorted(rule.anchors):
                self.by_anchor.setdefault(anchor, []).append(rule)
        self._left: dict[str, _Question | Candidates] = {}  # by operator

    def candidates(self, node: Node) -> Candidates:
        """The rules, in order, of which a pattern has the form of what ends in `node`, with these patterns."""
        op, inputs = node._op, node.inputs
        left = self._left.get(op)
        if left is None:
            # None where a rule changes what nodes are called, which it may not.
            left = self._left[op] = _ask([(rule, rule.at(op)) for rule in self.by_anchor.get(op, ())], 0)
        while isinstance(left, _Question):
            kind: Hashable = ""  # absent
            if left.index < len(inputs):
                v = inputs[left.index]
                if v is None:
                    kind = None
                elif (maker := v.producer) is not None and maker._op in left.ops:
                    kind = (maker._op,) if v.constant else maker._op
                else:
                    kind = v.constant
            following = left.answers.get(kind)
            left = left.answer(kind, node) if following is None else following
        return left


@lru_cache(_KEPT)
def rule_set(rules: tuple[Rule, ...]) -> RuleSet:
    """Made once: a pass comes round after round, and one process optimizes many models."""
    return RuleSet(rules)
