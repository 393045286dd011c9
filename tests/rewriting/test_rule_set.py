"""Patterns tried at a node: those that fit the form of its operands, found once per form."""

from __future__ import annotations

from pathlib import Path

import pytest

import onnxopt.passes  # noqa: F401 - registers them
from onnxopt.graph import Value, read_model
from onnxopt.pipeline import RewritePass, all_passes
from onnxopt.rewriting import Match, const, one_of, op, rewrite, var
from onnxopt.rewriting.matcher import matches, rule_set
from tests.rewriting.engine import model
from tests.samples import ROOT, build


@rewrite(op.Add(op.Relu(var("x")), 1.0))
def first(m: Match, x: Value) -> Value:
    """Relu(x) + 1 = x, for the sake of its form."""
    raise AssertionError


@rewrite(one_of("Add", "Mul")(var("x"), op.Neg(var("z"))))
def second(m: Match, x: Value, z: Value) -> Value:
    """x + -z = x, for the sake of its form."""
    raise AssertionError


@rewrite(op.Add(var("x"), const("c")))
def third(m: Match, x: Value, c: Value) -> Value:
    """x + c = x: that c is none is said as a reason, so the form is any."""
    raise AssertionError


def test_patterns_are_chosen_by_what_is_read() -> None:
    m = model(
        "one = Constant <value_float = 1.0> () r = Relu (x) n = Neg (x) s = Sqrt (x)"
        " a = Add (r, one) b = Add (one, r) c = Add (r, n) d = Add (s, n) e = Add (s, s) f = Mul (n, n)"
        " y = Sum (a, b, c)"
    )
    rules = rule_set((first, second, third))
    found = {n.output.name: [r.name for r, _ in rules.candidates(n)] for n in m.graph if n.op in ("Add", "Mul")}
    assert found == {
        "a": ["first", "third"],
        "b": ["first", "third"],
        "c": ["second", "third"],
        "d": ["second", "third"],
        "e": ["third"],
        "f": ["second"],
    }


def test_what_no_pattern_names_is_all_the_same() -> None:
    """Operators are a stranger's words: no memory fills with them that outlives the model."""
    others = ("Sin", "Cos", "Tan", "Exp", "Sqrt")
    m = model(" ".join(f"{o}_x = {o} (x) {o}_a = Add ({o}_x, {o}_x)" for o in others) + " y = Sum (x)")
    rules = rule_set((first, second, third))
    assert len({id(rules.candidates(n)) for n in m.graph if n.op == "Add"}) == 1


def test_a_node_of_which_no_rule_is_asked_has_no_candidates() -> None:
    """As one that a rule called otherwise by hand, which it may not, while it was waiting."""
    (node,) = model("y = Neg (x)").graph
    assert not rule_set((first, second, third)).candidates(node)


def test_rules_are_indexed_once() -> None:
    assert rule_set((first, second)) is rule_set((first, second))
    assert rule_set((second, first)) is not rule_set((first, second))


@pytest.mark.parametrize("path", sorted((ROOT / "models").glob("*.onnxtxt")), ids=lambda path: path.stem)
def test_no_pattern_that_matches_is_left_out(path: Path) -> None:
    m = read_model(build.build(path))
    rules = tuple(r for p in all_passes().values() if issubclass(p, RewritePass) for r in p.rules)
    asked = matched = 0
    for node in m.nodes():
        every = [(r, p) for r in rules for p in r.roots if node.op in p.ops]
        fitting = {(r.name, p) for r, p in every if any(True for _ in matches([p], node))}
        candidates = rule_set(rules).candidates(node) if every else ()
        chosen = {(r.name, p) for r, roots in candidates for (p,), _ in roots}
        assert fitting <= chosen
        asked, matched = asked + len(every) - len(chosen), matched + len(fitting)
    assert asked > matched > 0, "most are not asked"
