"""Rules indexed by the anchor's operator and the producers of its inputs (a decision tree)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Final

from onnxopt.graph.node import Node
from onnxopt.rewriting.pattern import Call, Form
from onnxopt.rewriting.rule import Rule

Candidates = Sequence[tuple[Rule, Sequence[Call]]]

_KEPT: Final = 256  # a few for each pass: bisection runs a pass with many subsets of rules


class _Question:
    """A decision on input `index` of the anchor: a result of one of `ops`, or a constant?

    Most patterns fail here, and most anchors give equal answers, so the remaining rules are cached by answer. Until
    then forms suffice, and patterns need not be expanded.
    """

    __slots__ = ("answers", "index", "left", "ops")

    def __init__(self, index: int, left: Sequence[tuple[Rule, Sequence[Form]]]) -> None:
        self.index, self.left = index, left
        asked = (ops for _, forms in left for form in forms for i, ops in form if i == index)
        self.ops = frozenset(op for ops in asked for op in ops)
        self.answers: dict[Hashable, _Question | Candidates] = {}

    def answer(self, kind: Hashable, node: Node) -> _Question | Candidates:
        """Return the remaining rules for this kind of input, the kind found at `node`."""
        index = self.index
        fitting = [
            (rule, [form for form in forms if all(i != index or _reads(node, i, ops) for i, ops in form)])
            for rule, forms in self.left
        ]
        self.answers[kind] = found = _ask([(rule, forms) for rule, forms in fitting if forms], index + 1, node)
        return found


def _ask(left: Sequence[tuple[Rule, Sequence[Form]]], first: int, node: Node) -> _Question | Candidates:
    """Return the next question that separates these rules, on input `first` or later; if none, the rules with the
    patterns whose form matches at `node`."""
    asked = [i for _, forms in left for form in forms for i, _ in form if i >= first]
    if asked:
        return _Question(min(asked), left)
    return [(rule, [p for p in rule.at(node._op) if _has_form(node, p.form)]) for rule, _ in left]


def _has_form(node: Node, form: Form) -> bool:
    return all(_reads(node, index, ops) for index, ops in form)


def _reads(node: Node, index: int, ops: tuple[str, ...]) -> bool:
    """Whether input `index` is a result of one of `ops`, or a constant if `ops` is empty."""
    if index >= len(node.inputs):  # may be an attribute in this opset
        return True
    v = node.inputs[index]
    return v is not None and (v.producer is not None and v.producer._op in ops if ops else v.constant)


class RuleSet:
    """Rules in order, by anchor operator. `depth`: number of levels of the deepest pattern."""

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
        """Return the rules, in order, with the patterns whose form matches at `node`."""
        op, inputs = node._op, node.inputs
        left = self._left.get(op)
        if left is None:
            # The operator may be missing if a rule changed it, against the contract.
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
    """Return the cached rule set, shared between rounds and models."""
    return RuleSet(rules)
