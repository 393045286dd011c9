"""Rules by what a match begins with: the operator of its last node, and what that reads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from onnxopt.graph.node import Node
from onnxopt.rewriting.matcher import has_form
from onnxopt.rewriting.pattern import Call
from onnxopt.rewriting.rule import Rule

Candidates = Sequence[tuple[Rule, Sequence[Call]]]


class _Anchor:
    """The rules of one operator. Most patterns fail at what the anchor reads, and most anchors read what others do:
    which patterns are left is found once for all of these."""

    __slots__ = ("found", "op", "read", "rules")

    def __init__(self, op: str, rules: Sequence[Rule]) -> None:
        self.op = op
        self.rules = rules
        self.found: dict[tuple[str | bool | None, ...], Candidates] = {}
        self.read: list[frozenset[str]] = []  # the operators that forms name, by input
        for rule in rules:
            for pattern in rule.by_anchor[op]:
                for i, ops in pattern.form:
                    self.read += [frozenset()] * (i + 1 - len(self.read))
                    self.read[i] |= frozenset(ops)

    def candidates(self, node: Node) -> Candidates:
        key: list[str | bool | None] = []
        for v, ops in zip(node.inputs, self.read):
            if v is None:
                key.append(None)
            else:
                producer = v.producer
                key.append(producer._op if producer is not None and producer._op in ops else "")
                key.append(v.constant)
        kinds = tuple(key)
        found = self.found.get(kinds)
        if found is None:
            fitting = ((r, [p for p in r.by_anchor[self.op] if has_form(p, node)]) for r in self.rules)
            found = self.found[kinds] = [(rule, patterns) for rule, patterns in fitting if patterns]
        return found


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
        anchor = self._anchors.get(node._op)
        if anchor is None:
            anchor = self._anchors[node._op] = _Anchor(node._op, self.by_anchor[node._op])
        return anchor.candidates(node)


@cache
def rule_set(rules: tuple[Rule, ...]) -> RuleSet:
    """Made once: a pass comes round after round, and one process optimizes many models."""
    return RuleSet(rules)
