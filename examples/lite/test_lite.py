"""From multiply and add to a backend that runs FC, and back to the numbers of the original."""

import subprocess
import sys

import lite_fc
import numpy as np
import onnx
import pytest
from backend import Backend, largest_difference
from onnx import parser

import onnxopt
from onnxopt.errors import DomainError

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
mlp (float[N, 4] x) => (float[N, 2] y)
<float[4, 8] w1, float[8] b1, float[8, 8] w2, float[8] b2, float[8, 2] w3>
{
  m1 = MatMul (x, w1)  a1 = Add (m1, b1)  r1 = Relu (a1)
  m2 = MatMul (r1, w2)  a2 = Add (b2, m2)  t = Tanh (a2)
  m3 = MatMul (t, w3)  r3 = Relu (m3)  y = Softmax (r3)
}
"""


@pytest.fixture
def model(tmp_path):
    proto = parser.parse_model(TEXT)
    random = np.random.default_rng(1)
    for info in proto.graph.value_info:
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        proto.graph.initializer.append(
            onnx.numpy_helper.from_array(random.standard_normal(shape).astype("f"), info.name)
        )
    del proto.graph.value_info[:]
    onnx.save(proto, tmp_path / "mlp.onnx")
    return tmp_path / "mlp.onnx"


def test_end_to_end(model):
    fused = model.with_name("fused.onnx")
    result = onnxopt.optimize(model, extra=["lite-fc-fuse"], allow_domains=["lite"])
    onnx.save(result.model, fused)
    assert [n.op_type for n in result.model.graph.node] == ["FC", "Relu", "FC", "Tanh", "MatMul", "Relu", "Softmax"]
    assert [n.attribute[0].i for n in result.model.graph.node if n.op_type == "FC"] == [1, 1]
    assert {(o.domain, o.version) for o in result.model.opset_import} == {("", 17), ("lite", 1)}
    parts = Backend(fused).parts
    assert [[n.op for n in p.nodes] for p in parts if p.supported] == [["lite::FC", "Relu", "lite::FC"], ["Relu"]]
    assert largest_difference(model, fused) < 1e-5


def test_who_optimizes_decides_what_may_enter(model):
    with pytest.raises(DomainError, match=r"pass lite-fc-fuse: .*does not import the domain lite"):
        onnxopt.optimize(model, extra=["lite-fc-fuse"])


def test_on_the_command_line(model):
    fused = model.with_name("fused.onnx")
    plugin = ["--plugin", lite_fc.__file__, "--with", "lite-fc-fuse", "--allow-domain", "lite"]
    command = [sys.executable, "-m", "onnxopt", "optimize", model, fused, *plugin]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "not verified: onnxruntime does not know the operators of lite" in done.stdout + done.stderr
    assert largest_difference(model, fused) < 1e-5
