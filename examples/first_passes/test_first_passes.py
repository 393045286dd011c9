"""Tests of the three passes: run with pytest in this folder, where onnxopt is installed."""

import numpy as np
import onnx
import onnx.parser
from flops import count_flops
from hard_swish import HardSwish
from qdq import QdqMatMul

import onnxopt


def model(body, weights="", opset=17):
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[N, 4] x) => (float[N, 4] y) {weights} {{ {body} }}'
    )


def operators(proto):
    return [node.op_type for node in proto.graph.node]


def test_hard_swish():
    text = "h = HardSigmoid <alpha = {}, beta = {}> (x) y = Mul (h, x)"
    written_out = model(text.format(0.16666667, 0.5))
    result = onnxopt.optimize(written_out, pipeline="hard-swish")
    assert operators(result.model) == ["HardSwish"]
    assert operators(onnxopt.optimize(model(text.format(0.2, 0.5)), pipeline="hard-swish").model)[-1] == "Mul"
    old = onnxopt.read_model(model(text.format(0.16666667, 0.5), opset=13))
    report = HardSwish()(old)
    assert list(report.of("hard-swish").rules["hard_swish"].declined) == ["HardSwish came with opset 14"]


def test_qdq_is_verified_with_its_tolerance_and_settles(tmp_path):
    w = onnx.numpy_helper.from_array(np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32) / 2, "w")
    proto = model("a = MatMul (x, w) b = Tanh (a) y = MatMul (b, w)", "<float[4, 4] w>")
    proto.graph.initializer.append(w)
    onnx.save(proto, tmp_path / "in.onnx")
    files = (tmp_path / "in.onnx", tmp_path / "out.onnx")
    report = onnxopt.optimize(*files, extra=["qdq-matmul"], config={"qdq-matmul.step": 0.02}).report
    assert report.verification.status == "verified"
    assert report.verification.message.endswith("; qdq-matmul declares 0.05")
    pair = ["QuantizeLinear", "DequantizeLinear"]
    assert operators(onnx.load(tmp_path / "out.onnx")) == ["MatMul", *pair, "Tanh", "MatMul", *pair]
    again = onnxopt.load(tmp_path / "out.onnx")
    assert QdqMatMul()(again).of("qdq-matmul").hits == 0
    assert again.version == 0


def test_flops():
    proto = model("a = MatMul (x, w) y = Relu (a)", "<float[4, 4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}>")
    loaded = onnxopt.read_model(proto)
    rules = count_flops(loaded).of("count-flops").rules
    assert {what: counted.hits for what, counted in rules.items()} == {"MatMul": 2 * 4 * 4}
    assert loaded.version == 0
