"""From multiply and add to a backend that runs FC, and back to the numbers of the original."""

import shutil
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize("with_library", [False, True])
def test_on_the_command_line(model, with_library):
    """Verified by the reference of the plugin, or by the kernel of a library."""
    fused = model.with_name("fused.onnx")
    options = ["--plugin", lite_fc.__file__, "--with", "lite-fc-fuse", "--allow-domain", "lite"]
    if with_library:
        if shutil.which("cc") is None:
            pytest.skip("there is no C compiler (cc) that fc.c could be built with")
        library = model.with_name("fc.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, Path(__file__).with_name("fc.c")], check=True)
        options += ["--custom-op-library", library]
    command = [sys.executable, "-m", "onnxopt", "optimize", model, fused, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    verdict = done.stdout.splitlines()[-1]
    assert verdict.startswith(("✓ verified: ", "✓ equal: "))
    assert verdict.endswith(", with the reference of lite.FC by lite_fc.py") is not with_library
    assert largest_difference(model, fused) < 1e-5
