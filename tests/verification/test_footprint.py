"""The minimum memory of a run is computed from shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxopt.verification.inputs.planning import least

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
KIB = 1 << 10


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(float[n] x) => (float[m] y) { y = Relu (x) }", 4 * KIB),
        ("(float[n] x) => (float[m] y) { a = Relu (x) b = Neg (a) c = Abs (b) y = Exp (c) }", 8 * KIB),
        ("(float[n] x) => (float[m] y) { a = Relu (x) b = Neg (a) c = Abs (b) y = Mul (c, a) }", 12 * KIB),
        ("(float[n] x) => (float[m] y) { a = Cast <to = 11> (x) y = Cast <to = 1> (a) }", 12 * KIB),
        ("(float[n] x) => (float[m] y) { a = Concat <axis = 0> (x, x) y = ReduceMax (a) }", 8 * KIB + 4),
        ("(float[n] x) => (float[m] y) { a = NonZero (x) y = Neg (x) }", 4 * KIB),  # only a run knows the size
        ("(float[n] x) => (float[m] y) { a = d.f (x) y = Neg (x) }", 0),
    ],
)
def test_bytes_of_values_alive_at_once(text: str, found: int, tmp_path: Path) -> None:
    onnx.save(parser.parse_model(f"{HEAD} g {text}"), tmp_path / "m.onnx")
    assert least(str(tmp_path / "m.onnx"), {"x": np.zeros(KIB, np.float32)}) == found


def test_an_unreadable_model_has_no_minimum(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    assert least(str(tmp_path / "m.onnx"), {}) == 0
