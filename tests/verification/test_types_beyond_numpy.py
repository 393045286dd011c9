"""Inputs and outputs of types absent from numpy are fed and compared like others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxopt.proto.element_types import BY_CODE
from onnxopt.verification import DIFFERENT, EQUAL, IN_PIECES, VerifyOptions, verify
from onnxopt.verification.inputs.cases import RECIPES
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.verification.inputs.values import InputMaker
from onnxopt.verification.run import reason
from tests.verification.pairs import verdict, with_constants


def save(path: Path, kind: int, op: str) -> Path:
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node(op, ["f", "f"], ["g"]),
        helper.make_node("Cast", ["g"], ["y"], to=kind),
    ]
    interface = ([helper.make_tensor_value_info(name, kind, ["n", 8])] for name in "xy")
    graph = helper.make_graph(nodes, "g", *interface)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


@pytest.mark.parametrize("kind", ["UINT4", "FLOAT8E4M3FN", "FLOAT8E5M2", "BFLOAT16"])
def test_types_beyond_numpy_are_fed_and_compared(kind: str, tmp_path: Path) -> None:
    number = TensorProto.DataType.Value(kind)
    a, b = (save(tmp_path / name, number, op) for name, op in (("a", "Mul"), ("b", "Add")))
    found = verify(a, a)
    assert (found.status, len(found.cases)) == (EQUAL, 2), found.message
    assert found.cases[0].outputs[0].dtype.replace("_", "") == kind.lower()
    assert verify(a, b).status == DIFFERENT


BFLOAT16 = """<ir_version: 10, opset_import: ["" : 22]> g (bfloat16[n, 8] x) => ({kind}[n, 8] y) {{
    i = Identity (x) {made}
}}"""


def bfloat16(*numbers: float) -> Any:
    return np.array(numbers, ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("bfloat16", "y = Clip (i, low, high)"),
        ("float", "y = Cast <to = 1> (i)"),
        ("int32", "y = Cast <to = 6> (i)"),
        ("bool", "y = Greater (i, low)"),
        ("bfloat16", "y = Floor (i)"),
        ("uint8", "y = QuantizeLinear (i, scale, z)"),
        ("bfloat16", "y = Relu (i)"),
        ("bool", "y = IsNaN (i)"),
        ("bfloat16", "t = Add (i, high) y = Max (t, low)"),
    ],
)
def test_bfloat16_inputs_at_breakpoints(kind: str, made: str, tmp_path: Path) -> None:
    """Numbers beside breakpoints are made in the input's own type. numpy has no limits of bfloat16."""
    text = BFLOAT16.format(kind=kind, made=made)
    constants = {"low": bfloat16(-1)[0], "high": bfloat16(1)[0], "scale": bfloat16(0.1), "z": np.uint8([3])}
    one, other, wrong = (
        with_constants(t, {name: c for name, c in constants.items() if name in made})
        for t in (
            text,
            text.replace("i = Identity (x)", "").replace(made, made.replace("(i", "(x")),
            text.replace("Identity", "Neg"),
        )
    )
    found = verdict(tmp_path, one, other)
    assert found.status in (EQUAL, IN_PIECES), found.message
    assert verdict(tmp_path, one, wrong).status == DIFFERENT or "IsNaN" in made


def test_rounding_of_bfloat16_is_measured(tmp_path: Path) -> None:
    """A folded scale of a bfloat16 Conv is verified in pieces: the last bits of bfloat16 weights are changed, too."""
    head = '<ir_version: 10, opset_import: ["" : 22]> g (float[n, 3, 4, 4] x) => (float[n, 2, 4, 4] y)'
    w = bfloat16(0.1, -0.7, -1.3, 0.4, 0.9, 0.2).reshape(2, 3, 1, 1)
    s = bfloat16(1.3, 0.7).reshape(1, 2, 1, 1)
    text = f"{head} {{ i = Cast <to = 16> (x) c = Conv (i, w) m = Mul (c, s) y = Cast <to = 1> (m) }}"
    one = with_constants(text, {"w": w, "s": s})
    folded = (w.astype(float) * s.reshape(2, 1, 1, 1).astype(float)).astype(w.dtype)
    text = f"{head} {{ i = Cast <to = 16> (x) c = Conv (i, v) y = Cast <to = 1> (c) }}"
    found = verdict(tmp_path, one, with_constants(text, {"v": folded}))
    assert found.status == IN_PIECES, found.message
    assert max(found.noise.values()) > 1e-3
    assert verdict(tmp_path, one, with_constants(text, {"v": folded[::-1]})).status == DIFFERENT


