"""A bound that only the second model has is reached: `onnxopt verify` reads what both do at edges."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxopt.verification import VerifyOptions, verify
from onnxopt.verification.inputs.plan import make_plan

CONSTANTS = "<float zero = {0}, float six = {6}, float five = {5}, float twenty = {20}, float half = {0.5}>"


def model(body: str, kind: str = "float") -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({kind}[N, 4] x) => ({kind}[N, 4] y) {CONSTANTS} {{ {body} }}'
    return parser.parse_model(text)


def status(a: str, b: str, tmp_path: Path) -> str:
    for name, body in (("a", a), ("b", b)):
        onnx.save(model(body), tmp_path / f"{name}.onnx")
    return verify(tmp_path / "a.onnx", tmp_path / "b.onnx", VerifyOptions(cases=("all",))).status


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("y = Relu (x)", "y = Clip (x, zero, six)"),
        ("y = Exp (x)", "c = Min (x, twenty) y = Exp (c)"),
        ("y = Mul (x, half)", "m = Mul (x, half) c = Greater (x, five) n = Abs (x) y = Where (c, n, m)"),
    ],
    ids=["bounded above", "kept from overflow", "another branch"],
)
def test_what_only_the_second_does(a: str, b: str, tmp_path: Path) -> None:
    assert status(a, b, tmp_path) == "different"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("m = Min (x, six) y = Max (m, zero)", "y = Clip (x, zero, six)"),
        ("a = Add (x, half) y = Relu (a)", "n = Neg (x) m = Sub (half, n) y = Relu (m)"),
    ],
)
def test_the_same_bounds_otherwise(a: str, b: str, tmp_path: Path) -> None:
    assert status(a, b, tmp_path) in ("equal", "verified")


def test_edges_that_rounding_made_are_no_others() -> None:
    a, b = (model(f"m = Mul (x, {k}) y = Min (m, twenty)") for k in ("half", "five"))
    plan = make_plan(a)
    assert plan.beside(a) == plan
    (both,) = plan.beside(b).inputs
    assert sorted(both.use.edges) == [4, 40]
    near = model("m = Add (x, zero) n = Mul (m, half) y = Min (n, twenty)")
    assert plan.beside(near).inputs == plan.inputs


def test_integers_are_what_the_first_takes() -> None:
    plan = make_plan(model("y = Neg (x)", "int64"))
    assert plan.beside(model("z = Neg (x) y = Min (z, x)", "int64")).inputs == plan.inputs
