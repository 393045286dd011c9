"""Small numbers beside large ones, such as scores beside boxes: each are held against their own range."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxopt.verification import Verification, VerifyOptions, verify

CONSTANTS = {"k": 640, "near": 1.0003, "j": 0.1, "m": 0.2, "l": 0.3}
JOINED = "y = Concat <axis = 1> (q, r)"


def judge(tmp_path: Path, a: str, b: str, kind: str = "float", *, pieces: bool = False) -> Verification:
    for name, body in (("a", a), ("b", b)):
        text = f"({kind}[N, 4, 8] b, {kind}[N, 4, 8] s) => (y) {{ p = Sigmoid (b) q = Mul (p, k) {body} }}"
        model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
        for constant, number in CONSTANTS.items():
            array = np.array(number, np.float16 if kind == "float16" else np.float32)
            model.graph.initializer.append(numpy_helper.from_array(array, constant))
        onnx.save(model, tmp_path / f"{name}.onnx")
    return verify(tmp_path / "a.onnx", tmp_path / "b.onnx", VerifyOptions(pieces=pieces))


@pytest.mark.parametrize(
    ("kind", "wrong", "end"),
    [
        ("float", "t = Mul (s, near) r = Sigmoid (t)", JOINED),
        ("float16", "t = Neg (s) r = Sigmoid (t)", JOINED),
        ("float", "t = Mul (s, near) r = Sigmoid (t)", "c = Concat <axis = 1> (q, r) y = Transpose (c)"),
        ("float16", "t = Neg (s) r = Sigmoid (t)", "c = Concat <axis = 1> (q, r) y = Cast <to = 1> (c)"),
    ],
    ids=["scaled", "half", "turned", "widened"],
)
def test_scores_beside_boxes_are_held_against_the_range_of_scores(
    kind: str, wrong: str, end: str, tmp_path: Path
) -> None:
    v = judge(tmp_path, f"r = Sigmoid (s) {end}", f"{wrong} {end}", kind)
    assert v.status == "different", v.message
    assert v.places[0].value == "r"


def test_rounding_is_not_blamed_for_what_cancels_beside_large_numbers(tmp_path: Path) -> None:
    terms = f"u = Mul (s, j) v = Mul (s, m) w = Mul (s, l) %s {JOINED}"
    v = judge(tmp_path, terms % "a = Add (u, v) r = Sub (a, w)", terms % "a = Sub (u, w) r = Add (a, v)")
    assert v.status == "verified in pieces", v.message


@pytest.mark.parametrize(
    ("a", "b", "end"),
    [
        ("t = Sin (s)", "i = Sin (s) t = Mul (i, k)", "h = Cast <to = 9> (t) r = Cast <to = 1> (h)"),
        ("t = Sin (s)", "i = Sin (s) t = Flatten (i)", "h = Flatten (t) o = Shape (s) r = Reshape (h, o)"),
    ],
    ids=["boolean", "shape"],
)
def test_what_is_handed_on_may_be_held_otherwise_where_nothing_comes_of_it(
    a: str, b: str, end: str, tmp_path: Path
) -> None:
    v = judge(tmp_path, f"{a} {end} {JOINED}", f"{b} {end} {JOINED}", pieces=True)
    assert v.status == "verified in pieces", v.message
