"""Meaning of patterns: operand order, alternatives, names, readers, constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxopt.graph import Value
from onnxopt.rewriting import Match, const, either, one_of, op, rewrite, text, var
from onnxopt.rewriting.diagnose import diagnose, warn_of_unknown
from onnxopt.rewriting.pattern import Call, variants
from tests.rewriting.engine import model, neg_of_relu, operators_after, run
from tests.samples import operators


def as_call(pattern: Any) -> Call:
    assert isinstance(pattern, Call)
    return pattern


def test_commutative_operands_match_in_both_orders() -> None:
    both = variants(as_call(op.Add(op.Relu(var("x")), var("y"))))
    assert [text(p) for p in both] == ["Add(Relu(x), y)", "Add(y, Relu(x))"]
    assert len(variants(as_call(op.Sub(op.Relu(var("x")), var("y"))))) == 1
    assert len(variants(as_call(op.Add(op.Mul(var("x"), const("a")), const("b"))))) == 4


def test_alternatives_expand() -> None:
    p = as_call(op.Neg(either(op.Relu(var("x")), op.Abs(var("x")))))
    assert [text(v) for v in variants(p)] == ["Neg(Relu(x))", "Neg(Abs(x))"]
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
