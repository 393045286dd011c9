"""Rewriting by example: forms of patterns, matches, preserved properties of replacements."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import onnxruntime as rt
import pytest
from onnx import parser

from onnxopt.errors import UsageError
from onnxopt.graph import Model, check_model, read_model, write_model
from onnxopt.rewriting import SubgraphMatch, SubgraphMatcher, const, one_of, op, replace_pattern, var
from tests.samples import operators

WEIGHTS = "<float[4, 4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}, float[4] b = {1,2,3,4}, float k = {0.5}>"


def model(body: str, outputs: str = "float[N, 4] y", weights: str = WEIGHTS) -> Model:
    header = f'<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => ({outputs}) {weights}'
    return read_model(parser.parse_model(f"{header} {{ {body} }}"))


def replaced(m: Model, *args: Any, same: bool = True, **options: Any) -> list[Any]:
    """Replace, check the graph, and compare the results (they are `same`, or only valid)."""
    before = onnx.ModelProto()
    before.CopyFrom(m.proto)
    done = replace_pattern(m, *args, **options)
    check_model(m)
    after = write_model(m)
    onnx.checker.check_model(after, full_check=True)
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    a, b = (rt.InferenceSession(p.SerializeToString(), providers=["CPUExecutionProvider"]) for p in (before, after))
    for u, v in zip(a.run(None, {"x": x}), b.run(None, {"x": x}), strict=True):
        assert not same or np.allclose(u, v, atol=1e-6)
    return done


def results_in(m: Model, pattern: Any, **options: Any) -> list[str]:
    return [s.results[0].name for s in SubgraphMatcher(pattern, **options).match(m)]


BODY = "a = Neg (x) s = Sigmoid (a) y = Mul (s, x)"
FUNCTION = parser.parse_function(
    '<domain: "l", opset_import: ["" : 17]> f (x) => (y) { n = Neg (x) s = Sigmoid (n) y = Mul (s, x) }'
)


@pytest.mark.parametrize(
    "pattern",
    [
        "(x) => (y) { n = Neg (x) s = Sigmoid (n) y = Mul (x, s) }",
        "Mul(Sigmoid(Neg(x)), x)",
        "Mul(x, Sigmoid(Neg(x)))",
        FUNCTION,
        lambda x: op.Mul(op.Sigmoid(op.Neg(x)), x),
        op.Mul(var("x"), op.Sigmoid(op.Neg(var("x")))),
    ],
    ids=["text", "expression", "commuted", "function", "callable", "call"],
)
def test_a_pattern_may_be_written_in_many_ways(pattern: Any) -> None:
    m = model(BODY)
    (found,) = SubgraphMatcher(pattern).match(m)
    assert found.anchor.op == "Mul"
    assert [v.name for v in found.results] == ["y"]
    assert found.values["x"] is m.graph.inputs[0]
    assert sorted(n.op for n in found.nodes.values()) == ["Mul", "Neg", "Sigmoid"]
    done = replaced(m, pattern, lambda x: op.Div(x, op.Add(op.Exp(x), 1.0)))
    assert operators(m) == ["Exp", "Add", "Div"]
    assert [n.op for n in done[0].new_nodes] == ["Exp", "Add", "Div"]
    assert (done[0].anchor.op, done[0].anchor.graph) == ("Mul", None)


def test_a_replacement_in_text() -> None:
    m = model("a = MatMul (x, w) y = Add (a, b)")
    done = replaced(
        m, "(x, w, b) => (y) { m = MatMul (x, w) y = Add (m, b) }", "(x, w, b) => (y) { y = Gemm (x, w, b) }"
    )
    assert operators(m) == ["Gemm"]
    assert len(done) == 1
    assert set(done[0].nodes) == {"MatMul_1", "Add_1"}


def test_every_match_is_replaced_once() -> None:
    m = model("a = Relu (x) d = Relu (a) c = Neg (d) y = Relu (c)")
    assert len(replaced(m, "Relu(x)", "Relu(Relu(x))")) == 3
    assert operators(m) == ["Relu", "Relu", "Relu", "Relu", "Neg", "Relu", "Relu"]


def test_matches_do_not_overlap_unless_asked() -> None:
    m = model("a = Relu (x) d = Relu (a) c = Relu (d) y = Neg (c)")
    pattern = "Relu(Relu(x))"
    assert [s.results[0].name for s in SubgraphMatcher(pattern).match(m)] == ["d"]
    assert [s.results[0].name for s in SubgraphMatcher(pattern, overlapping=True).match(m)] == ["d", "c"]


def test_inner_results_are_used_once_unless_shared() -> None:
    m = model("a = Neg (x) c = Relu (a) y = Add (a, c)")
    assert not SubgraphMatcher("Relu(Neg(x))").match(m)
    assert len(SubgraphMatcher("Relu(Neg(x))", shared=True).match(m)) == 1
    assert len(SubgraphMatcher("Relu(Neg(x, shared=True))").match(m)) == 1


def test_matched_outputs_are_graph_outputs() -> None:
    m = model("a = Relu (x) y = Relu (a)")
    assert len(SubgraphMatcher("Relu(x)").match(m)) == 2
    assert [s.results[0].name for s in SubgraphMatcher("Relu(x)", match_outputs=True).match(m)] == ["y"]
    assert len(replaced(m, "Relu(x)", "Abs(x)", match_outputs=True, same=False)) == 1
    assert operators(m) == ["Relu", "Abs"]


def test_attributes_that_are_not_written_have_their_defaults() -> None:
    m = model("a = Softmax <axis = 0> (x) c = Softmax (a) y = Softmax <axis = -1> (c)")
    found = partial(results_in, m)
    assert found("Softmax(x)") == ["c", "y"]
    assert found("Softmax(x, axis=0)") == ["a"]
    assert found("Softmax(x)", exact=False) == ["a", "c", "y"]
    assert found("Softmax(x, axis=5)", ignore_literals=True) == ["a", "c", "y"]


def test_constants_are_literals() -> None:
    m = model("a = Mul (x, k) b2 = Add (a, b) y = Add (b2, b)")
    found = partial(results_in, m)
    assert found("Mul(x, 0.5)") == ["a"]
    assert found("Mul(x, 0.25)") == []
    assert found("Mul(x, 0.25)", ignore_literals=True) == ["a"]
    assert found("(x) => (y) { c = Constant <value = float[4] {1, 2, 3, 4}> () y = Add (x, c) }") == ["b2", "y"]
    assert found("(x) => (y) { c = Constant <value = float[4] {1, 2, 3, 5}> () y = Add (x, c) }") == []
    assert found("(x) => (y) { c = Constant <value = int32[4] {1, 2, 3, 4}> () y = Add (x, c) }") == []
    assert found("Add(x, const(c))") == ["b2", "y"]
    assert found("Add(x, x)") == []


def test_a_call_used_twice_is_one_node() -> None:
    def pattern(x: Any) -> Any:
        n = op.Neg(x)
        return op.Add(n, op.Relu(n))

    once = model("a = Neg (x) r = Relu (a) y = Add (a, r)")
    twice = model("a = Neg (x) c = Neg (x) r = Relu (c) y = Add (a, r)")
    assert len(SubgraphMatcher(pattern).match(once)) == 1
    assert len(SubgraphMatcher(pattern).match(twice)) == 0
    text = "(x) => (y) { n = Neg (x) r = Relu (n) y = Add (n, r) }"
    assert len(SubgraphMatcher(text).match(once)) == 1
    assert len(SubgraphMatcher("Add(Neg(x), Relu(Neg(x)))").match(twice)) == 1


def test_filters_see_the_match() -> None:
    m = model("a = Relu (x) c = Relu (a) y = Neg (c)")
    seen: list[str] = []

    def first(found: SubgraphMatch) -> bool:
        seen.append(found.results[0].name)
        return found.values["x"] is m.graph.inputs[0]

    assert len(replaced(m, "Relu(x)", "Abs(x)", [first, lambda found: True], same=False)) == 1
    assert operators(m) == ["Abs", "Relu", "Neg"]
    assert seen == ["a", "c"]


def test_a_named_call_keeps_its_attributes() -> None:
    m = model("a = Softmax <axis = 0> (x) y = Relu (a)")
    pattern, new = lambda x: op.Relu(op.Softmax(x, name="s")), lambda x: op.Softmax(x, name="s")
    assert len(replaced(m, pattern, new, exact=False)) == 1
    assert m.graph.first is not None
    assert (operators(m), m.graph.first.attr("axis")) == (["Softmax"], 0)


def test_several_results() -> None:
    m = model("a = MatMul (x, w) c = Relu (a) d = MatMul (x, w) y = Add (c, d)")
    pattern = "(x, w) => (p, q) { p = MatMul (x, w) q = MatMul (x, w) }"
    new = "(x, w) => (p, q) { m = MatMul (x, w) p = Identity (m) q = Identity (m) }"
    done = replaced(m, pattern, new)
    assert len(done) == 1
    assert operators(m) == ["MatMul", "Identity", "Identity", "Relu", "Add"]


def test_several_results_of_one_chain() -> None:
    m = model("a = Neg (x) c = Relu (a) y = Add (a, c)")
    pattern = "(x) => (n, r) { n = Neg (x) r = Relu (n) }"
    done = replaced(m, pattern, "(x) => (n, r) { n = Neg (x) r = Max (n, x) }", same=False)
    assert len(done) == 1
    assert sorted(operators(m)) == ["Add", "Max", "Neg"]


def test_several_results_only_where_nothing_in_between_depends_on_them() -> None:
    """a feeds d through c: one node for both could stand nowhere."""
    m = model("a = Neg (x) c = Relu (a) d = Neg (c) y = Add (a, d)")
    pattern = "(x, z) => (p, q) { p = Neg (x) q = Neg (z) }"
    assert not replaced(m, pattern, "(x, z) => (p, q) { p = Neg (x) q = Abs (z) }")
    assert operators(m) == ["Neg", "Relu", "Neg", "Add"]


def test_operators_with_several_outputs() -> None:
    m = model("p, q = Split <axis = 1> (x) y = Concat <axis = 1> (p, q)")
    pattern = lambda x: op.Concat((s := op.Split(x, axis=1)), s.at(1), axis=1)  # noqa: E731
    swap = lambda x: op.Concat((s := op.Split(x, axis=1)).at(1), s, axis=1)  # noqa: E731
    assert len(SubgraphMatcher(swap).match(m)) == 0
    assert len(replaced(m, pattern, swap, same=False)) == 1
    assert operators(m) == ["Split", "Concat"]
    assert m.graph.last is not None
    assert [v.index for v in m.graph.last.inputs if v is not None] == [1, 0]


def test_absent_inputs_alternatives_and_more_inputs() -> None:
    m = model("a = Clip (x, , k) c = Clip (a, k) d = Sum (c, x, a) e = Abs (d) y = Max (e, x)")
    found = partial(results_in, m)
    assert found("Clip(x, _, high)") == ["a"]
    assert found("Clip(x, low)") == ["c"]
    assert found("Sum(x, ...)") == ["d"]
    assert found("Abs|Max(x, ...)") == found(one_of("Abs", "Max")(var("x"), ...)) == ["e", "y"]
    assert found(op.Clip(var("x"), None, const("high"))) == ["a"]


def test_other_domains() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17, "com.x" : 1]> g (float[2] x) => (float[2] y) { y = com.x.Odd (x) }'
    m = read_model(parser.parse_model(text))
    assert len(SubgraphMatcher("com.x.Odd(x)").match(m)) == 1
    replace_pattern(m, "com.x.Odd(x)", "Relu(x)")
    assert operators(m) == ["Relu"]


def test_bodies_are_searched_and_marked_graphs_are_not() -> None:
    body = "c = Constant <value = bool {1}> () y = If <then_branch = t () => (float[N, 4] r) { r = Relu (x) }, "
    m = model(body + "else_branch = e () => (float[N, 4] s) { s = Relu (x) }> (c)")
    assert [s.anchor.graph.path for s in SubgraphMatcher("Relu(x)").match(m) if s.anchor.graph] == [
        "main / If / then_branch",
        "main / If / else_branch",
    ]
    m.proto.graph.metadata_props.add(key="onnxopt.skip", value="1")
    assert not SubgraphMatcher("Relu(x)").match(read_model(m.proto))


def test_results_are_those_of_one_scope() -> None:
    pattern = "(x) => (y, z) { y = Relu (x) z = Neg (x) }"
    new = "(x) => (y, z) { z = Neg (x) c = Abs (z) y = Relu (c) }"
    for inner, outer in (("Relu", "Neg"), ("Neg", "Relu")):
        branches = f"then_branch = t () => (float[N, 4] r) {{ i = {inner} (x) r = Exp (i) }}, "
        branches += "else_branch = e () => (float[N, 4] s) { s = Abs (x) }"
        m = model(f"n = Constant <value = bool {{1}}> () o = {outer} (x) e = If <{branches}> (n) y = Add (o, e)")
        assert not replaced(m, pattern, new)


def test_a_variable_may_be_handed_on() -> None:
    m = model("a = Neg (x) c = Neg (a) y = Relu (c)")
    assert len(replaced(m, "Neg(Neg(x))", lambda x: x)) == 1
    assert operators(m) == ["Relu"]
    m = model("a = Neg (x) y = Neg (a)")
    assert len(replaced(m, "Neg(Neg(x))", lambda x: x)) == 1
    assert operators(m) == ["Identity"], "between an input and an output a node stays"


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("Relu(", "was never closed at column 5"),
        ("Relu(x) +", "cannot be read: invalid syntax at its end"),
        ("Relu('x')", "cannot be read: `'x'` at column 6"),
        ("x", "results in operators"),
        ("(x) => (y) { z = Relu (x) }", "`y`, which nothing defines"),
        ("(x) => (y) { y = Relu (z) }", "Relu reads `z`, which nothing defines"),
        ("(x) => (y) { y = Relu x }", "cannot be read"),
    ],
)
def test_what_is_not_a_pattern(pattern: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SubgraphMatcher(pattern)


def test_pattern_and_replacement_fit_each_other() -> None:
    with pytest.raises(UsageError, match="reads `z`, which the pattern does not"):
        replace_pattern(model(BODY), "Relu(x)", "Add(x, z)")
    with pytest.raises(UsageError, match="results in 2 values"):
        replace_pattern(model(BODY), "Relu(x)", "(x) => (y, z) { y = Neg (x) z = Abs (x) }")


def test_long_graphs_are_searched_in_linear_time() -> None:
    """Matches tried per node do not grow with the graph."""
    from onnxopt.rewriting import matcher

    counts = []
    for n in (200, 2000):
        names = ["x", *(f"v{i}" for i in range(n - 1)), "y"]
        m = model(" ".join(f"{b} = {'Relu' if i % 2 else 'Neg'} ({a})" for i, (a, b) in enumerate(pairwise(names))))
        calls = 0
        original = matcher._match_node

        def counted(*args: Any, original: Any = original) -> bool:
            nonlocal calls
            calls += 1
            return original(*args)

        matcher._match_node = counted
        try:
            assert len(replace_pattern(m, "Relu(Neg(x))", "Abs(x)")) == n // 2
        finally:
            matcher._match_node = original
        counts.append(calls / n)
    assert counts[0] == counts[1]
