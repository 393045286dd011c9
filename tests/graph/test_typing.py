"""What a pass makes is of the types that its operator takes, and of that of what it replaces: else the pass is named,
with scope, node and both types, before a runtime finds it out. And what a replaced node said of itself stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import onnx.parser
import pytest
from onnx import ModelProto, TensorProto

from onnxopt import GraphInterpreter, PassInfo, RewritePass, dtype, graph_pass, op, replace_pattern, rewrite, shape, var
from onnxopt.analysis import types
from onnxopt.errors import MistypedError
from onnxopt.graph import Graph, Model, read_model, write_model
from onnxopt.pipeline import PassContext, execute
from onnxopt.rewriting import Driver
from tests.graph.test_replacing import scope_of

HEAD = '<ir_version: 10, opset_import: ["" : 21, "l" : 1]>\n'
SCOPES = {
    "main": "g (float[2, 3] x, bool c) => (float[2, 3] y) { y = Neg (x) }",
    "If": """g (float[2, 3] x, bool c) => (float[2, 3] o) {
        o = If (c) <then_branch = t () => (float[2, 3] y) { y = Neg (x) },
            else_branch = e () => (float[2, 3] e1) { e1 = Abs (x) }>
    }""",
    "Loop": """g (float[2, 3] x, bool c) => (float[3, 2, 3] o) <int64 n = {3}> {
        o = Loop (n, "") <body = b (int64 i, bool d) => (bool d2, float[2, 3] y) { d2 = Identity (d) y = Neg (x) }>
    }""",
    "Scan": """g (float[4, 2, 3] x, bool c) => (float[4, 2, 3] o) {
        o = Scan (x) <num_scan_inputs = 1, body = b (float[2, 3] s) => (float[2, 3] y) { y = Neg (s) }>
    }""",
}  # of a function nothing says its types
PLACES = {"main": "main", "If": "main / If / then_branch", "Loop": "main / Loop / body", "Scan": "main / Scan / body"}


def parsed(kind: str) -> ModelProto:
    return onnx.parser.parse_model(HEAD + SCOPES[kind])


def _not(graph: Graph, node: Any) -> object:
    return graph.make("Not", [node.inputs[0]], before=node)


def _not_of_what_is_made(graph: Graph, node: Any) -> object:
    total = graph.make("Add", [node.inputs[0], node.inputs[0]], before=node)
    return graph.make("Not", [total], before=node)


def _mixed(graph: Graph, node: Any) -> object:
    count = graph.make("Shape", [node.inputs[0]], before=node)
    return graph.make("Add", [node.inputs[0], count], before=node)


def _cast(graph: Graph, node: Any) -> object:
    return node.output.replace_all_uses_with(graph.make("Cast", [node.inputs[0]], before=node, to=TensorProto.INT32))


def _operator(graph: Graph, node: Any) -> None:
    node.op = "Not"


def _operator_of_another_result(graph: Graph, node: Any) -> None:
    node.op = "IsNaN"


def _shape(graph: Graph, node: Any) -> object:
    flat = graph.make("Flatten", [node.inputs[0]], before=node, axis=0)
    flat.shape = (1, 6)
    return node.output.replace_all_uses_with(flat)


@pytest.mark.parametrize("kind", SCOPES)
@pytest.mark.parametrize(
    ("makes", "said"),
    [
        (_not, "Not for Neg -> y: its input 0 is FLOAT, and it takes BOOL"),
        (_not_of_what_is_made, "Not for Neg -> y: its input 0 is FLOAT, and it takes BOOL"),
        (_mixed, "Add for Neg -> y: its input 1 is INT64, beside FLOAT"),
        (_cast, "Neg -> y: what replaces `y` is int32"),
        (_operator, "Not for Neg -> y: its input 0 is FLOAT, and it takes BOOL"),
        (_operator_of_another_result, "IsNaN for Neg -> y: it results in BOOL, and `y` is FLOAT"),
        (_shape, "Neg -> y: what replaces `y` is float[1,6], not float[2,3]"),
    ],
)
def test_a_graph_pass_is_told(kind: str, makes: Callable[[Graph, Any], object], said: str) -> None:
    def run(graph: Graph, ctx: PassContext) -> None:
        """Makes it."""
        for node in list(graph.by_op["Neg"]):
            makes(graph, node)

    with pytest.raises(MistypedError) as e:
        execute(graph_pass(name="mistyped")(run)(), read_model(parsed(kind)))
    assert e.value.message.startswith(f"pass mistyped: g: {PLACES[kind]}: {said}")


@rewrite(op.Neg(var("x")))
def no_neg(m, x):  # type: ignore[no-untyped-def]
    """-x = not x."""
    return m.op.Not(x)


@rewrite(op.Neg(var("x")))
def neg_of_double(m, x):  # type: ignore[no-untyped-def]
    """-x = -double(x)."""
    return m.op.Neg(m.op.Cast(x, to=TensorProto.DOUBLE))


@rewrite(op.Neg(var("x")))
def neg_turned(m, x):  # type: ignore[no-untyped-def]
    """-x = -transposed(x)."""
    return m.op.Neg(m.op.Transpose(x, perm=[1, 0]))


@rewrite(op.Neg(var("x")))
def sums(m, x):  # type: ignore[no-untyped-def]
    """-x = the sum of x."""
    return m.op.ReduceSum(m.op.Neg(x))


WRONG = [
    (no_neg, "Not for Neg -> y: its input 0 is FLOAT, and it takes BOOL"),
    (neg_of_double, "Neg -> y: what replaces `y` is double"),
    (neg_turned, "Neg -> y: what replaces `y` is float[3,2], not float[2,3]"),
    (sums, "Neg -> y: what replaces `y` is float[1,1], not float[2,3]"),
]


@pytest.mark.parametrize("kind", SCOPES)
@pytest.mark.parametrize(("rule", "said"), WRONG)
def test_a_rule_is_told(kind: str, rule: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mistyped(RewritePass):
        """Makes it."""

        info = PassInfo("mistyped")
        rules = (rule,)

    monkeypatch.setattr(Model, "debug", False)  # a pass of somebody else's is looked at all the same
    with pytest.raises(MistypedError) as e:
        execute(Mistyped(), read_model(parsed(kind)))
    assert e.value.message.startswith(f"pass mistyped: rule {rule.name}: g: {PLACES[kind]}: {said}")


def test_a_rule_of_ours_declines_where_types_that_a_file_says_contradict_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Model, "debug", False)
    model = read_model(parsed("main"))
    driver = Driver([no_neg])
    model.graph.outputs[0].dtype = TensorProto.FLOAT
    assert driver.run(model) == 0
    assert list(driver.records["no_neg"].declined) == ["its input 0 is FLOAT, and it takes BOOL"]
    assert Driver([neg_of_double]).run(model) == 0 and [n.op for n in model.graph] == ["Neg"]


@rewrite(op.TopK(var("x"), var("k")))
def one_for_both(m, x, k):  # type: ignore[no-untyped-def]
    """Numbers and places are one."""
    return (both := m.op["l::f"](x)), both


@pytest.mark.parametrize("debug", [True, False])
def test_one_result_for_two_types_changes_nothing(debug: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """g (float[3] x, int64[1] k) => (float[1] y, int64[1] z) { v, w = TopK (x, k) y = Neg (v) z = Abs (w) }
        <domain: "l", opset_import: ["" : 21]> f (p) => (q) { q = Neg (p) }"""
    monkeypatch.setattr(Model, "debug", debug)
    model = read_model(onnx.parser.parse_model(HEAD + text))
    types.update(model)
    driver = Driver([one_for_both])
    if debug:
        with pytest.raises(MistypedError, match=r"what replaces `.` is"):
            driver.run(model)
    else:
        assert driver.run(model) == 0
        assert [*driver.records["one_for_both"].declined] == ["what replaces `v` is int64[…], not float[?]"]
    assert [n.op for n in model.graph] == ["TopK", "Neg", "Abs"]


def test_an_interpreter_and_an_example_are_told() -> None:
    class Nots(GraphInterpreter):
        """Makes it."""

        info = PassInfo("nots")

        def call_operator(self, node: Any, args: Any) -> Any:
            return self.op.Not(*args) if node.op == "Neg" else super().call_operator(node, args)

    with pytest.raises(MistypedError, match=r"^pass nots: g: main: Not for Neg -> y: its input 0 is FLOAT"):
        execute(Nots(), read_model(parsed("main")))
    model = read_model(parsed("main"))
    types.update(model)
    with pytest.raises(MistypedError, match=r"^g: main: Neg -> y: what replaces `y` is int32\[2,3\], not float\[2,3\]"):
        replace_pattern(model, "Neg(x)", lambda x: op.Cast(x, to=TensorProto.INT32))


@pytest.mark.parametrize(
    ("head", "made", "inputs"),
    [
        ('<ir_version: 10, opset_import: ["" : 21]>', "Where", "xxx"),  # in a function nothing is known
        ('<ir_version: 10, opset_import: ["" : 999]>', "Not", "x"),  # of an operator of tomorrow neither
        ('<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>', "com.microsoft::Not", "x"),
    ],
)
def test_what_is_not_known_is_not_refused(head: str, made: str, inputs: str) -> None:
    text = """g (float[2] x) => (float[2] y) { y = l.f (x) }
        <domain: "l", opset_import: [OPSET]> f (x) => (y) { y = Neg (x) }"""
    opsets = head[head.index("[") + 1 : head.index("]")]
    proto = onnx.parser.parse_model(head.replace("]", ', "l" : 1]') + text.replace("OPSET", opsets))
    model = read_model(proto)
    graph = scope_of(model) if made == "Where" else model.graph
    node = graph.first
    assert node is not None
    graph.make(made, [node.inputs[0]] * len(inputs), before=node)
    assert len(graph) == 2


def test_a_result_knows_its_type_and_inference_its_shape() -> None:
    model = read_model(parsed("main"))
    graph, node = model.graph, model.graph.first
    assert node is not None
    x = node.inputs[0]
    for name, attributes, kind, dims in (
        ("Shape", {}, TensorProto.INT64, (2,)),
        ("Cast", {"to": TensorProto.BOOL}, TensorProto.BOOL, (2, 3)),
        ("RandomUniform", {"shape": [4], "dtype": TensorProto.DOUBLE}, TensorProto.DOUBLE, (4,)),
        ("IsNaN", {}, TensorProto.BOOL, (2, 3)),
        ("Transpose", {"perm": [1, 0]}, TensorProto.FLOAT, (3, 2)),
    ):
        made = graph.make(name, [] if name == "RandomUniform" else [x], before=node, **attributes)
        assert made.dtype == kind
        assert (dtype(made), shape(made)) == (kind, dims)


class Abs(GraphInterpreter):
    """|x| instead of -x."""

    info = PassInfo("abs-of-all")

    def call_operator(self, node: Any, args: Any) -> Any:
        return self.op.Abs(self.op.Abs(*args)) if node.op == "Neg" else super().call_operator(node, args)


@rewrite(op.Neg(var("x")))
def two_abs(m, x):  # type: ignore[no-untyped-def]
    """-x = ||x||."""
    return m.op.Abs(m.op.Abs(x))


WAYS: dict[str, Callable[[Model], object]] = {
    "rule": lambda m: Driver([two_abs]).run(m),
    "interpreter": lambda m: execute(Abs(), m),
    "example": lambda m: replace_pattern(m, "Neg(x)", "Abs(Abs(x))"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", SCOPES)
def test_what_a_node_says_of_itself_stays(way: str, kind: str) -> None:
    model = read_model(parsed(kind))
    for proto in (n.proto for n in model.nodes() if n.op == "Neg"):
        proto.name, proto.doc_string = "neg_1", "File model.py, line 3"
        proto.metadata_props.add(key="pkg", value="torch")
    WAYS[way](model)
    write_model(model)
    made = [n.proto for n in model.nodes() if n.op == "Abs" and n.output.name != "e1"]
    assert len(made) == 2 and "neg_1" in {p.name for p in made}
    assert {p.doc_string for p in made} == {"File model.py, line 3"}
    assert all([(p.key, p.value) for p in proto.metadata_props] == [("pkg", "torch")] for proto in made)


def test_a_copy_says_what_the_node_said_whose_place_it_takes() -> None:
    text = "g (float[2] x) => (float[2] y, float[2] z) { y = Neg (x) z = Neg (x) }"
    model = read_model(onnx.parser.parse_model(HEAD + text))
    first, second = model.graph
    second.proto.doc_string = "line 4"
    second.output.replace_all_uses_with(first.output)
    model.graph.remove(second)
    assert [(n.op_type, n.doc_string) for n in write_model(model).graph.node] == [("Neg", ""), ("Identity", "line 4")]


def test_what_is_no_text_is_left_out() -> None:
    proto = ModelProto.FromString(parsed("main").SerializeToString())
    proto.graph.node[0].doc_string = "XXXX"
    model = read_model(ModelProto.FromString(proto.SerializeToString().replace(b"XXXX", b"\xff\xfe\xff\xfe")))
    assert Driver([two_abs]).run(model) == 1
    assert [n.proto.doc_string for n in model.graph] == ["", ""]
