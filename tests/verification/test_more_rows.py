"""Small models that decide on floats, or clip at zero, have more rows in the second case.

Few numbers are near a breakpoint, and few rows may all be below zero in a channel.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxopt.verification import verify

HEAD = (
    '<ir_version: 10, opset_import: ["" : 20]> g (float[n, 8] x) => (float[n, 8] y) <float s = {0.0625}, int8 z = {0}>'
)
STEPS = "h = MatMul (x, WEIGHT) q = QuantizeLinear (h, s, z) y = DequantizeLinear (q, s, z)"
SAME_ROWS = "k = Constant <value_ints = [3, 8]> () r = Expand (x, k) y = Floor (r)"  # of one row, or three


def save(path: Path, body: str, width: int = 8) -> Path:
    model = parser.parse_model(f"{HEAD} {{ {body} }}")
    w = np.random.default_rng(0).standard_normal((8, width)).astype(np.float32)
    half = w.astype(np.float16).astype(np.float32)
    model.graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in (("w", w), ("half", half)))
    onnx.save(model, path)
    return path


def test_a_weight_with_lost_bits_before_a_quantizer_is_found(tmp_path: Path) -> None:
    a = save(tmp_path / "a.onnx", STEPS.replace("WEIGHT", "w"))
    found = verify(a, save(tmp_path / "b.onnx", STEPS.replace("WEIGHT", "half")))
    assert (found.status, found.cases[1].dims) == ("different", {"n": 64}), found.message


@pytest.mark.parametrize(
    ("body", "rows"),
    [("h = MatMul (x, w) y = Tanh (h)", 3), (SAME_ROWS, 3), ("h = MatMul (x, w) y = Floor (h)", 64)],
    ids=["decides nothing", "takes no others", "decides"],
)
def test_more_rows_are_run_only_if_they_give_evidence(body: str, rows: int, tmp_path: Path) -> None:
    path = save(tmp_path / "a.onnx", body)
    found = verify(path, path)
    assert (found.status, found.cases[1].dims) == ("equal", {"n": rows}), found.message


def test_expensive_models_have_few_rows(tmp_path: Path) -> None:
    path = save(tmp_path / "a.onnx", "h = MatMul (x, w) f = Floor (h) y = MatMul (f, v)", 1 << 16)
    model = onnx.load(path)
    wide = np.ones((1 << 16, 8), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(wide, "v"))
    onnx.save(model, path)
    assert verify(path, path).cases[1].dims == {"n": 3}


MUTED = """<ir_version: 10, opset_import: ["" : 20]> g (float[ROWS, 8] x) => (float[ROWS, 8] y)
    <float[8] low = {0, 0, 0, 0, 0, 0, 0, -2.5}> { h = MatMul (x, w) b = Add (h, low) y = Relu (b) }"""


@pytest.mark.parametrize("rows", ["n", "rows", ""], ids=["batch", "other name", "no name"])
def test_a_channel_that_a_relu_hides_in_most_rows(rows: str, tmp_path: Path) -> None:
    w = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)
    for name, last in (("a", 1.0), ("b", 1.01)):
        model = parser.parse_model(MUTED.replace("ROWS", rows or "n"))
        model.graph.initializer.append(numpy_helper.from_array(w * np.array([1] * 7 + [last], np.float32), "w"))
        if not rows:
            model.graph.input[0].type.tensor_type.shape.dim[0].Clear()
        onnx.save(model, tmp_path / f"{name}.onnx")
    found = verify(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert (found.status, [*found.cases[1].dims.values()]) == ("different", [64]), found.message
    assert verify(tmp_path / "a.onnx", tmp_path / "a.onnx").status == "equal"
