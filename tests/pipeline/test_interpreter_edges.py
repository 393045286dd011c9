"""Interpreters at the edges of a graph: mapped inputs, and outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest

from onnxopt.errors import EmissionError
from onnxopt.graph import Model, Value, check_model, read_model, write_model
from onnxopt.graph.node import Node
from onnxopt.pipeline import Fixpoint, PassContext, PassInfo
from onnxopt.pipeline.interpreter import Args, GraphInterpreter, Result
from tests.runtime import outputs
from tests.samples import operators

Hook = Callable[..., Any]


@dataclass(frozen=True)
class Edges(GraphInterpreter):
    """Says at the edges what functions say."""

    info = PassInfo("edges")
    enter: Hook = lambda self, value: value
    leave: Hook = lambda self, values: values
    at: Hook = lambda self, node: None

    def placeholder(self, value: Value) -> Any:
        return self.enter(self, value)

    def call_operator(self, node: Node, args: Args) -> Result:
        self.at(self, node)
        return super().call_operator(node, args)

    def output(self, values: tuple[Value, ...]) -> Any:
        return self.leave(self, values)


def twice(self: Any, value: Value) -> Value:
    negated: Value = self.op.Neg(self.op.Neg(value))
    return negated


def twice_all(self: Any, values: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(twice(self, value) for value in values)


def same(m: Model, p: Any, feeds: dict[str, Any] | None = None) -> Model:
    """`m` after `p`, which computes what it did, under the names that it had."""
    before = onnx.ModelProto()
    before.CopyFrom(m.proto)
    p(m)
    check_model(m)
    after = write_model(m)
    onnx.checker.check_model(after, full_check=True)
    for kept in ("input", "output"):
        assert list(getattr(after.graph, kept)) == list(getattr(before.graph, kept))
    x = feeds or {"x": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)}
    old, new = outputs(before, x), outputs(after, x)
    assert old.keys() == new.keys()
    for name in old:
        np.testing.assert_array_equal(old[name], new[name])
    return m


def test_what_is_overridden_and_says_nothing_changes_nothing(model: Any) -> None:
    for leave in (Edges().leave, lambda self, values: self.unchanged, lambda self, values: values[0]):
        m = model()
        data = m.proto.SerializeToString()
        Edges(leave=leave)(m)
        Edges(enter=lambda self, value: (twice(self, value), self.unchanged)[1])(m)
        assert (m.version, m.proto.SerializeToString()) == (0, data)


def test_inputs(model: Any) -> None:
    asked: list[str] = []
    m = same(model("a = Relu (x) y = Add (a, x)"), Edges(twice, at=lambda self, node: asked.append(node.op)))
    assert operators(m) == ["Neg", "Neg", "Relu", "Add"]
    assert asked == ["Relu", "Add"], "what was put behind an input is no node of the graph's own"
    assert m.graph.inputs[0].users.keys() == {m.graph.first}
    assert [v.name for v in m.graph.last.inputs][1] == m.graph.first.next.output.name


def test_outputs(model: Any) -> None:
    m = same(model("a = Relu (x) y = Add (a, x)"), Edges(leave=twice_all))
    assert operators(m) == ["Relu", "Add", "Neg", "Neg"]
    assert m.graph.last.output.name == m.graph.outputs[0].name == "y"
    m = same(model("y = Relu (x)"), Edges(leave=lambda self, values: twice(self, values[0])))
    assert operators(m) == ["Relu", "Neg", "Neg"]


def test_an_output_that_is_read_keeps_its_readers(model: Any) -> None:
    m = model("y = Relu (x) z = Neg (y)")
    m.graph.outputs.append(m.graph.last.output)
    m.graph.last.output.output_count = 1
    Edges(leave=lambda self, values: (self.op.Abs(values[0]), values[1]))(m)
    check_model(m)
    assert operators(m) == ["Relu", "Neg", "Abs"]
    assert [v.name for v in m.graph.outputs] == ["y", "z"]
    assert [n.op for n in m.graph.first.output.users] == ["Neg", "Abs"]


def test_several_at_once(model: Any) -> None:
    proto = write_model(model("a = Relu (x) y = Add (a, x)"))
    proto.graph.node[1].input[1] = "b"
    for kind in ("input", "output"):
        values = getattr(proto.graph, kind)
        values.append(onnx.helper.make_tensor_value_info("b" if kind == "input" else "z", 1, ["N", 4]))
    proto.graph.node.append(onnx.helper.make_node("Exp", ["x"], ["z"]))
    x = np.ones((2, 4), np.float32)
    original = onnx.ModelProto()
    original.CopyFrom(proto)
    m = same(read_model(proto), Edges(twice, twice_all), {"x": x, "b": x})
    assert operators(m) == ["Neg"] * 4 + ["Relu", "Add", "Exp"] + ["Neg"] * 4
    proto.CopyFrom(original)
    m = read_model(proto)
    Edges(leave=lambda self, values: (self.op.Add(*values), self.op.Sub(*values)))(m)
    check_model(m)
    after = write_model(m)
    old, new = outputs(original, {"x": x, "b": x}), outputs(after, {"x": x, "b": x})
    np.testing.assert_allclose(new["y"], old["y"] + old["z"])
    np.testing.assert_allclose(new["z"], old["y"] - old["z"])


def test_bodies(model: Any) -> None:
    branch = "then_branch = t () => (float[N, 4] r) { r = Relu (a) }, "
    branch += "else_branch = e () => (float[N, 4] s) { s = Neg (a) }"
    m = same(
        model(f"a = Identity (x) c = Constant <value = bool {{1}}> () y = If <{branch}> (c)"), Edges(twice, twice_all)
    )
    bodies = next(n for n in m.graph if n.op == "If").bodies
    assert [[n.op for n in bodies[b]] for b in bodies] == [["Relu", "Neg", "Neg"], ["Neg", "Neg", "Neg"]]
    loop = """k = Constant <value = int64 {2}> () c = Constant <value = bool {1}> ()
        y = Loop <body = b (int64 i, bool g, float[N, 4] v) => (bool h, float[N, 4] w) {
            h = Identity (g) w = Exp (v) }> (k, c, x)"""

    def floats(self: Any, value: Value) -> Any:
        return twice(self, value) if self.match.dtype(value) == onnx.TensorProto.FLOAT else value

    m = same(model(loop), Edges(floats, lambda self, values: tuple(floats(self, v) for v in values)))
    body = m.graph.last.prev.prev.bodies["body"]
    assert [n.op for n in body] == ["Neg", "Neg", "Identity", "Exp", "Neg", "Neg"]


def test_a_body_that_gives_one_value_out_twice(model: Any) -> None:
    body = "b (int64 i, bool g, float[N, 4] v, float[N, 4] u) => (bool g, float[N, 4] w, float[N, 4] w)"
    loop = f"""k = Constant <value = int64 {{2}}> () c = Constant <value = bool {{1}}> () a = Abs (x)
        y, z = Loop <body = {body} {{ w = Add (v, a) }}> (k, c, x, x)"""

    def leave(self: Any, values: Any) -> Any:
        return (values[0], twice(self, values[1]), values[2]) if len(values) == 3 else values

    m = same(model(loop), Edges(leave=leave))
    body = next(n for n in m.graph if n.op == "Loop").bodies["body"]
    assert [n.op for n in body] == ["Add", "Neg", "Neg"]
    assert len({v.name for v in body.outputs}) == 3


def test_functions(model: Any) -> None:
    function = '<domain: "l", opset_import: ["" : 17]> f (u) => (w) { w = Relu (u) }'
    m = same(model("y = l.f (x)", function), Edges(twice, twice_all))
    (f,) = m.functions.values()
    assert [n.op for n in f] == ["Neg", "Neg", "Relu", "Neg", "Neg"]
    assert (f.inputs[0].name, f.outputs[0].name) == ("u", "w")


def test_it_settles_if_it_asks_what_is_there(model: Any) -> None:
    def enter(self: Any, value: Value) -> Any:
        return value if any(n.op == "Neg" for n in value.users) else twice(self, value)

    def leave(self: Any, values: tuple[Value, ...]) -> Any:
        return tuple(v if v.producer and v.producer.op == "Neg" else twice(self, v) for v in values)

    m = model("y = Relu (x)")
    report = Fixpoint([Edges(enter, leave)])(m)
    assert operators(m) == ["Neg", "Neg", "Relu", "Neg", "Neg"]
    assert (report.of("edges").hits, report.rounds) == (2, 2)


def test_fuel(model: Any) -> None:
    for fuel, left in ((0, 1), (1, 3), (2, 5)):
        m = model("y = Relu (x)")
        with PassContext(max_rewrites=fuel):
            Edges(twice, twice_all)(m)
        assert m.node_count() == left


def test_what_is_given_out_as_it_came_in_stays(model: Any) -> None:
    proto = write_model(model("y = Relu (x)"))
    proto.graph.output.append(proto.graph.input[0])
    m = read_model(proto)
    report = Edges(leave=twice_all)(m)
    assert m.version == 0
    (rule,) = report.of("edges").rules.values()
    assert [*rule.declined] == ["an output that nothing makes is an input, or a constant"]
    Edges(leave=lambda self, values: (twice(self, values[0]), values[1]))(m)
    assert operators(m) == ["Relu", "Neg", "Neg"]


@pytest.mark.parametrize(
    ("hooks", "says"),
    [
        ({"enter": lambda self, value: None}, "g: main: the input `x`: placeholder returned nothing"),
        ({"enter": lambda self, value: 3}, "the input `x`: what replaces it is an int, not 1 value"),
        ({"enter": lambda self, value: (value, value)}, "the input `x`: what replaces it is 2 values, not 1 value"),
        ({"leave": lambda self, values: None}, "the output `y`: output returned nothing"),
        ({"leave": lambda self, values: list(values)}, "the output `y`: what replaces it is a list"),
        ({"leave": lambda self, values: (*values, *values)}, "the output `y`: output returned 2 values for 1"),
        ({"leave": lambda self, values: ()}, "the output `y`: output returned 0 values for 1"),
        ({"enter": lambda self, v: self.op.Add(v, v.graph.first.output)}, "reads `a`, which is made later"),
        ({"enter": lambda self, v: v.graph.first.output}, "reads `a`, which is made later"),
        ({"enter": lambda self, v: self.op.Nag(v)}, "Nag for the input `x`: opset 17 of ai.onnx has no operator Nag"),
    ],
)
def test_what_is_no_answer(model: Any, hooks: dict[str, Hook], says: str) -> None:
    m = model("a = Relu (x) y = Neg (a)")
    with pytest.raises(EmissionError) as e:
        Edges(**hooks)(m)
    assert e.value.message.startswith("pass edges: g: main: ")
    assert says in e.value.message
    assert m.version == 0
