"""Constant nodes are read in each form: exporters write `value_float` and `value_ints`, too."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxopt.proto.messages import tensor_to_array
from onnxopt.verification import VerifyOptions, verify
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.verification.model.nodes import constants

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
STRICT = "Greater", "GreaterOrEqual"
LOWER = 'y = StringNormalizer <case_change_action = "LOWER"> (x)'


def test_every_form_of_a_constant_node_is_read() -> None:
    model = parser.parse_model(
        HEAD + "() => (float a) { a = Constant <value_float = 1.5> () b = Constant <value_floats = [1.5, 2.5]> ()"
        " c = Constant <value_int = 3> () d = Constant <value_ints = [3, 4]> () e = Constant <value = int32[1] {5}> ()"
        ' f = Constant <value_string = "x"> () h = Constant <value_strings = ["x", "y"]> () i = Relu (a) }'
    )
    model.graph.node.add(op_type="Constant", output=["none"])
    found = {name: tensor_to_array(t) for name, t in constants(model.graph.node)}
    assert {name: (v.dtype.name, v.shape) for name, v in found.items()} == {
        "a": ("float32", ()), "b": ("float32", (2,)), "c": ("int64", ()), "d": ("int64", (2,)), "e": ("int32", (1,)),
        "f": ("object", ()), "h": ("object", (2,)),
    }  # fmt: skip
    assert [found[name].tolist() for name in "abcde"] == [1.5, [1.5, 2.5], 3, [3, 4], [5]]


def test_constant_nodes_give_breakpoints_and_shapes() -> None:
    model = parser.parse_model(
        HEAD + "(float[n, 6] x, int64[n] i) => (float[n, 2, 3] y) { low = Constant <value_float = 2.0> ()"
        " at = Constant <value_int = 7> () to = Constant <value_ints = [-1, 2, 3]> ()"
        " c = Greater (x, low) d = Equal (i, at) y = Reshape (x, to) }"
    )
    plan = make_plan(model)
    assert [i.use.edges for i in plan.inputs] == [(2.0,), (7.0,)]
    assert 7 in plan.inputs[1].compared
    assert plan.baked == [2, 3]


@pytest.mark.parametrize("options", [None, VerifyOptions(cases=("all",))])
@pytest.mark.parametrize(
    ("interface", "body", "wrong"),
    [
        ("(float[n] x) => (bool[n] y)", "k = Constant <value_float = 0.5> () y = Greater (x, k)", STRICT),
        ("(int64[n] x) => (bool[n] y)", "k = Constant <value_int = 50> () y = Greater (x, k)", STRICT),
        ("(string[n] x) => (string[n] y)", LOWER, ("LOWER", "NONE")),
    ],
    ids=["float", "integer", "case of letters"],
)
def test_a_fault_at_a_breakpoint_of_a_constant_node_is_found(
    interface: str, body: str, wrong: tuple[str, str], options: VerifyOptions | None, tmp_path: Path
) -> None:
    text = f"{HEAD}{interface} {{ {body} }}"
    for name, source in (("a", text), ("b", text.replace(*wrong))):
        onnx.save(parser.parse_model(source), tmp_path / f"{name}.onnx")
    assert verify(tmp_path / "a.onnx", tmp_path / "b.onnx", options).status == "different"
    assert verify(tmp_path / "a.onnx", tmp_path / "a.onnx", options).status == "equal"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("y = Softmax <axis = -1> (x)", "e = Exp (x) s = ReduceSum <keepdims = 1> (e, one) y = Div (e, s)"),
        ("y = ReduceLogSumExp <axes = [1]> (x)", "e = Exp (x) s = ReduceSum <keepdims = 1> (e, one) y = Log (s)"),
    ],
)
def test_the_case_extremes_feeds_every_extreme(right: str, wrong: str, tmp_path: Path) -> None:
    """Every extreme is fed, also to an input of few elements.

    The largest one was missing at times, and Exp did not overflow.
    """
    for name, body in (("a", right), ("b", wrong)):
        text = f"{HEAD}(float[n, 8] x) => (float[n, m] y) <int64[1] one = {{1}}> {{ {body} }}"
        onnx.save(parser.parse_model(text), tmp_path / f"{name}.onnx")
    found = verify(tmp_path / "a.onnx", tmp_path / "b.onnx", VerifyOptions(cases=("extremes",)))
    assert found.status == "different"
