"""Conditions of patterns, for each rule: single-use inner results, constants, operands that do not raise the rank.

The matcher declines these; a rule has no line for them. Bindings of matched cases are changed one at a time, and the
matcher has to decline for the matching reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper

from onnxopt.graph import read_model, write_model
from onnxopt.graph.node import Node
from onnxopt.pipeline import Fixpoint, Instrument, PassContext, RewritePass, all_passes, execute
from onnxopt.rewriting import Match, Rule, matcher
from onnxopt.rewriting.pattern import Call, Const, Either, Pattern
from tests.cases.guards import PASSES, cases_of
from tests.cases.mutations import value_types

Change = Callable[[GraphProto], None]


@dataclass
class Bound:
    """A match before its rewrite: changes of the model, and the matcher's answers."""

    rule: Rule
    model: ModelProto
    anchor: str
    changes: dict[str, Change]


@dataclass
class Matches(Instrument):
    """Of each rule the first match that binds something, in the main graph."""

    found: list[Bound] = field(default_factory=list)
    seen: set[tuple[str, str]] = field(default_factory=set)

    def rewriting(self, rule: Rule, m: Match, done: bool) -> None:
        if done or m.graph.owner is not None or m.graph.is_function:
            return
        model = ModelProto()
        model.CopyFrom(write_model(m.graph.model))
        changes = {r: c for r, c in ways(m, model) if (rule.name, r) not in self.seen}
        self.seen |= {(rule.name, reason) for reason in changes}
        if changes:
            self.found.append(Bound(rule, model, name_of(m.anchor), changes))


def name_of(node: Node) -> str:
    return next(v.name for v in node.outputs if v is not None)


def ways(m: Match, model: ModelProto) -> Iterator[tuple[str, Change]]:
    types = value_types(model)
    initializers = {t.name for t in model.graph.initializer}
    names = {v.name: k for k, v in reversed(m.bindings.values.items()) if v is not None and k in m.bindings.constants}
    for node, call in m.bindings.covered[1:]:
        if not call.shared and node is not m.anchor:
            value = ValueInfoProto(name=name_of(node), type=types.get(name_of(node)))
            if not node.output.is_output:
                yield f"{node.op} output is a graph output", lambda g, v=value: g.output.append(v)
            yield f"{node.op} output used elsewhere", lambda g, v=value: read(g, v)
    for constant, name in names.items():
        if constant in initializers:
            yield f"{name} is not constant", lambda g, n=constant: unfreeze(g, n)
    for _, literal in m.bindings.literals:
        if literal.name in initializers:
            yield "the constant may raise the rank of the result", lambda g, n=literal.name: deepen(g, n)


def asked(pattern: Pattern, inner: bool = False) -> Iterator[str]:
    """Returns the endings of the matcher's reasons for this pattern."""
    if isinstance(pattern, Either):
        for p in pattern.choices:
            yield from asked(p, inner)
    elif isinstance(pattern, Call):
        if inner and not pattern.shared:
            yield from (f"{'|'.join(pattern.ops)} output {where}" for where in ("is a graph output", "used elsewhere"))
        for p in pattern.inputs:
            yield from asked(p, True)
    elif isinstance(pattern, Const):
        yield f"{pattern.name} is not constant"
    elif isinstance(pattern, (int, float)):
        yield "the constant may raise the rank of the result"


def says(reasons: set[str], wanted: str) -> bool:
    ops, space, rest = wanted.partition(" output ")
    return any(f"{op}{space}{rest}" in reasons for op in ops.split("|"))


def read(graph: GraphProto, value: ValueInfoProto) -> None:
    graph.node.append(helper.make_node("Identity", [value.name], ["read"]))
    graph.output.append(ValueInfoProto(name="read", type=value.type))


def unfreeze(graph: GraphProto, name: str) -> None:
    t = tensor(graph, name)
    graph.input.append(helper.make_tensor_value_info(name, t.data_type, t.dims))
    graph.initializer.remove(t)


def deepen(graph: GraphProto, name: str) -> None:
    t = tensor(graph, name)
    t.dims[:] = [*([1] * 8), *t.dims]


def tensor(graph: GraphProto, name: str) -> TensorProto:
    return next(t for t in graph.initializer if t.name == name)


@pytest.mark.parametrize("file", [f for f in PASSES if cases_of(f)], ids=lambda f: f.stem)
def test_what_a_pattern_asks_for(file: Path) -> None:
    matches = Matches()
    for case in (c for c in cases_of(file) if c.hits):
        ctx = PassContext(opt_level=3, instruments=[matches])
        execute(Fixpoint(tuple(case.pipeline())), read_model(case.build()), ctx)
    for b in matches.found:
        for reason, change in b.changes.items():
            model = ModelProto()
            model.CopyFrom(b.model)
            change(model.graph)
            anchor = next(n for n in read_model(model).graph if name_of(n) == b.anchor)
            said = [found for p in b.rule.roots for found in matcher.matches([p], anchor)]  # in each order of operands
            assert reason in said, b.rule.name
    for cls in all_passes().values():
        if issubclass(cls, RewritePass) and cls.__module__.endswith(f".{file.stem}"):
            tried = {r: {reason for rule, reason in matches.seen if rule == r.name} for r in cls.rules}
            assert not [(r.name, a) for r in cls.rules for a in asked(r.source) if not says(tried[r], a)]
