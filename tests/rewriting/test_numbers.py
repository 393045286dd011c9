"""Patterns see and print the numbers of models: floats of 32 bits, near ones on request."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

from onnxopt.cli.find import find
from onnxopt.errors import UsageError
from onnxopt.graph import Model, read_model
from onnxopt.passes.linear.scales import join_factors
from onnxopt.pipeline.partition import pattern_partitions
from onnxopt.rewriting import SubgraphMatcher, about, either, op, replace_pattern, rewrite, text, var
from onnxopt.rewriting.diagnose import diagnose, lines_of
from tests.samples import parsed

TEXT = """g (float[N, 4] x) => (float[N, 4] y)
<float c = {0.1}, float[1] e = {0.3}> {
    a = LeakyRelu <alpha: float = 0.1> (x)
    b = HardSigmoid <alpha: float = 0.16666667, beta: float = 0.5> (a)
    d = Mul (b, c)  f = Add (d, e)
    s = Upsample1 <scales: floats = [0.1, 0.7], sizes: ints = [1, 2]> (f)
    y = Relu (s)
}"""


def model() -> Model:
    return read_model(parsed(TEXT))


def found(pattern: Any, **options: Any) -> int:
    return len(SubgraphMatcher(pattern, **options).match(model()))


@pytest.mark.parametrize(
    "pattern",
    [
        op.LeakyRelu(var("x"), alpha=0.1),
        "LeakyRelu(x, alpha=0.1)",
        "(x) => (y) { y = LeakyRelu <alpha = 0.1> (x) }",
        lambda x: op.LeakyRelu(x, alpha=0.1),
        op.HardSigmoid(var("x"), alpha=1 / 6),
        "HardSigmoid(x, alpha=1/6)",
        op.Upsample1(var("x"), scales=[0.1, 0.7], sizes=[1, 2]),
        "Upsample1(x, scales=[0.1, 0.7], sizes=[1, 2])",
        "Mul(x, 0.1)",
        op.LeakyRelu(var("x"), alpha=about(0.1001)),
        "LeakyRelu(x, alpha=about(0.1001, 0.01))",
        "Upsample1(x, scales=about([0.1001, 0.7], 1e-2), sizes=[1, 2])",
        "Mul(x, about(0.1001, 0.01))",
        "Relu(x) | Neg(x)",
    ],
)
def test_floats_are_those_of_the_model(pattern: Any) -> None:
    assert found(pattern) == 1


@pytest.mark.parametrize(
    "near", ["LeakyRelu(x, alpha=0.1001)", "Mul(x, 0.1001)", "Upsample1(x, scales=[0.1, 0.7001], sizes=[1, 2])"]
)
def test_a_tolerance_can_be_asked_for(near: str) -> None:
    assert (found(near), found(near, tolerance=1e-5), found(near, tolerance=1e-2)) == (0, 0, 1)
    weights = "(x) => (y) { c = Constant <value = float[1] {0.3001}> () y = Add (x, c) }"
    assert (found(weights), found(weights, tolerance=1e-2)) == (0, 1)


def test_what_is_found_is_printed_as_it_is_found(tmp_path: Path) -> None:
    onnx.save(parsed(TEXT), tmp_path / "m.onnx")
    run = CliRunner().invoke(find, [str(tmp_path / "m.onnx"), "HardSigmoid(x)"])
    (written,) = re.findall(r"\{(alpha=\S+), ", run.output)
    assert written == "alpha=0.16666667"
    assert found(f"HardSigmoid(x, {written})") == 1
    near = CliRunner().invoke(find, [str(tmp_path / "m.onnx"), "HardSigmoid(x, alpha=0.1667)", "--tolerance", "0.001"])
    assert near.exit_code == 0


def test_patterns_show_their_attributes() -> None:
    pattern = op.HardSigmoid(
        op.Conv(var("x"), ..., group=1, pads=[0, 1]), alpha=0.1, beta=about(0.5), mode=lambda v: True
    )
    assert text(pattern) == (
        "HardSigmoid(Conv(x, ..., group=1, pads=[0, 1]), alpha=0.1, beta=about(0.5, 0.001), mode=...)"
    )
    printed = text(op.LeakyRelu(op.Relu(var("x")), alpha=0.1))
    assert text(SubgraphMatcher(printed).example.results[0]) == printed


def test_the_nearest_alternative_is_shown() -> None:
    x = var("x")

    @rewrite(either(op.Mul(x, op.Sigmoid(x)), op.Mul(x, op.HardSigmoid(x, alpha=0.25)), op.Mul(x, op.Tanh(x))))
    def gate(m: Any, x: Any) -> Any:
        """x g(x) = x g(x)."""
        return x

    source = "g (float x) => (float y) { h = HardSigmoid (x) y = Mul (h, x) }"
    anchor = next(n for n in read_model(parsed(source)).graph if n.op == "Mul")
    shown = "\n".join(lines_of(diagnose(gate, anchor)))
    assert "✗ HardSigmoid {alpha=0.25}" in shown
    assert "(alpha is 0.2)" in shown


RELU = "g (float[N, 4] a) => (float[N, 4] r) { r = Relu (a) }"
BIAS = "g (float[N] a) => (float[N] r) <float[1] w = {0.3}> { r = Add (a, w) }"


def test_models_and_graphs_are_patterns() -> None:
    proto = parsed(RELU)
    for pattern in (proto, proto.graph, read_model(proto).graph):
        assert found(pattern) == 1
        m = model()
        (done,) = replace_pattern(m, pattern, "Elu(a)")
        assert [n.op for n in done.new_nodes] == ["Elu"]
    for weighted in (parsed(BIAS), read_model(parsed(BIAS)).graph):
        assert found(weighted) == 1
        assert found(parsed(BIAS.replace("0.3", "0.4"))) == 0
        assert found(parsed(BIAS.replace("0.3", "0.4")), ignore_literals=True) == 1
    with pytest.raises(UsageError, match="a pattern cannot be made of int"):
        SubgraphMatcher(3)  # type: ignore[arg-type]


def test_variables_may_have_to_be_inputs() -> None:
    assert found("HardSigmoid(x)", exact=False, match_placeholder=True) == 0
    assert found("LeakyRelu(x)", exact=False, match_placeholder=True) == 1


@pytest.mark.parametrize(
    "pattern",
    [
        "Add(Mul(x, c), e)",
        "(x, c, e) => (y) { m = Mul (x, c) y = Add (m, e) }",
        lambda x, c, e: op.Add(op.Mul(x, c), e),
    ],
)
def test_partitions_take_every_kind_of_pattern(pattern: Any) -> None:
    (part,) = pattern_partitions(model().graph, [pattern])
    assert [n.op for n in part.nodes] == ["Mul", "Add"]


def test_partitions_of_patterns_with_two_results() -> None:
    body = "{ n = Neg (x) p = Relu (n) q = Exp (n) }"
    source = f"g (float x) => (float p, float q) {body}"
    graph = read_model(parsed(source)).graph
    (part,) = pattern_partitions(graph, [f"(x) => (p, q) {body}"])
    assert [n.op for n in part.nodes] == ["Neg", "Relu", "Exp"]


@pytest.mark.parametrize("text", ["LeakyRelu(x, alpha=y)", "Mul(x, 1/0)", "Mul(x, about())", "Mul(x, [1, 2])"])
def test_what_cannot_be_read_is_said(text: str) -> None:
    with pytest.raises(UsageError, match="the example cannot be read"):
        SubgraphMatcher(text)


def test_what_overflows_is_a_reason_and_no_warning() -> None:
    proto = parsed("""g (float[2, 4] x, float[4, 3] z) => (float[2, 3] y) <float c = {1e30}> {
        a = Mul (x, c)  b = Mul (z, c)
        y = MatMul (a, b)
    }""")
    anchor = next(n for n in read_model(proto).graph if n.op == "MatMul")
    assert diagnose(join_factors, anchor).reason == "the folded constant overflows its type"
