"""`--strip-qdq` removes quantizers, weights become floats, and verification compares with the stripped original."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from onnxopt.verification.model.views import pass_through
from tests.cli.conftest import Run, operators

TEXT = """
<ir_version: 9, opset_import: ["" : 17]>
g (float[N, 4] x, bool c) => (float[N, 4] y, float[N, 4] z, float[N, 4] other)
<float s = {0.05}, uint8 zp = {128}, int8[2, 4] w = {1, -2, 3, -4, 5, 6, 7, -128}, float[4] ws = {0.1, 0.2, 0.3, 0.4},
 int8[4] wz = {0, 1, 0, 2}, int32[4] bq = {10, 20, -30, 40}, float bs = {0.02}, float s2 = {0.07}, float same = {0.07}>
{
  [q0] xq = QuantizeLinear (x, s, zp)
  [d0] xd = DequantizeLinear (xq, s, zp)
  [dw] wd = DequantizeLinear <axis = 1> (w, ws, wz)
  [db] b = DequantizeLinear (bq, bs)
  h = Concat <axis = 0> (xd, wd)
  i = Add (h, b)
  [q1] iq = QuantizeLinear (i, s, zp)
  [d1] y = DequantizeLinear (iq, s, zp)
  [q2] jq = QuantizeLinear (i, s2, zp)
  z = If (c) <
    then_branch = t () => (float[N, 4] r) { [d2] r = DequantizeLinear (jq, same, zp) },
    else_branch = e () => (float[N, 4] v) { v = Neg (xd) }
  >
  [scaled] other = DequantizeLinear (xq, s2, zp)
}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "in.onnx")
    return tmp_path / "in.onnx"


@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_quantizers_go(model: Path, run: Run, level: str) -> None:
    done = run("optimize", model, "out.onnx", "--strip-qdq", level)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout + done.stderr
    assert (
        "--strip-qdq changes numbers: 3 pairs of QuantizeLinear and DequantizeLinear less, 2 weights in floats" in said
    )
    assert "`other` stays quantized: it is scaled otherwise than it was quantized" in said
    assert "✓ equal" in said
    result = onnx.load(model.parent / "out.onnx")
    onnx.checker.check_model(result, full_check=True)
    assert operators(model.parent / "out.onnx").count("DequantizeLinear") == 1
    held = [numpy_helper.to_array(t) for t in result.graph.initializer if list(t.dims) == [2, 4]]
    if level == "-O0":
        expected = np.array([[0.1, -0.6, 0.9, -2.4], [0.5, 1.0, 2.1, -52.0]], np.float32)
        np.testing.assert_allclose(held[0], expected, rtol=1e-6)
    assert run("verify", model, "out.onnx", "--strip-qdq", "-q").returncode == 0
    assert run("verify", model, "out.onnx", "-q").returncode == 1, "as they are, they differ"


def test_kept_quantizers_stay(model: Path, run: Run) -> None:
    done = run("optimize", model, "out.onnx", "--strip-qdq", "--keep", "d1,w", "-O0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 pairs of QuantizeLinear and DequantizeLinear less, 1 weight in floats" in done.stdout + done.stderr
    assert {n.name for n in onnx.load(model.parent / "out.onnx").graph.node} >= {"q1", "d1", "dw", "scaled"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--strip-qdq", "--keep", "q11"], "no quantizer reads or makes 'q11', or is called so\nhint: did you mean q1"),
        (["--keep", "q1"], "--keep is for --strip-qdq"),
    ],
)
def test_wrong_usage(model: Path, run: Run, args: list[str], message: str) -> None:
    done = run("optimize", model, "out.onnx", *args)
    assert done.returncode == 2
    assert message in done.stderr


def test_verification_removes_the_same_quantizers(model: Path) -> None:
    """Verification removes the same pairs from the original as the pass.

    A pair with a scale in between is no pair in both.
    """
    proto = onnx.load(model)
    pass_through(proto, ["q1"])
    makers = {n.output[0]: (n.op_type, n.input[0]) for n in proto.graph.node}
    (branches,) = (node for node in proto.graph.node if node.op_type == "If")
    makers |= {n.output[0]: (n.op_type, n.input[0]) for n in branches.attribute[0].g.node}
    assert makers["xd"] == ("Identity", "x")
    assert makers["r"] == ("Identity", "i")
    assert {makers[name][0] for name in ("y", "other", "wd", "b")} == {"DequantizeLinear"}
    assert "xq" in makers, "`other` reads its steps"


def test_no_case_is_made_for_removed_quantizers(tmp_path: Path, run: Run) -> None:
    """No case is made for removed quantizers: the verdict is that of the model of floats.

    Steps would add cases near their edges.
    """
    steps = "a = QuantizeLinear (x, s) b = DequantizeLinear (a, s)"
    text = '<ir_version: 9, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y) <float s = {0.05}>'
    onnx.save(onnx.parser.parse_model(f"{text} {{ {steps} c = Relu (b) y = Neg (c) }}"), tmp_path / "q.onnx")
    onnx.save(onnx.parser.parse_model(f"{text} {{ c = Relu (x) d = Identity (c) y = Neg (d) }}"), tmp_path / "f.onnx")
    commands = ("q.onnx", "out.onnx", "--strip-qdq"), ("f.onnx", "out.onnx")
    verdicts = [run("optimize", *command).stdout.splitlines()[-1] for command in commands]
    assert verdicts[0] == verdicts[1]
