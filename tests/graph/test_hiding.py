"""Bodies that are bound by name: their inputs and outputs are called as in the file, also where that hides a value
around them, and everything reads what it read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from operator import add, mul, neg, pos, sub
from typing import Any

import onnx
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from onnxopt.analysis.submodel import submodel
from onnxopt.graph import check_model, write_model
from onnxopt.io import from_proto
from onnxopt.optimizer import OptimizeOptions, optimize_model
from onnxopt.pipeline.instruments import CheckEach
from tests.samples import parsed

EXAMPLES = int(os.environ.get("ONNXOPT_FUZZ", "100"))
OPERATORS: dict[str, Callable[..., float]] = {
    "Identity": pos, "Neg": neg, "Abs": abs, "Add": add, "Sub": sub, "Mul": mul, "Sum": lambda *x: sum(x),
}  # fmt: skip
HEAD = '<ir_version: 8, opset_import: ["" : 17, "my" : 1]> '


def evaluated(graph: GraphProto, given: Mapping[str, float], around: Mapping[str, float]) -> list[float]:
    """What a graph gives out; `given`: its inputs, by their names. A Call runs its body on what it reads."""
    known = {**around, **given}
    for node in graph.node:
        read = [known[name] for name in node.input]
        if node.op_type == "Call":
            body = node.attribute[0].g
            made = evaluated(body, {i.name: x for i, x in zip(body.input, read, strict=True)}, known)
            known.update(zip(node.output, made, strict=True))
        elif node.op_type == "If":
            known[node.output[0]] = evaluated(node.attribute[0].g, {}, known)[0]
        else:
            known[node.output[0]] = OPERATORS[node.op_type](*read)
    return [known[o.name] for o in graph.output]


def interfaces(graph: GraphProto) -> list[tuple[list[str], list[str]]]:
    """The names of inputs and outputs of each Call's body, at every depth."""
    found = []
    for node in graph.node:
        for a in node.attribute:
            if node.op_type == "Call":
                found.append(([i.name for i in a.g.input], [o.name for o in a.g.output]))
            found += interfaces(a.g)
    return found


def info(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [])


class Calls:
    """Draws scopes of which inputs and outputs are called as values around them."""

    def __init__(self, draw: Any) -> None:
        self.draw, self.count = draw, 0

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def scope(self, visible: list[str], outputs: list[str], depth: int) -> list[NodeProto]:
        nodes = []
        for _ in range(self.draw(st.integers(0, 4))):
            kind = self.pick("Identity", "Identity", "Neg", "Add", *(["Call"] * (depth < 3)))
            self.count += 1
            nodes.append(self.node(kind, visible, f"v{self.count}", depth))
            visible = [*visible, nodes[-1].output[0]]
        return nodes + [self.node(self.pick("Identity", "Neg"), visible, name, depth) for name in outputs]

    def node(self, kind: str, visible: list[str], name: str, depth: int) -> NodeProto:
        read = [self.pick(*visible) for _ in range(1 + (kind == "Add"))]
        if kind != "Call":
            return helper.make_node(kind, read, [name])
        given, made = self.draw(st.permutations(["a", "b", "c"])), f"w{self.count}"
        inside = [v for v in visible if v not in given]  # what a scope makes later is not what is called so around it
        nodes = self.scope([*inside, given[0]], given[1:], depth + 1)
        body = helper.make_graph(nodes, "body", [info(given[0])], [info(n) for n in given[1:]])
        return helper.make_node("Call", read, [name, made], domain="my", body=body)


@st.composite
def models(draw: Any) -> ModelProto:
    nodes = Calls(draw).scope(["a", "b"], ["c", "d"], 0)
    graph = helper.make_graph(nodes, "g", [info("a"), info("b")], [info("c"), info("d")])
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def optimized(proto: ModelProto, level: int) -> ModelProto:
    model = from_proto(proto)
    optimize_model(model, OptimizeOptions(level=level), [CheckEach()])
    written = ModelProto()
    written.CopyFrom(write_model(model))
    check_model(model)
    assert write_model(model) == written, "it can be written again"
    return written


@settings(max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES <= 300, suppress_health_check=list(HealthCheck))
@given(models(), st.sampled_from([1, 2, 3]))
def test_bodies_keep_their_names_and_what_they_read(proto: ModelProto, level: int) -> None:
    note(onnx.printer.to_text(proto))
    once = optimized(proto, level)
    note(onnx.printer.to_text(once))
    feeds = {"a": 3.0, "b": 50.0}
    assert evaluated(once.graph, feeds, {}) == evaluated(proto.graph, feeds, {})
    before = interfaces(proto.graph)
    assert all(names in before for names in interfaces(once.graph))


