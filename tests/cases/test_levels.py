"""What depends on the level inside of a pass: cases know one level only."""

from __future__ import annotations

from pathlib import Path

import onnx

import onnxopt
from onnxopt.rollback import optimize_or_roll_back

POOL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 2, H, W] x) => (float[N, 2, H, W] y, bool[N, 2, H, W] z) <float low = {-inf}>
{
  none = Less (x, x)
  a = Where (none, x, low)
  y, i = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a)
  b = Relu (x)
  c, kept = Dropout (b)
  d, e = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (c)
  z = IsInf (d)
}"""


def test_indices_nobody_reads(tmp_path: Path) -> None:
    """The kernel without them makes the lowest float of windows of -inf: not at -O1, and where it shows, only there."""
    onnx.save(onnx.parser.parse_model(POOL.replace("{-inf}", "{-3}")), tmp_path / "in.onnx")
    model = onnx.load(tmp_path / "in.onnx")
    model.graph.initializer[0].float_data[:] = [float("-inf")]
    onnx.save(model, tmp_path / "in.onnx")
    exact = onnxopt.optimize_file(tmp_path / "in.onnx", tmp_path / "1.onnx", onnxopt.OptimizeOptions(level=1))
    assert not exact.rolled_back and _outputs(tmp_path / "1.onnx") == [2, 2]
    report = optimize_or_roll_back(
        tmp_path / "in.onnx", tmp_path / "2.onnx", onnxopt.OptimizeOptions(), verify_options=onnxopt.VerifyOptions()
    )
    assert [str(left.site) for left in report.rolled_back] == ["dead-code@y"], report.rolled_back
    assert _outputs(tmp_path / "2.onnx") == [2, 1]


def _outputs(path: Path) -> list[int]:
    return [len(node.output) for node in onnx.load(path).graph.node if node.op_type == "MaxPool"]
