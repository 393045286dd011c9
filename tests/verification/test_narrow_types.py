"""Inputs and outputs of types that numpy does not have: they are fed and compared like others."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from onnxopt.verification import DIFFERENT, EQUAL, verify
from onnxopt.verification.run import reason


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
def test_they_are_fed_and_compared(kind: str, tmp_path: Path) -> None:
    number = TensorProto.DataType.Value(kind)
    a, b = (save(tmp_path / name, number, op) for name, op in (("a", "Mul"), ("b", "Add")))
    found = verify(a, a)
    assert (found.status, len(found.cases)) == (EQUAL, 2), found.message
    assert found.cases[0].outputs[0].dtype.replace("_", "") == kind.lower()
    assert verify(a, b).status == DIFFERENT


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("onnxruntime::Model::Model(onnx::ModelProto&&, const Options&)", "Unsupported model IR version: 99 (of 14)"),
        ("void onnxruntime::{anonymous}::f(std::function<void(int)>) const", "M was 3"),
        ("T onnxruntime::(anonymous namespace)::f(T) [with T = float]", "M was (3)"),
    ],
)
def test_of_an_error_its_place_in_the_source_is_left_out(function: str, said: str) -> None:
    place = f"/onnxruntime_src/onnxruntime/core/graph/model.cc:256 {function}"
    assert reason(RuntimeError(f"[ONNXRuntimeError] : 1 : FAIL : {place} {said}\n")) == f"1 : FAIL : {said}"
    assert reason(RuntimeError(f"1 : FAIL : Name:'a.cc' Message: {place} {said}")).endswith(f"Message: {said}")


def test_of_a_long_error_the_end_is_kept() -> None:
    """Where a runtime names the node."""
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
