"""Models saved by onnxruntime's optimizer are optimized again, and load again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as rt
from onnx import TensorProto, helper, numpy_helper

import onnxopt


def saved(path: Path) -> Path:
    """Layers over two known leading dims: Gemms between Reshapes, as saved by onnxruntime."""
    rng = np.random.default_rng(0)
    weights = {"u": (4, 4), "a": (4,), "v": (4, 4), "c": (4,), "w": (4, 4), "b": (4,)}
    nodes = [
        helper.make_node("MatMul", ["x", "u"], ["m"], name="first"),
        helper.make_node("Add", ["m", "a"], ["n"], name="first_bias"),
        helper.make_node("Tanh", ["n"], ["o"], name="between"),
        helper.make_node("MatMul", ["o", "v"], ["p"], name="up"),
        helper.make_node("Add", ["p", "c"], ["q"], name="up_bias"),
        helper.make_node("Softmax", ["q"], ["r"], name="act", axis=1),
        helper.make_node("MatMul", ["r", "w"], ["s"], name="down"),
        helper.make_node("Add", ["s", "b"], ["y"], name="down_bias"),
    ]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3, 4])] for name in "xy"]
    tensors = [numpy_helper.from_array(rng.standard_normal(d).astype(np.float32), n) for n, d in weights.items()]
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(helper.make_graph(nodes, "g", *ends, tensors), opset_imports=opset, ir_version=8)
    options = rt.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(path)
    options.graph_optimization_level = rt.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    rt.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return path


def test_the_result_loads_with_all_optimizations(tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx")
    names = {t.name for t in onnx.load(source).graph.initializer}
    assert any(name.startswith("gemm_") for name in names), names
    report = onnxopt.optimize_file(source, tmp_path / "out.onnx")
    assert report.verification is not None and report.verification.status in ("equal", "verified")
    assert not report.rolled_back
    ops = [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node]
    assert ops == ["Reshape", "Gemm", "Tanh", "Gemm", "Reshape", "Softmax", "MatMul", "Add"]
    rt.InferenceSession(str(tmp_path / "out.onnx"), providers=["CPUExecutionProvider"])
