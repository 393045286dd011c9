"""Breakpoints of the second model alone are reached: `onnxopt verify` reads those of both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxopt.verification import VerifyOptions, verify
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.verification.two_files import compare_files
from tests.verification.pairs import own_check, with_constants

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
def test_a_breakpoint_of_the_second_model_alone_is_reached(a: str, b: str, tmp_path: Path) -> None:
    assert status(a, b, tmp_path) == "different"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("m = Min (x, six) y = Max (m, zero)", "y = Clip (x, zero, six)"),
        ("a = Add (x, half) y = Relu (a)", "n = Neg (x) m = Sub (half, n) y = Relu (m)"),
    ],
)
def test_equal_bounds_in_another_form_are_right(a: str, b: str, tmp_path: Path) -> None:
    assert status(a, b, tmp_path) in ("equal", "verified")


def test_breakpoints_equal_up_to_rounding_are_one() -> None:
    a, b = (model(f"m = Mul (x, {k}) y = Min (m, twenty)") for k in ("half", "five"))
    plan = make_plan(a)
    assert plan.beside(a) == plan
    (both,) = plan.beside(b).inputs
    assert sorted(both.use.edges) == [4, 40]
    near = model("m = Add (x, zero) n = Mul (m, half) y = Min (n, twenty)")
    assert plan.beside(near).inputs == plan.inputs


def test_integer_inputs_keep_the_range_of_the_first_model() -> None:
    plan = make_plan(model("y = Neg (x)", "int64"))
    assert plan.beside(model("z = Neg (x) y = Min (z, x)", "int64")).inputs == plan.inputs


COUNTS = "float[n, 4] x, int64 t"
PICKS = "int64[n] t"
INTEGERS = """<int64 k = {77}, int64 many = {700}, int64 none = {0}, int64 rows = {3}, float one = {1},
    float[3, 4] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}>"""
COUNTED, PICKED = "f = Cast <to = 1> (t) y = Mul (x, f)", "y = Gather (table, t)"
OTHERWISE = "f = Cast <to = 1> (t) q = {} (t, {}) c = Where (q, one, f) y = Mul (x, c)"


@pytest.mark.parametrize(
    ("given", "a", "b", "said"),
    [
        (COUNTS, COUNTED, OTHERWISE.format("Equal", "k"), "different"),
        (COUNTS, COUNTED, OTHERWISE.format("Greater", "many"), "different"),
        (COUNTS, COUNTED, "q = Less (t, none) f = Cast <to = 1> (t) n = Neg (x) p = Neg (f) y1 = Mul (x, f)"
         " y2 = Mul (n, p) y = Where (q, y2, y1)", "equal"),
        (PICKS, PICKED, "i = Max (t, none) y = Gather (table, i)", "different"),
        (PICKS, PICKED, "i = Abs (t) y = Gather (table, i)", "different"),
        (PICKS, PICKED, "q = Less (t, none) m = Add (t, rows) i = Where (q, m, t) y = Gather (table, i)", "equal"),
    ],
    ids=["a count", "a large one", "either sign", "from the end", "as if from the start", "from the start"],
)  # fmt: skip
def test_integers_compared_in_the_second_model_only(given: str, a: str, b: str, said: str, tmp_path: Path) -> None:
    for name, body in (("a", a), ("b", b)):
        text = f'<ir_version: 8, opset_import: ["" : 17]> g ({given}) => (float[n, 4] y) {INTEGERS} {{ {body} }}'
        onnx.save(parser.parse_model(text), tmp_path / f"{name}.onnx")
    found = compare_files(tmp_path / "a.onnx", tmp_path / "b.onnx", VerifyOptions(cases=("all",)))
    assert found.status == said, found.message
    assert compare_files(tmp_path / "a.onnx", tmp_path / "a.onnx", VerifyOptions(cases=("all",))).status == "equal"


def test_inputs_that_become_sizes_get_no_breakpoints_of_the_second_model() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (int64 x) => (float[n] y) <int64 k = {700}, int64[1] a = {0}, '
    text += "float o = {1}> { BODY u = Unsqueeze (s, a) y = Expand (o, u) }"
    plan, other = (parser.parse_model(text.replace("BODY", b)) for b in ("s = Abs (x)", "s = Min (x, k)"))
    assert make_plan(plan).beside(other).inputs == make_plan(plan).inputs


@pytest.mark.parametrize("dims", ["n, 3", "2, 4"], ids=["rows of any number", "few rows"])
@pytest.mark.parametrize("row", [1, 17, 49])
def test_a_changed_row_of_a_table_is_indexed(row: int, dims: str, tmp_path: Path) -> None:
    """The embedding of one word differs: no usual case need have the word."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (int64[{dims}] x) => (float[{dims}, 8] y)
    {{ e = Gather (table, x) y = Tanh (e) }}"""
    table = np.random.default_rng(row).standard_normal((50, 8)).astype(np.float32)
    other = table.copy()
    other[row] += 1
    found = own_check(tmp_path, with_constants(text, {"table": table}), with_constants(text, {"table": other}))
    assert (found.status, [p.value for p in found.places]) == ("different", ["e"]), found.message
