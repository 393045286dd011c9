"""Bodies within bodies that read what is around them, at any distance: whatever passes do to the names out there, what
is written says the same."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import HealthCheck, given, note, reject, settings
from hypothesis import strategies as st
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph

from onnxopt.errors import ModelError
from onnxopt.graph import check_model, write_model
from onnxopt.io import from_proto
from onnxopt.optimizer import OptimizeOptions, optimize_model
from onnxopt.pipeline.instruments import CheckEach
from tests.runtime import plain_session

pytestmark = pytest.mark.usefixtures("kept_worker")
EXAMPLES = int(os.environ.get("ONNXOPT_FUZZ", "60"))
DEPTH = 4


@cache
def one_of(choices: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    """Made once: to make it takes as long as to draw from it."""
    return st.sampled_from(choices)


class Bodies:
    """Draws scopes. `names`: what is visible, innermost last; all are float[2]."""

    def __init__(self, draw: Any, shadowing: bool) -> None:
        self.draw = draw
        self.shadowing = shadowing

    def pick(self, *choices: Any) -> Any:
        return self.draw(one_of(choices))

    def scope(self, names: list[str], depth: int, key: str) -> tuple[list[NodeProto], list[TensorProto], str]:
        names, nodes, stored = list(names), [], []
        made: list[str] = []

        def new(what: str) -> str:
            # Scopes beside each other use the same names; with shadowing those within each other do too.
            name = f"{what}{len(made)}" + ("" if self.shadowing else f"_{depth}{key}")
            made.append(name)
            return name

        for _ in range(self.draw(st.integers(1, 4))):
            kinds = ["Identity", "Neg", "Add", "Constant", "stored"] + ["If", "If", "Loop"] * (depth < DEPTH)
            kind = self.pick(*kinds)
            if kind == "stored":
                if depth:  # the same bytes in every scope
                    stored.append(numpy_helper.from_array(np.array([1, 2], np.float32), new("w")))
                    names.append(stored[-1].name)
                continue
            if kind == "Constant":
                value = numpy_helper.from_array(np.array(self.pick((1, 2), (3, 4)), np.float32))
                nodes.append(helper.make_node("Constant", [], [new("k")], value=value))
            elif kind == "If":
                bodies = {f"{k}_branch": self.body(names, depth + 1, k[0]) for k in ("then", "else")}
                nodes.append(helper.make_node("If", [self.pick("c", "yes", "no")], [new("i")], **bodies))
            elif kind == "Loop":
                nodes.append(self.loop(names, depth + 1, new("l")))
            else:
                read = [self.pick(*names) for _ in range(1 + (kind == "Add"))]
                nodes.append(helper.make_node(kind, read, [new(kind[0].lower())]))
            names.append(nodes[-1].output[0])
        if not nodes or nodes[-1].output[0] != names[-1]:
            nodes.append(helper.make_node("Identity", [names[-1]], [new("o")]))
        return nodes, stored, nodes[-1].output[0]

    def body(self, names: list[str], depth: int, key: str) -> GraphProto:
        nodes, stored, result = self.scope(names, depth, key)
        return helper.make_graph(nodes, key, [], [info(result)], stored)

    def loop(self, names: list[str], depth: int, name: str) -> NodeProto:
        own = f"_{depth}l" if not self.shadowing else ""
        ins = [helper.make_tensor_value_info(f"it{depth}", TensorProto.INT64, [])]
        ins += [helper.make_tensor_value_info(f"go{depth}", TensorProto.BOOL, []), info(f"s{own}")]
        nodes, stored, result = self.scope([*names, f"s{own}"], depth, "l")
        nodes.append(helper.make_node("Identity", [f"go{depth}"], [f"on{depth}"]))
        outs = [helper.make_tensor_value_info(f"on{depth}", TensorProto.BOOL, []), info(result)]
        body = helper.make_graph(nodes, "l", ins, outs, stored)
        return helper.make_node("Loop", [self.pick("one", "two"), "yes", self.pick(*names)], [name], body=body)


def info(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])


@st.composite
def models(draw: Any, shadowing: bool = False) -> ModelProto:
    nodes, _, result = Bodies(draw, shadowing).scope(["x", "w"], 0, "m")
    weights = [
        numpy_helper.from_array(np.array(v), n) for n, v in (("one", 1), ("two", 2), ("yes", True), ("no", False))
    ]
    weights.append(numpy_helper.from_array(np.array([1, 2], np.float32), "w"))
    inputs = [helper.make_tensor_value_info("c", TensorProto.BOOL, []), info("x")]
    graph = helper.make_graph(nodes, "g", inputs, [info(result)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def results(proto: ModelProto) -> list[np.ndarray[Any, Any]]:
    """By onnxruntime: onnx's own evaluator gives a body's input the value of what it hides."""
    session = plain_session(proto)
    x = np.array([5, -7], np.float32)
    return [session.run(None, {"c": np.array(c), "x": x})[0] for c in (True, False)]


def settled(proto: ModelProto, options: OptimizeOptions) -> ModelProto:
    model = from_proto(proto)
    optimize_model(model, options, [CheckEach()])
    check_model(model)
    result = ModelProto()
    result.CopyFrom(write_model(model))
    return result


@settings(max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES <= 300, suppress_health_check=list(HealthCheck))
@given(models(), st.sampled_from([1, 2, 3]))
def test_names_inside_bodies_are_those_of_the_scopes_around(proto: ModelProto, level: int) -> None:
    note(onnx.printer.to_text(proto))
    onnx.checker.check_model(proto, full_check=True)
    once = settled(proto, OptimizeOptions(level=level))
    note(onnx.printer.to_text(once))
    onnx.checker.check_model(once, full_check=True)
    np.testing.assert_array_equal(results(once), results(proto))
    again = from_proto(once)
    optimize_model(again, OptimizeOptions(level=level))
    assert again.version == 0, "a second run changes something"


@settings(max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES <= 300, suppress_health_check=list(HealthCheck))
@given(models(), st.data())
def test_passes_in_any_order_with_a_write_between_them(proto: ModelProto, data: st.DataObject) -> None:
    names = ["inline-branches", "simplify-loops", "deduplicate-constants", "lift-constants", "elim-identity"]
    names += ["common-subexpressions", "constant-folding", "dead-code", "canonicalize"]
    text = ",".join(data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=8)))
    note(text + onnx.printer.to_text(proto))
    once = settled(proto, OptimizeOptions(pipeline=text))
    onnx.checker.check_model(once, full_check=True)
    np.testing.assert_array_equal(results(once), results(proto))


@settings(max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES <= 300, suppress_health_check=list(HealthCheck))
@given(models(shadowing=True), st.sampled_from([1, 2, 3]))
def test_a_name_that_hides_another(proto: ModelProto, level: int) -> None:
    """onnx's checker lets inputs and initializers of a body do so."""
    note(onnx.printer.to_text(proto))
    try:
        once = settled(proto, OptimizeOptions(level=level))
    except ModelError:
        reject()  # what is read before the scope defines it is not what the scope around calls so
    note(onnx.printer.to_text(once))
    now = results(once)
    try:
        expected = results(proto)
    except (Fail, InvalidGraph):
        reject()  # onnxruntime lets no result of a node hide another
    np.testing.assert_array_equal(now, expected)


