"""Meaning of patterns: operand order, alternatives, names, readers, constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxopt.graph import Value
from onnxopt.rewriting import Match, const, either, one_of, op, rewrite, text, var
from onnxopt.rewriting.diagnose import diagnose, warn_of_unknown
from onnxopt.rewriting.matcher import Bindings, matches
from onnxopt.rewriting.pattern import Call
from tests.rewriting.engine import model, neg_of_relu, operators_after, run
from tests.samples import operators


def as_call(pattern: Any) -> Call:
    assert isinstance(pattern, Call)
    return pattern


def bound(pattern: Any, body: str, weights: str = "") -> list[dict[str, str]]:
    """Names of the values bound by each match at the last node."""
    anchor = model(body, weights=weights).graph.last
    assert anchor is not None
    found = [b for b in matches([as_call(pattern)], anchor) if isinstance(b, Bindings)]
    return [{name: v.name for name, v in b.values.items() if v is not None} for b in found]


def test_commutative_operands_match_in_both_orders() -> None:
    for body in ("a = Relu (x) b = Abs (x) y = Add (a, b)", "a = Relu (x) b = Abs (x) y = Add (b, a)"):
        assert bound(op.Add(op.Relu(var("v")), var("w")), body) == [{"v": "x", "w": "b"}]
        assert len(bound(op.Add(var("v"), var("w")), body)) == 2
    assert not bound(op.Sub(op.Relu(var("v")), var("w")), "a = Relu (x) y = Sub (x, a)")
    nested = op.Add(op.Mul(var("v"), const("a")), const("b"))
    for body in ("m = Mul (x, k) y = Add (m, l)", "m = Mul (k, x) y = Add (l, m)"):
        assert bound(nested, body, "<float[4] k = {1, 2, 3, 4}, float l = {1}>") == [{"v": "x", "a": "k", "b": "l"}]


def test_alternatives_are_tried_in_order() -> None:
    p = op.Neg(either(op.Relu(var("v")), op.Abs(var("v")), var("w")))
    assert bound(p, "a = Relu (x) y = Neg (a)") == [{"v": "x"}, {"w": "a"}]
    assert bound(p, "a = Abs (x) y = Neg (a)") == [{"v": "x"}, {"w": "a"}]
    assert bound(p, "a = Exp (x) y = Neg (a)") == [{"w": "a"}]
    assert text(one_of("Add", "Sub")(var("x"), const("k").opt(), ...)) == "Add|Sub(x, const k?, ...)"


def test_the_same_name_is_the_same_value() -> None:
    @rewrite(op.Mul(var("x"), var("x")))
    def square(m: Match, x: Value) -> Value:
        """x * x = |x| * |x|."""
        return m.op.Pow(x, m.const(np.float32(2)))  # type: ignore[no-any-return]

    assert operators_after(square, "y = Mul (x, x)") == ["Pow"]
    assert operators_after(square, "a = Neg (x) y = Mul (x, a)") == ["Neg", "Mul"]


def test_inner_nodes_have_one_reader_unless_shared() -> None:
    body = "a = Relu (x) b = Neg (a) y = Add (a, b)"
    m = model(body)
    driver = run(m, neg_of_relu)
    assert operators(m) == ["Relu", "Neg", "Add"]
    assert driver.records["neg_of_relu"].declined["Relu output used elsewhere"].count == 1
    assert driver.records["neg_of_relu"].declined["Relu output used elsewhere"].example == "Neg -> b"


def test_a_match_may_read_an_inner_value_twice() -> None:
    @rewrite(op.Mul(var("x"), op.Sigmoid(var("x"))))
    def swish(m: Match, x: Value) -> Value:
        """x * sigmoid(x), both of one x."""
        return m.op.HardSwish(x)  # type: ignore[no-any-return]

    assert operators_after(swish, "a = Relu (x) s = Sigmoid (a) y = Mul (s, a)") == ["Relu", "HardSwish"]


def test_a_call_may_have_to_read_a_result_of_an_operator_whichever_input_that_is() -> None:
    @rewrite(op.Max(var("x"), ..., name="most", reads={"Abs", "Relu"}))
    def of_positive(m: Match, x: Value) -> Value:
        """Max(…, |a|, …) is at least 0."""
        return m.op.Sum(*m.most.inputs)  # type: ignore[no-any-return]

    assert operators_after(of_positive, "a = Abs (x) y = Max (x, x, a)") == ["Abs", "Sum"]
    assert operators_after(of_positive, "a = Relu (x) y = Max (a, x)") == ["Relu", "Sum"]
    assert operators_after(of_positive, "a = Neg (x) b = Abs (a) c = Neg (b) y = Max (c, x)") == [
        "Neg",
        "Abs",
        "Neg",
        "Max",
    ]
    assert of_positive.depth == 2, "who makes an input is part of the match"
    assert text(of_positive.source) == "Max(x, ..., reads=Abs|Relu)"
    anchor = model("a = Neg (x) y = Max (a, x)").graph.by_op["Max"]
    assert diagnose(of_positive, next(iter(anchor))).reason == "Max: reads no result of Abs or Relu"
    with pytest.warns(UserWarning, match="an operator 'Abz'; did you mean Abs"):
        warn_of_unknown(rewrite(op.Max(var("x"), ..., reads={"Abz"}))(of_positive.apply))


def test_a_variable_may_have_to_be_constant_or_computed() -> None:
    @rewrite(op.Sub(var("c", constant=True), var("x", constant=False)))
    def turned(m: Match, c: Value, x: Value) -> Value:
        """c - x = -(x - c)."""
        return m.op.Neg(m.op.Sub(x, c))  # type: ignore[no-any-return]

    weights = "<float[4] k = {1, 2, 3, 4}>"
    assert operators_after(turned, "y = Sub (k, x)", weights=weights) == ["Sub", "Neg"]
    assert operators_after(turned, "y = Sub (x, k)", weights=weights) == ["Sub"]
    assert operators_after(turned, "y = Sub (x, x)") == ["Sub"]
