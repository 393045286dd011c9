"""Rules by what a match begins with: the operator of its last node, and what that reads."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Final

from onnxopt.graph.node import Node
from onnxopt.rewriting.pattern import Call, Form
from onnxopt.rewriting.rule import Rule

Candidates = Sequence[tuple[Rule, Sequence[Call]]]

_KEPT: Final = 256  # a few for each pass: who searches for a wrong rule leaves out one after the other


class _Question:
    """What does an anchor read at `index`: a result of one of `ops`, a constant? Most patterns fail at that, and most
    anchors read what others do: who is left is found once for each answer. Until then their forms are enough."""

    __slots__ = ("answers", "index", "left", "ops")

    def __init__(self, index: int, left: Sequence[tuple[Rule, Sequence[Form]]]) -> None:
        self.index, self.left = index, left
        asked = (ops for _, forms in left for form in forms for i, ops in form if i == index)
        self.ops = frozenset(op for ops in asked for op in ops)
        self.answers: dict[Hashable, _Question | Candidates] = {}

    def answer(self, kind: Hashable, node: Node) -> _Question | Candidates:
        """Who is left where the answer is of this kind, as that of `node` is."""
        index = self.index
        fitting = [
            (rule, [form for form in forms if all(i != index or _reads(node, i, ops) for i, ops in form)])
            for rule, forms in self.left
        ]
        self.answers[kind] = found = _ask([(rule, forms) for rule, forms in fitting if forms], index + 1, node)
        return found


def _ask(left: Sequence[tuple[Rule, Sequence[Form]]], first: int, node: Node) -> _Question | Candidates:
    """The next question that tells these apart, about input `first` or a later one. If there is none, they have the
    form of what ends in `node`: they, and which of their patterns."""
    asked = [i for _, forms in left for form in forms for i, _ in form if i >= first]
    if asked:
        return _Question(min(asked), left)
    return [(rule, [p for p in rule.at(node._op) if _has_form(node, p.form)]) for rule, _ in left]


def _has_form(node: Node, form: Form) -> bool:
    return all(_reads(node, index, ops) for index, ops in form)


def _reads(node: Node, index: int, ops: tuple[str, ...]) -> bool:
    """Does the node read there a result of such an operator, or a constant if there are none?"""
    if index >= len(node.inputs):  # what is behind may be an attribute
        return True
    v = node.inputs[index]
    return v is not None and (v.producer is not None and v.producer._op in ops if ops else v.constant)


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
            left = self._left[op] = _ask([(rule, rule.forms(op)) for rule in self.by_anchor.get(op, ())], 0, node)
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