HANDED_OUT = """<ir_version: 8, opset_import: ["" : 17]>
g (bool c) => (float[A] y)
{ y = If (c) <then_branch = t () => (float[B] a) { k = Constant <value_float = 1.0> () a = Identity (k) },
              else_branch = e () => (float[C] b) { j = Constant <value_float = 1.0> () b = Identity (j) }> }"""


def test_a_sparse_constant_that_a_body_hands_out_is_no_array() -> None:
    proto = onnx.parser.parse_model(HANDED_OUT)
    two, at = (numpy_helper.from_array(np.array([n], t)) for n, t in ((2.5, np.float32), (1, np.int64)))
    for branch in proto.graph.node[0].attribute:
        del branch.g.node[0].attribute[:]
        sparse = helper.make_sparse_tensor(two, at, [4])
        branch.g.node[0].attribute.append(helper.make_attribute("sparse_value", sparse))
    model = from_proto(proto)
    optimize_model(model, OptimizeOptions(level=1), [CheckEach()])
    branches = write_model(model).graph.node[0].attribute
    left = [(n.op_type, n.attribute[0].name) for b in branches for n in b.g.node]
    assert left == [("Constant", "sparse_value")] * 2


STANDARD = {
    "If": "y0 = If (c) <then_branch = t () => (float[2] r) { r = Neg (kept) }, "
    "else_branch = e () => (float[2] s) { s = Abs (kept) }>",
    "Loop": "y0 = Loop (m, c, x) <body = b (int64 i, bool g, float[2] s) => (bool h, float[2] r) "
    "{ h = Identity (g) r = Add (s, kept) }>",
    "Scan": "y1, y0 = Scan <num_scan_inputs = 1, body = b (float[2] s, float e) => (float[2] s1, float[2] r) "
    "{ s1 = Add (s, e) r = Add (s1, kept) }> (x, x)",
    "SequenceMap": "p = SequenceConstruct (x, x) q = SequenceMap <body = b (float[2] e) => (float[2] r) "
    "{ r = Add (e, kept) }> (p) zero = Constant <value_int = 0> () y0 = SequenceAt (q, zero)",
}


