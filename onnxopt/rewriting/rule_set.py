"""Rules by what a match begins with: the operator of its last node, and what that reads."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Final

from onnxopt.graph.node import Node
from onnxopt.rewriting.matcher import has_form
from onnxopt.rewriting.pattern import Call
from onnxopt.rewriting.rule import Rule

Candidates = Sequence[tuple[Rule, Sequence[Call]]]

_KEPT: Final = 256  # a few for each pass: who searches for a wrong rule leaves out one after the other


class _Anchor:
    """The rules of one operator. Most patterns fail at what the anchor reads, and most anchors read what others do:
    which patterns are left is found once for all of these."""

    __slots__ = ("found", "read", "rules")

    def __init__(self, op: str, rules: Sequence[Rule]) -> None:
        self.rules = [(rule, rule.by_anchor[op]) for rule in rules]
        self.found: dict[tuple[Hashable, ...], Candidates] = {}  # by the kinds of the inputs that are `read`
        read: dict[int, set[str]] = {}
        for _, patterns in self.rules:
            for pattern in patterns:
                for i, ops in pattern.form:
                    read.setdefault(i, set()).update(ops)
        self.read = sorted(read.items())  # with the operators that patterns name there


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
        self._anchors: dict[str, _Anchor] = {}

    def candidates(self, node: Node) -> Candidates:
        """The rules, in order, of which a pattern has the form of what ends in `node`, with these patterns."""
        op, inputs = node._op, node.inputs
        anchor = self._anchors.get(op)
        if anchor is None:
            anchor = self._anchors[op] = _Anchor(op, self.by_anchor[op])
        count = len(inputs)
        kinds: list[Hashable] = []
        for i, ops in anchor.read:
            if i < count:
                v = inputs[i]
                if v is None:
                    kinds.append(None)
                elif v.producer is not None and v.producer._op in ops:
                    kinds.append((v.producer._op,) if v.constant else v.producer._op)
                else:
                    kinds.append(v.constant)
        key = tuple(kinds)
        found = anchor.found.get(key)
        if found is None:
            fitting = ((rule, [p for p in patterns if has_form(p, node)]) for rule, patterns in anchor.rules)
            found = anchor.found[key] = [(rule, patterns) for rule, patterns in fitting if patterns]
        return found


@lru_cache(_KEPT)
def rule_set(rules: tuple[Rule, ...]) -> RuleSet:
    """Made once: a pass comes round after round, and one process optimizes many models."""
    return RuleSet(rules)