@pytest.mark.parametrize("kind", ["UINT4", "INT4", "INT2"])
def test_integers_of_few_bits_take_all_their_values(kind: str) -> None:
    code = TensorProto.DataType.Value(kind)
    nodes = [helper.make_node("DequantizeLinear", ["x", "s"], ["y"])]
    given = [helper.make_tensor_value_info("x", code, [512]), helper.make_tensor_value_info("s", TensorProto.FLOAT, [])]
    result = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [512])]
    plan = make_plan(helper.make_model(helper.make_graph(nodes, "g", given, result)))
    low, high = BY_CODE[code].integers
    drawn, extreme = (InputMaker(plan, {}, 0).fill(RECIPES[name], {}).feeds["x"] for name in ("random", "extremes"))
    assert {*drawn.tolist()} == {*range(low, high + 1)}
    assert {low, high} <= {*extreme.tolist()}


@pytest.mark.parametrize("kind", ["FLOAT4E2M1", "FLOAT8E4M3FN"])
def test_the_extremes_of_narrow_floats_are_numbers_of_the_type(kind: str, tmp_path: Path) -> None:
    given = [helper.make_tensor_value_info("x", TensorProto.DataType.Value(kind), [4, 8])]
    result = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])]
    right = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)]
    wrong = [helper.make_node("Cast", ["x"], ["c"], to=TensorProto.FLOAT), helper.make_node("Round", ["c"], ["y"])]
    graphs = (helper.make_graph(nodes, "g", given, result) for nodes in (right, wrong))
    a, b = (helper.make_model(g, opset_imports=[helper.make_opsetid("", 23)], ir_version=11) for g in graphs)
    plan = make_plan(a)
    extreme = InputMaker(plan, {}, 0).fill(RECIPES["extremes"], {}).feeds["x"].astype("float32")
    assert {*extreme.reshape(-1).tolist()} == {4.0, -4.0, 0.5, -0.5, 0.0, 1.0}
    assert verdict(tmp_path, a, b, VerifyOptions(cases=("extremes",))).status != EQUAL


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("onnxruntime::Model::Model(onnx::ModelProto&&, const Options&)", "Unsupported model IR version: 99 (of 14)"),
        ("void onnxruntime::{anonymous}::f(std::function<void(int)>) const", "M was 3"),
        ("T onnxruntime::(anonymous namespace)::f(T) [with T = float]", "M was (3)"),
    ],
)
def test_the_source_location_is_removed_from_an_error(function: str, said: str) -> None:
    place = f"/onnxruntime_src/onnxruntime/core/graph/model.cc:256 {function}"
    assert reason(RuntimeError(f"[ONNXRuntimeError] : 1 : FAIL : {place} {said}\n")) == f"1 : FAIL : {said}"
    assert reason(RuntimeError(f"1 : FAIL : Name:'a.cc' Message: {place} {said}")).endswith(f"Message: {said}")


def test_the_end_of_a_long_error_is_kept() -> None:
    """A long error keeps its end, where runtimes name the node."""
    path = "/a/very/long/path" * 30
    said = reason(
        RuntimeError(f"[ONNXRuntimeError] : 1 : FAIL : Load model from {path} failed: Node (conv_1) is wrong")
    )
    assert said == "1 : FAIL : Node (conv_1) is wrong"
    said = reason(RuntimeError(f"Non-zero status code {'x' * 400} while running Node:'conv_1'"))
    assert said.startswith("…")
    assert said.endswith("Node:'conv_1'")
    assert len(said) <= 300
    assert reason(AssertionError()) == "AssertionError"
