"""Outputs without elements for any input are compared by shape and type."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxopt.verification.model.facts import always_empty
from tests.verification.pairs import verdict

HEAD = """<ir_version: 9, opset_import: ["" : 17]> g (float[n, 4] x, float[0, 4] w) => (float[n, 4] y, float[SHAPE] z)
    <int64[1] none = {0}, int64[1] one = {1}, int64[1] many = {100}, int64[1] more = {200}, float two = {2},
     float three = {3}>"""
EMPTY = "y = Relu (x) s = Slice (x, none, none, one) z = Mul (s, two)"
FAR = "y = Relu (x) s = Slice (x, many, more, none) z = Mul (s, two)"  # not empty for many rows, also below
MANY = "y = Relu (x) h = Shape <start = 0, end = 1> (x) k = Div (h, many) s = Slice (x, none, k, one) z = Mul (s, two)"
GIVEN = "y = Relu (x) z = Mul (w, two)"


def text(nodes: str) -> str:
    return f"{HEAD.replace('SHAPE', '0, 4' if 'more' in nodes else 'A, B')} {{ {nodes} }}"


@pytest.mark.parametrize(
    ("one", "other", "status"),
    [
        (EMPTY, EMPTY.replace("two", "three"), "equal"),
        (EMPTY, "y = Relu (x) z = Slice (x, none, none, one)", "equal"),
        (EMPTY, MANY, "inconclusive"),
        (FAR, FAR.replace("two", "three"), "inconclusive"),
        (EMPTY, EMPTY.replace("(x) s", "(x) a = Abs (x) b = Add (a, x) s").replace("Relu (x)", "Abs (x)"), "different"),
        (EMPTY, "y = Relu (x) k = Constant <value_ints = [0, 3]> () z = ConstantOfShape (k)", "different"),
    ],
    ids=["factor", "no factor", "only in one", "only as the file says", "another output", "another shape"],
)
def test_verdicts_on_always_empty_outputs(one: str, other: str, status: str, tmp_path: Path) -> None:
    found = verdict(tmp_path, text(one), text(other))
    assert found.status == status, found.message


@pytest.mark.parametrize(("nodes", "names"), [(EMPTY, {"z"}), (FAR, set()), (GIVEN, set())])
def test_outputs_proved_empty_by_nodes(nodes: str, names: set[str], tmp_path: Path) -> None:
    onnx.save(parser.parse_model(text(nodes)), tmp_path / "a.onnx")
    assert always_empty(tmp_path / "a.onnx") == names


LOOPING = """<ir_version: 9, opset_import: ["" : 17]> g (float[n, 4] x, bool open) => (float[n, 4] y, float[A, n, 4] z)
    <int64 none = {0}, int64 one = {1}, bool never = {0}, bool ever = {1}, float two = {2}, float three = {3}> {
    y, s = Loop (TRIPS, BEGINS, x) <body = b (int64 i, bool c, float[n, 4] v)
        => (bool d, float[n, 4] u, float[n, 4] w) {
        d = Identity (c) u = Mul (v, two) w = Add (v, two) }> z = Identity (s) }"""


@pytest.mark.parametrize(
    ("trips", "begins", "is_empty"),
    [
        ("none", "", True),
        ("none", "ever", True),
        ("", "never", True),
        ("one", "never", True),
        ("none", "open", True),
        ("one", "", False),
        ("one", "open", False),
    ],
)
def test_the_scan_output_of_a_loop_without_iterations_is_always_empty(
    trips: str, begins: str, is_empty: bool, tmp_path: Path
) -> None:
    model = LOOPING.replace("TRIPS", trips).replace("BEGINS", begins)
    onnx.save(parser.parse_model(model), tmp_path / "a.onnx")
    assert always_empty(tmp_path / "a.onnx") == ({"z"} if is_empty else set())


def test_the_body_of_a_loop_without_iterations_may_differ(tmp_path: Path) -> None:
    model = LOOPING.replace("TRIPS", "none").replace("BEGINS", "")
    assert verdict(tmp_path, model, model.replace("Add (v, two)", "Add (v, three)")).status == "equal"
    assert verdict(tmp_path, model, model.replace("Identity (s)", "Cast <to = 1> (s)")).status == "equal"
