"""A later run of the driver visits changed nodes only, and repeats queries that may now differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from onnxopt.graph import Model, Value
from onnxopt.graph.model import Left
from onnxopt.graph.node import Node
from onnxopt.pipeline import Fixpoint, PassContext, PassInfo, RewritePass, execute, model_pass
from onnxopt.rewriting import Driver, Match, matcher, op, rewrite, var
from onnxopt.rewriting import driver as driver_module
from onnxopt.rewriting.matcher import Candidates, RuleSet
from onnxopt.rewriting.pattern import Call, Pattern
from tests.rewriting.engine import model, run
from tests.samples import operators


def left(m: Model, driver: Driver) -> Left:
    return Left(m.state, m.clock, driver.declined)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Node]:
    """The nodes at which a driver looks for rules."""
    found: list[Node] = []
    candidates = RuleSet.candidates

    def spy(rules: RuleSet, node: Node) -> Candidates:
        found.append(node)
        return candidates(rules, node)

    monkeypatch.setattr(RuleSet, "candidates", spy)
    return found


def test_a_later_run_looks_only_where_something_changed(asked: list[Node]) -> None:
    m = model(" ".join(f"v{i + 1} = Relu (v{i})" for i in range(20)).replace("v0", "x") + " y = Neg (x)")

    @rewrite(op.Relu(op.Neg(var("x"))))
    def relu_of_neg(m: Match, x: Value) -> Value:
        """max(-x, 0) = -min(x, 0)."""
        raise AssertionError

    first = run(m, relu_of_neg)
    assert len(asked) == 20
    asked.clear()
    known = left(m, first)
    assert Driver([relu_of_neg]).run(m, known) == 0
    assert not asked
    nodes = list(m.graph)
    nodes[5].graph.touch(nodes[5])
    Driver([relu_of_neg]).run(m, known)
    assert asked == nodes[5:7], "itself, and what the pattern reaches from there"


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_where_much_changed_the_same_is_asked_again(depth: int, asked: list[Node]) -> None:
    """Then it is looked from the anchors to what was marked, not from what was marked to its readers."""
    pattern: Pattern = var("x", constant=True)  # as none is
    for _ in range(depth - 1):
        pattern = op.Neg(pattern)

    @rewrite(op.Relu(pattern))
    def relu_of_negs(m: Match, x: Value) -> Value:
        """max(-(-x), 0), however often."""
        raise AssertionError

    lines = [f"b{i} = Sub (b{i - 1}, x) r{i} = Relu (b{i})" for i in range(1, 12)]
    m = model("b0 = Abs (x) " + " ".join(lines) + " y = Neg (r11)")
    known = left(m, run(m, relu_of_negs))
    changed = [n for n in m.graph if n.output.name in ("b0", "b4", "r7", "b9")]
    for often in (1, 100):  # seldom, and as often as there are anchors, or more
        asked.clear()
        for node in changed * often:
            m.graph.touch(node)
        assert (m.clock - known.clock > 11) == (often > 1)
        Driver([relu_of_negs]).run(m, known)
        reached = [i for i in range(1, 12) if any(0 <= i - b < depth - 1 for b in (0, 4, 9)) or i == 7]
        assert [n.output.name for n in asked] == [f"r{i}" for i in reached]


def test_what_was_declined_is_asked_again_by_the_rules_that_declined_it(monkeypatch: pytest.MonkeyPatch) -> None:
    @rewrite(op.Neg(var("x")))
    def when_allowed(m: Match, x: Value) -> Value:
        """-x = x, once the name of the graph's input is known: a guard may ask for anything."""
        m.require(allowed, "not yet")
        return x

    @rewrite(op.Neg(op.Relu(var("x"))))
    def never(m: Match, x: Value) -> Value:
        """Has not even its form here."""
        raise AssertionError

    allowed: list[int] = []
    m = model("a = Abs (x) b = Neg (a) y = Abs (b)")
    first = run(m, when_allowed, never)
    assert list(first.declined.values()) == [["when_allowed"]]
    allowed.append(1)
    again = Driver([when_allowed, never])
    tried: list[Call] = []
    match = matcher.match

    def spy(roots: Sequence[Call], *rest: Any) -> Any:
        tried.extend(roots)
        return match(roots, *rest)

    monkeypatch.setattr(driver_module, "match", spy)
    assert again.run(m, left(m, first)) == 1
    assert tried == [when_allowed.source]


def test_readers_of_what_becomes_constant_are_looked_at_again() -> None:
    @rewrite(op.Add(var("x"), 0))
    def plus_nothing(m: Match, x: Value) -> Value:
        """x + 0 = x."""
        return x

    m = model("z = Sub (x, x) a = Add (x, z) y = Neg (a)")
    first = run(m, plus_nothing)
    known = left(m, first)
    zero = next(iter(m.graph)).output
    zero.array = np.float32([[0]])
    m.graph.know(zero)
    assert Driver([plus_nothing]).run(m, known) == 1


def test_what_a_pass_changes_behind_its_rules_is_news_to_them() -> None:
    @rewrite(op.Relu(op.Neg(var("x"))))
    def relu_of_neg(m: Match, x: Value) -> Value:
        """max(-x, 0) = |x|, for the sake of its form."""
        result: Value = m.op.Abs(x)
        return result

    class Unfold(RewritePass):
        """Sigmoid(x) = Relu(Neg(x)), once the rules were asked."""

        info = PassInfo("unfold", opt_level=0)
        rules = (relu_of_neg,)

        def run(self, model: Model, ctx: PassContext) -> None:
            super().run(model, ctx)
            for node in list(model.graph.by_op["Sigmoid"]):
                x = model.graph.make("Neg", [node.inputs[0]], before=node)
                model.graph.take_over(node.output, model.graph.make("Relu", [x], before=node).producer or node)
                model.graph.remove(node)

    @model_pass(opt_level=0)
    def elsewhere(model: Model, ctx: PassContext) -> None:
        """Changes something, so that there is another round."""
        for node in list(model.graph.by_op["Tanh"]):
            node.op = "Exp"

    m = model("a = Sigmoid (x) y = Tanh (a)")
    execute(Fixpoint((Unfold(), elsewhere())), m)
    assert operators(m) == ["Abs", "Exp"]