@pytest.mark.parametrize("op", STANDARD)
def test_what_a_body_reads_is_kept(op: str) -> None:
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
      g (float[2] x, bool c, int64 m) => (float y) {{ kept = Exp (x) {STANDARD[op]}
      y = ReduceSum <keepdims = 0> (y0) }}""")
    once = settled(proto, OptimizeOptions(level=2))
    onnx.checker.check_model(once, full_check=True)
    assert "Exp" in [n.op_type for n in once.graph.node]


# Where nobody expects a graph: operators of later opsets, of others, and such as never have one.
ODD = ["l::Each", "Someday", "ai.onnx.ml::Someday", "ai.onnx.ml::Scaler", "ai.onnx::Softmax", "Softmax", "Abs"]


@pytest.mark.parametrize("op", ODD)
@pytest.mark.parametrize("many", [False, True])
def test_bodies_are_read_wherever_they_are(op: str, many: bool) -> None:
    """What only a body reads stays, and what passes do to it is written into the body."""
    domain, _, op_type = op.rpartition("::")
    body = helper.make_graph([helper.make_node("Neg", ["kept"], ["r"])], "body", [], [info("r")])
    held = helper.make_graph([helper.make_node("Abs", ["made"], ["r"])], "held", [], [info("r")])
    nodes = [
        helper.make_node("Identity", ["x"], ["kept"]),
        helper.make_node("Exp", ["x"], ["made"]),
        helper.make_node(op_type, ["x"], ["y"], domain=domain, axis=0, bodies=[body, held]),
    ]
    if not many:
        nodes[-1].attribute[-1].CopyFrom(helper.make_attribute("body", body))
        nodes[1].output[0] = "unread"
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("l", 1), helper.make_opsetid("ai.onnx.ml", 3)]
    proto = helper.make_model(helper.make_graph(nodes, "g", [info("x")], [info("y")]), opset_imports=domains)
    result = settled(proto, OptimizeOptions(level=2))
    assert [n.op_type for n in result.graph.node] == ["Exp"] * many + [op_type]
    attribute = result.graph.node[-1].attribute[-1]
    assert [list(g.node[0].input) for g in attribute.graphs or [attribute.g]] == [["x"], ["made"]][: 1 + many]
