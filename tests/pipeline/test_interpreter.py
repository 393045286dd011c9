"""Interpreter passes: one-to-one, one-to-many, one-to-none, and preserved metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as rt
import pytest

from onnxopt.errors import EmissionError, NoFixpointError, PassError
from onnxopt.graph import Model, check_model, read_model, write_model
from onnxopt.graph.node import Node
from onnxopt.pipeline import Fixpoint, PassContext, PassInfo, get_pass
from onnxopt.pipeline.interpreter import Args, GraphInterpreter, Result
from tests.samples import operators


@dataclass(frozen=True)
class Interpret(GraphInterpreter):
    """Emits what a function says."""

    info = PassInfo("interpret")
    say: Callable[..., Any] = lambda self, again, node, args: again()

    def call_operator(self, node: Node, args: Args) -> Result:
        found: Result = self.say(self, lambda: super(Interpret, self).call_operator(node, args), node, args)
        return found


def run(m: Model, say: Callable[..., Any], same: bool = True) -> Model:
    before = onnx.ModelProto()
    before.CopyFrom(m.proto)
    Interpret(say)(m)
    check_model(m)
    after = write_model(m)
    onnx.checker.check_model(after, full_check=True)
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    if same:
        a, b = (rt.InferenceSession(p.SerializeToString(), providers=["CPUExecutionProvider"]) for p in (before, after))
        for u, v in zip(a.run(None, {"x": x}), b.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(u, v, atol=1e-6)
    return m


def test_emitting_everything_again_touches_nothing(model: Any) -> None:
    m = model()
    data = m.proto.SerializeToString()
    seen: list[str] = []
    run(m, lambda self, again, node, args: (seen.append(node.op), again())[1])
    assert seen == ["Identity", "Relu", "Neg"]
    assert (m.version, m.proto.SerializeToString()) == (0, data)


def test_one_to_one(model: Any) -> None:
    m = run(model(), lambda self, again, n, a: self.op.Abs(a[0]) if n.op == "Relu" else again(), same=False)
    assert operators(m) == ["Identity", "Abs", "Neg"]
    assert [v.name for n in m.graph for v in n.outputs if v] == ["a", "b", "y"], "names stay"


def test_one_to_many(model: Any) -> None:
    def say(self: Any, again: Any, node: Node, args: Args) -> Any:
        if node.op != "Relu":
            return again()
        zero = self.match.const(np.float32(0))
        return self.op.Max(args[0], zero)

    m = run(model(), say)
    assert operators(m) == ["Identity", "Max", "Neg"]
    m = run(model(), lambda self, again, n, a: self.op.Neg(self.op.Neg(again())) if n.op == "Relu" else again())
    assert operators(m) == ["Identity", "Relu", "Neg", "Neg", "Neg"]


def test_one_to_none(model: Any) -> None:
    m = run(model(), lambda self, again, n, a: a[0] if n.op == "Identity" else again())
    assert operators(m) == ["Relu", "Neg"]


def test_other_arguments(model: Any) -> None:
    def say(self: Any, again: Any, node: Node, args: Args) -> Any:
        if node.op == "Sub":
            return GraphInterpreter.call_operator(self, node, (args[1], args[0]))
        return again()

    m = run(model("a = Relu (x) y = Sub (a, x)"), say, same=False)
    assert [v.name for v in m.graph.last.inputs if v] == ["x", "a"]


def test_what_is_emitted_sees_what_was_emitted_before(model: Any) -> None:
    """The second node's argument is what took the first one's place."""
    seen: list[str] = []

    def say(self: Any, again: Any, node: Node, args: Args) -> Any:
        if node.op == "Neg":
            assert args[0] is not None
            assert args[0].producer is not None
            seen.append(args[0].producer.op)
        return self.op.Abs(args[0]) if node.op == "Relu" else again()

    run(model(), say, same=False)
    assert seen == ["Abs"]


def test_metadata_names_and_types_are_kept(model: Any) -> None:
    proto = write_model(model())
    relu = proto.graph.node[1]
    relu.name, relu.doc_string = "the_relu", "documented"
    relu.metadata_props.add(key="layer", value="7")
    info = onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, ["N", 4])
    proto.graph.value_info.append(info)
    m = read_model(proto)
    Interpret(lambda self, again, n, a: self.op.Neg(self.op.Abs(a[0])) if n.op == "Relu" else again())(m)
    after = write_model(m)
    made = [n for n in after.graph.node if n.op_type == "Abs"]
    assert [n.metadata_props[0].value for n in made] == ["7"]
    assert [n.name for n in after.graph.node if n.name] == ["the_relu_Abs", "the_relu"]
    assert list(after.graph.value_info) == [info]


def test_bodies_are_interpreted_and_kept(model: Any) -> None:
    branch = "then_branch = t () => (float[N, 4] r) { r = Relu (a) }, "
    branch += "else_branch = e () => (float[N, 4] s) { s = Neg (a) }"
    body = f"a = Identity (x) c = Constant <value = bool {{1}}> () b = If <{branch}> (c) y = Neg (b)"

    def say(self: Any, again: Any, node: Node, args: Args) -> Any:
        if node.op == "Relu":
            return self.op.Max(args[0], self.match.const(np.float32(0)))
        return self.op.Neg(self.op.Neg(again())) if node.op == "If" else again()

    m = run(model(body), say)
    assert operators(m) == ["Identity", "Constant", "If", "Neg", "Neg", "Neg"]
    bodies = next(n for n in m.graph if n.op == "If").bodies
    assert [n.op for n in bodies["then_branch"]] == ["Max"]
    assert bodies["then_branch"].initializers


def test_a_node_with_bodies_is_emitted_once(model: Any) -> None:
    branch = "then_branch = t () => (float[N, 4] r) { r = Relu (x) }, "
    branch += "else_branch = e () => (float[N, 4] s) { s = Neg (x) }"
    m = model(f"c = Constant <value = bool {{1}}> () y = If <{branch}> (c)")
    with pytest.raises(PassError, match="cannot be emitted twice"):
        Interpret(lambda self, again, n, a: self.op.Add(again(), again()) if n.op == "If" else again())(m)
    m = run(model(), lambda self, again, n, a: self.op.Max(again(), again()) if n.op == "Relu" else again())
    assert operators(m) == ["Identity", "Relu", "Relu", "Max", "Neg"]


def test_functions_are_interpreted(model: Any) -> None:
    f = '<domain: "l", opset_import: ["" : 17]> f (x) => (y) { a = Identity (x) y = Relu (a) }'
    m = run(model("y = l.f (x)", f), lambda self, again, n, a: a[0] if n.op == "Identity" else again())
    assert [n.op for n in m.functions["function l::f"]] == ["Relu"]


def test_replacements_are_counted(model: Any) -> None:
    report = Interpret(lambda self, again, n, a: again() if n.op == "Identity" else self.op.Abs(a[0]))(model())
    assert report.of("interpret").rules["replaced"].hits == 2


def test_several_outputs(model: Any) -> None:
    body = "p, q = Split <axis = 1> (x) a = Relu (q) y = Concat <axis = 1> (p, a)"

    def say(self: Any, again: Any, node: Node, args: Args) -> Any:
        if node.op != "Split":
            return again()
        first, second = again()
        return self.op.Neg(first), second

    m = run(model(body), say, same=False)
    assert operators(m) == ["Split", "Neg", "Relu", "Concat"]


def test_one_that_never_settles_is_named_with_what_it_did_last(model: Any) -> None:
    @dataclass(frozen=True)
    class Behind(GraphInterpreter):
        """Puts an Identity behind every Relu, there may be one or not."""

        info = PassInfo("behind")

        def call_operator(self, node: Any, args: Any) -> Any:
            again = super().call_operator(node, args)
            return self.op.Identity(again) if node.op == "Relu" else again

    with pytest.raises(NoFixpointError) as e:
        Fixpoint([Behind(), get_pass("elim-identity")()], max_rounds=3)(model("a = Relu (x) y = Neg (a)"))
    assert e.value.message.startswith("g: still changing after 3 rounds; in the last ones, pass behind: replaced 1")
    assert ", the last at Relu -> a" in e.value.message
    assert "; pass elim-identity: identity 1 time, the last at Identity -> a" in e.value.message
    assert "undo each other's work" in e.value.hint
    with PassContext(max_rewrites=0):
        assert Behind()(model()).of("behind").hits == 0, "fuel reaches into interpreters"


def test_another_operator_is_not_emitted_by_its_name(model: Any) -> None:
    with pytest.raises(EmissionError) as e:
        run(model(), lambda self, again, n, a: GraphInterpreter.call_operator(self, "Abs", a))  # type: ignore[arg-type]
    assert "super().call_operator takes a node, not 'Abs'" in e.value.message
    assert e.value.hint.endswith("self.op.Abs(*args) emits another operator")
