"""Partitions by patterns: they do not overlap, close no cycle, and follow the graph."""

from __future__ import annotations

import pytest

from onnxopt.errors import UsageError
from onnxopt.graph import Value
from onnxopt.pipeline.partition import (
    CapabilityPartitioner,
    OperatorSupport,
    any_chain,
    create_pattern_support,
    generate_pattern_op_partitions,
    pattern_partitions,
)
from onnxopt.rewriting import Match, op, rewrite, var
from tests.pipeline.partitioning import X, assert_both_compute_the_same, model, operators


@rewrite(op.Relu(op.Neg(var("x"))))
def relu_of_neg(m: Match, x: Value) -> Value:
    """Relu(Neg(x)), for a backend that has it as one kernel."""
    return m.op.Relu(x)


def test_patterns_make_partitions_that_do_not_overlap() -> None:
    m = model("a = Neg(x) b = Relu(a) c = Neg(b) d = Relu(c) e = Exp(d) f = Add(d, e) y = Relu(f)")
    both = pattern_partitions(m.graph, [op.Neg(op.Relu(var("x"))), relu_of_neg])
    assert operators(both) == [["Relu", "Neg"]], "the earlier pattern wins, and leaves no Neg with its Relu"
    partitions = pattern_partitions(m.graph, [relu_of_neg, op.Add(var("x"), op.Exp(var("z")))])
    assert operators(partitions) == [["Neg", "Relu"], ["Neg", "Relu"], ["Exp", "Add"]]
    assert_both_compute_the_same(m, partitions, {"x": X})
    with pytest.raises(UsageError, match="results in operators"):
        pattern_partitions(m.graph, [var("x")])


def test_text_matches_as_find_does() -> None:
    """What it does not write of attributes may be anything; of other examples that is the default."""
    m = model("a = Relu(x) y = Softmax <axis: int = 0> (a)")
    text, example = "Softmax(Relu(x))", lambda x: op.Softmax(op.Relu(x))
    found = [pattern_partitions(m.graph, [source]) for source in (text, "(x) => (y) { a = Relu (x) y = Softmax (a) }")]
    assert [operators(p) for p in found] == [[["Relu", "Softmax"]]] * 2
    assert [pattern_partitions(m.graph, [example]), pattern_partitions(m.graph, [text], exact=True)] == [[], []]


def test_an_unknown_operator_is_named() -> None:
    m = model("a = Neg(x) y = Relu(a)")
    for pattern in ("Rellu(Neg(x))", "(x) => (y) { n = Neg (x) y = Rellu (n) }", op.Rellu(var("x"))):
        with pytest.raises(UsageError, match="neither the standard nor the model has an operator 'Rellu'") as e:
            generate_pattern_op_partitions(m.graph, ["Relu(x)", pattern])
        assert e.value.hint == "did you mean Relu, PRelu or Selu?"
    for known in ("acme.Unseen(x)", "Upsample(x, s)", "com.microsoft.QuickGelu(x)"):
        assert pattern_partitions(m.graph, [known]) == [], "of another domain, of an older opset"


def test_a_match_that_would_close_a_cycle_is_left_out() -> None:
    pattern = op.Add(op.Relu(var("x"), shared=True), var("z"))
    m = model("a = Relu(x) b = Sigmoid(a) y = Add(a, b)")
    assert pattern_partitions(m.graph, [pattern]) == []
    m = model("a = Relu(x) b = Sigmoid(x) c = Add(a, b) y = Mul(a, c)")
    partitions = pattern_partitions(m.graph, [pattern])
    assert operators(partitions) == [["Relu", "Add"]]
    assert_both_compute_the_same(m, partitions, {"x": X})
    # Alone each would do; fused both, each would wait for the other.
    m = model("a = Relu(x) b = Exp(x) c = Add(a, x) d = Sub(b, x) e = Add(c, b) f = Sub(d, a) y = Mul(e, f)")
    crossed = [op.Add(op.Add(op.Relu(var("x"), shared=True), var("y")), var("z"))]
    crossed += [op.Sub(op.Sub(op.Exp(var("x"), shared=True), var("y")), var("z"))]
    partitions = pattern_partitions(m.graph, crossed)
    assert operators(partitions) == [["Relu", "Add", "Add"]]
    assert_both_compute_the_same(m, partitions, {"x": X})


def test_patterns_are_a_support() -> None:
    graph = model("a = Neg (x) b = Relu (a) c = Mul (b, b) d = Relu (c) y = Mul (d, d)").graph
    pattern, mul = "Relu(Neg(x))", OperatorSupport(["Mul"])
    assert operators(CapabilityPartitioner(graph, create_pattern_support([pattern])).propose()) == [["Neg", "Relu"]]
    both = generate_pattern_op_partitions(graph, [pattern], mul)
    assert operators(both) == [["Neg", "Relu", "Mul"], ["Mul"]]
    assert CapabilityPartitioner(graph, any_chain(create_pattern_support([pattern]), mul)).propose() == both
    assert generate_pattern_op_partitions(graph, [pattern], mul, allow_single_node=False) == both[:1]


def test_a_pattern_s_support_follows_the_graph() -> None:
    neg, relu, _ = model("a = Neg (x) b = Relu (a) y = Abs (b)").graph
    support = create_pattern_support(["Relu(Neg(x))"])
    assert support.is_node_supported(relu)
    neg.op = "Exp"
    assert not support.is_node_supported(relu)