def test_a_value_that_a_body_hides_is_read_by_another_name() -> None:
    """A merged node is read as `a`, which inside is the body's own input: a copy has another name."""
    proto = parsed(
        HEAD
        + """g (float a, float x) => (float y, float z) {
      z = Neg (a)
      y = my.Call (x) <body = b (float z) => (float r) { n = Neg (a)  r = Add (n, z) }>
    }"""
    )
    once = optimized(proto, 1)
    copy, call = once.graph.node[1:]
    assert (copy.op_type, copy.input[:], once.graph.node[0].output[:]) == ("Identity", ["z"], ["z"])
    body = call.attribute[0].g
    assert [i.name for i in body.input] == ["z"]
    assert [n.input[:] for n in body.node] == [[copy.output[0], "z"]]
    assert evaluated(once.graph, {"a": 3.0, "x": 50.0}, {}) == [47.0, -3.0]


def test_a_rule_does_not_make_a_body_read_what_it_hides() -> None:
    proto = parsed(
        HEAD
        + """g (float a, float x) => (float y) {
      k = Identity (a)
      y = my.Call (x) <body = b (float a) => (float r) { r = Add (a, k) }>
    }"""
    )
    assert optimized(proto, 2) == proto


@pytest.mark.parametrize("op", ["my.Call", "If"])
def test_inner_bodies_read_what_is_bound_by_name(op: str) -> None:
    inner = (
        "m = If (c) <then_branch = t () => (float p) { p = Neg (a) }, else_branch = e () => (float q) { q = Abs (a) }>"
    )
    text = f"""g (float a, bool c, float x) => (float y) {{ one = Identity (x)
      y = my.Call (one) <body = b (float a) => (float y) {{ {inner} i = Identity (m) y = Neg (i) }}> }}"""
    body = optimized(parsed(HEAD + text), 1).graph.node[0].attribute[0].g
    assert ([i.name for i in body.input], [o.name for o in body.output]) == (["a"], ["y"])
    branches = body.node[0].attribute
    assert [n.input[:] for b in branches for n in b.g.node] == [["a"], ["a"]]
    assert body.node[-1].output[:] == ["y"]


def test_a_part_of_a_model_keeps_them_too() -> None:
    proto = parsed(
        HEAD
        + """g (float a, float x) => (float y) {
      s = Neg (x)  t = my.Call (s) <body = b (float a) => (float r) { r = Neg (a) }>  y = Add (t, a) }"""
    )
    graph = from_proto(proto).graph
    part = submodel(graph, [*graph][1:2])
    body = part.graph.node[0].attribute[0].g
    assert [i.name for i in body.input] == ["a"]
    assert [n.input[:] for n in body.node] == [["a"]]


def test_an_output_of_a_body_that_is_bound_by_name_keeps_its_name() -> None:
    """Without an Identity it would be the body's input."""
    proto = parsed(
        HEAD
        + """g (float x) => (float y) {
      y = my.Call (x) <body = b (float s) => (float logits, float same) {
        n = Neg (s)  logits = Identity (n)  same = Identity (s) }> }"""
    )
    body = optimized(proto, 2).graph.node[0].attribute[0].g
    assert [(n.op_type, n.input[:], n.output[:]) for n in body.node] == [
        ("Neg", ["s"], ["logits"]),
        ("Identity", ["s"], ["same"]),
    ]


def test_what_a_file_gives_out_twice_it_may_under_a_name_that_hides_another() -> None:
    proto = parsed(
        HEAD
        + """g (float x) => (float y) { r = Neg (x)  one = Identity (r)
      y = my.Call (one) <body = b (float s) => (float r, float r) { r = Neg (s) }> }"""
    )
    call = optimized(proto, 1).graph.node[1]
    assert call.input[:] == ["r"]
    assert [o.name for o in call.attribute[0].g.output] == ["r", "r"]


def test_what_a_branch_lists_as_inputs_it_reads_around_it() -> None:
    """By the standard it has none: onnxruntime refuses such a model, and loads the result."""
    proto = parsed("""g (float x, bool c) => (float y) { v = Identity (x)
      y = If (c) <then_branch = t (float v) => (float p) { p = Neg (v) },
                  else_branch = e (float v) => (float q) { q = Abs (v) }>
    }""")
    once = optimized(proto, 1)
    branches = [a.g for a in once.graph.node[0].attribute]
    assert [(len(b.input), b.node[0].input[:]) for b in branches] == [(0, ["x"])] * 2
