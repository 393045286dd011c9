"""From multiply and add to a backend that runs FC, and back to the numbers of the original."""

import subprocess
import sys

import lite_fc
import mlp
import onnx
import pytest
from backend import Backend, largest_difference

import onnxopt
from onnxopt.errors import DomainError


@pytest.fixture
def model(tmp_path):
    mlp.write(tmp_path / "mlp.onnx")
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
