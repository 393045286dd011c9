"""Nodes are checked when a pass emits them: operators, inputs and outputs, attributes, results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, parser

from onnxopt.errors import EmissionError
from onnxopt.graph import Model, read_model, write_model
from onnxopt.pipeline import PassInfo, RewritePass, graph_pass
from onnxopt.pipeline.interpreter import GraphInterpreter
from onnxopt.rewriting import op, rewrite, var

BODY = "a = LeakyRelu <alpha: float = 0.3> (x) [named] y = Relu (a)"


def model(body: str = BODY) -> Model:
    source = f'<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y) {{ {body} }}'
    return read_model(parser.parse_model(source))


def by_rule(build: Callable[[Any, Any], Any], m: Model | None = None) -> Model:
    @rewrite(op.Relu(var("x"), name="relu"))
    def made(m: Any, x: Any) -> Any:
        """Relu(x) = what is tried."""
        return build(m, x)

    class Maker(RewritePass):
        info = PassInfo("maker")
        rules = (made,)

    m = m or model()
    Maker()(m)
    return m


def by_interpreter(becomes: Callable[[Any, Any, Any], Any], body: str = BODY) -> Model:
    class Maker(GraphInterpreter):
        info = PassInfo("maker")

        def call_operator(self, node: Any, args: Any) -> Any:
            return becomes(self, node, args) if node.op == "Relu" else super().call_operator(node, args)

    m = model(body)
    Maker()(m)
    onnx.checker.check_model(write_model(m), full_check=True)
    return m


WRONG: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda b, x: b.op.Reluu(x), "opset 17 of ai.onnx has no operator Reluu"),
    (lambda b, x: b.op.Elu(x, x), "it is given 2 inputs"),
    (lambda b, x: b.op.Elu(), "it is given 0 inputs"),
    (lambda b, x: b.op.Add(None, x), "its input 0 is absent"),
    (lambda b, x: b.op.Add(x, 1.0), "its input 1 is a float, not a value"),
    (lambda b, x: b.op.Elu(x, outputs=2)[0], "2 outputs are asked of it"),
    (lambda b, x: b.op.Elu(x, slope=0.1), "it has no attribute `slope`"),
    (lambda b, x: b.op.Elu(x, alpha=1), "its attribute `alpha` is FLOAT, not INT"),
    (lambda b, x: b.op.Cast(x), "its attribute `to` is missing"),
    (lambda b, x: b.op.Upsample(x, x), "it is deprecated in opset 17"),
]


@pytest.mark.parametrize(("build", "reason"), WRONG, ids=[reason for _, reason in WRONG])
def test_a_call_that_there_is_not(build: Callable[[Any, Any], Any], reason: str) -> None:
    with pytest.raises(EmissionError) as e:
        by_rule(build)
    assert reason in str(e.value)
    assert str(e.value).startswith("pass maker: rule made: g: main: ")
    assert 'for Relu "named" -> y: ' in str(e.value)
    with pytest.raises(EmissionError, match="pass maker: g: main: .*" + reason):
        by_interpreter(lambda self, node, args: build(self, args[0]))


def test_the_hint_says_what_there_is() -> None:
    with pytest.raises(EmissionError) as e:
        by_rule(lambda m, x: m.op.Elu(x, slope=0.1))
    assert e.value.hint == "in opset 17 it is Elu(X) {alpha: FLOAT}"
    with pytest.raises(EmissionError) as e:
        by_rule(lambda m, x: m.op.Reluu(x))
    assert "Relu" in e.value.hint


def test_attributes_of_another_operator_are_not_taken_along() -> None:
    with pytest.raises(EmissionError, match="it has no attribute `alpha`"):
        by_rule(lambda m, x: m.op.Relu(x, like=x.producer, domain="") if x.producer.op == "LeakyRelu" else x)


def test_what_the_model_has_wrongly_is_not_the_pass_s() -> None:
    body = "a = Mine <mode = 1> (x) [named] y = Relu <consumed: ints = [1]> (a)"
    kept = by_rule(
        lambda m, x: m.op.Relu(m.op.Abs(x), like=m.relu) if x.producer.op == "Mine" else m.skip(), model(body)
    )
    assert [n.op for n in kept.graph] == ["Mine", "Abs", "Relu"]


def test_an_empty_list_is_of_the_type_that_is_wanted() -> None:
    text = TensorProto.STRING
    m = by_rule(lambda b, x: b.op.CastLike(b.op.StringNormalizer(b.op.Cast(x, to=text), stopwords=[]), x))
    node = next(n for n in m.graph if n.op == "StringNormalizer")
    assert node.attributes["stopwords"].type == onnx.AttributeProto.STRINGS


RESULTS = [
    (lambda b, x: None, "nothing"),
    (lambda b, x: (b.op.Elu(x), b.op.Abs(x)), "2 values, not 1 value"),
    (lambda b, x: b.op.Elu(x).producer, "a Node, not 1 value"),
]


@pytest.mark.parametrize(("build", "reason"), RESULTS, ids=[reason for _, reason in RESULTS])
def test_results_of_another_number_or_kind(build: Callable[[Any, Any], Any], reason: str) -> None:
    with pytest.raises(EmissionError, match=rf'pass maker: rule made: .*Relu "named" -> y: .*{reason}'):
        by_rule(build)
    with pytest.raises(EmissionError, match=rf'pass maker: .*Relu "named" -> y: .*{reason}'):
        by_interpreter(lambda self, node, args: build(self, args[0]))


def test_an_output_that_is_read_is_given() -> None:
    body = "p, q = Split <axis = 1> (x) a = Add (p, q) b = Concat <axis = 1> (a, a) y = Relu (b)"

    class Maker(GraphInterpreter):
        info = PassInfo("maker")

        def call_operator(self, node: Any, args: Any) -> Any:
            if node.op == "Split":
                return args[0]
            return super().call_operator(node, args)

    with pytest.raises(EmissionError, match="its output 1 is read"):
        Maker()(model(body))


def test_unchanged_by_a_name_or_by_a_guard() -> None:
    def becomes(self: Any, node: Any, args: Any) -> Any:
        self.op.Elu(args[0])
        return self.unchanged

    assert [n.op for n in by_interpreter(becomes).graph] == ["LeakyRelu", "Relu"]

    def guarded(self: Any, node: Any, args: Any) -> Any:
        self.match.require(False, "not today")

    assert [n.op for n in by_interpreter(guarded).graph] == ["LeakyRelu", "Relu"]


def test_types_of_what_is_made_are_known_at_once() -> None:
    seen: list[Any] = []

    def build(m: Any, x: Any) -> Any:
        wide = m.op.Unsqueeze(m.op.Elu(x), m.const(np.array([0])))
        half, _ = m.op.Split(wide, axis=2, outputs=2)
        cast = m.op.Cast(half, to=onnx.TensorProto.INT64)
        opaque = m.op.Mine(x, domain="mine")
        seen.extend((m.shape(v), m.dtype(v)) for v in (wide, half, cast, opaque))
        return m.op.Squeeze(wide, m.const(np.array([0])))

    by_rule(build)
    assert seen == [((1, "N", 4), 1), ((1, "N", 2), 1), ((1, "N", 2), 7), (None, 0)]


def test_a_chain_that_is_made_is_no_recursion() -> None:
    def build(m: Any, x: Any) -> Any:
        value = x
        for _ in range(2000):
            value = m.op.Elu(value)
        assert m.shape(value) == ("N", 4)
        return value

    assert by_rule(build).graph.size == 2001


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("foo", 1, "Softmax -> a: it has no attribute `foo`"),
        ("axis", 1.0, "Softmax -> a: its attribute `axis` is INT, not FLOAT"),
        ("axis", [1], "Softmax -> a: its attribute `axis` is INT, not INTS"),
    ],
)
def test_an_attribute_that_is_set_is_one_of_the_operator(model: Any, name: str, value: Any, says: str) -> None:
    @graph_pass
    def sets(graph: Any, ctx: Any) -> None:
        """Sets an attribute."""
        graph.first.set_attr(name, value)

    m = model("a = Softmax <axis = 0> (x) y = Neg (a)")
    with pytest.raises(EmissionError) as e:
        sets(m)
    assert e.value.message.startswith(f"pass sets: g: main: {says}")
    assert e.value.hint == "in opset 17 it is Softmax(input) {axis: INT}"
    assert (m.version, m.graph.first.attr("axis")) == (0, 0)


def test_an_attribute_that_has_to_be_there_stays(model: Any) -> None:
    m = model("a = Cast <to = 1> (x) y = Neg (a)")
    with pytest.raises(EmissionError, match="its attribute `to` cannot be taken out"):
        m.graph.first.set_attr("to", None)
    m = model(
        "a = Softmax <axis = 0> (x) y = l.f <note = 1> (a)",
        '<domain: "l", opset_import: ["" : 17]> f (u) => (w) { w = Relu (u) }',
    )
    m.graph.first.set_attr("axis", None)
    assert m.graph.first.attr("axis") == -1
    m.graph.last.set_attr("note", "of nobody's")
