"""The probe uses only numbers that a run of the model can make."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxopt.verification import PROVEN
from onnxopt.verification.coverage.cones import Cone
from onnxopt.verification.coverage.gaps import gaps
from onnxopt.verification.coverage.probe import beyond, near, probe
from onnxopt.verification.pieces.walk import Walk
from onnxopt.verification.rounding import Difference
from tests.verification.pairs import opened, own_check

HEAD = """<ir_version: 9, opset_import: ["" : 17]> g (float[n, 8] x) => (float[n, 8] y)
    <float two = {2}, float three = {3}, float high = {2000}, float higher = {9000},
     float low = {-2000}, float lower = {-9000}>"""
CHOSEN = "n = Neg (x) y = Where (c, x, n)"


@pytest.mark.parametrize(
    ("made", "a", "b"),
    [
        ("m = Sigmoid (x) t = Mul (m, two)", "Less (t, three)", "Less (t, high)"),
        ("e = Exp (x) t = ReduceMean <keepdims = 0> (e)", "Greater (t, low)", "Greater (t, lower)"),
        ("m = Tanh (x) t = Add (m, two)", "Less (t, high)", "Greater (t, low)"),
    ],
    ids=["scaled", "never negative", "both"],
)
def test_a_difference_at_unreachable_numbers_is_no_coverage_gap(made: str, a: str, b: str, tmp_path: Path) -> None:
    """A difference at unreachable numbers does not matter.

    Bounds are computed through nodes: no number is beyond two times a Sigmoid.
    """
    found = own_check(tmp_path, *(f"{HEAD} {{ {made} c = {asked} {CHOSEN} }}" for asked in (a, b)))
    assert found.status in PROVEN, found.message


@pytest.mark.parametrize(
    ("a", "b"), [("Less (t, high)", "Less (t, higher)"), ("Greater (t, low)", "Greater (t, lower)")]
)
def test_a_difference_at_reachable_numbers_is_a_coverage_gap(a: str, b: str, tmp_path: Path) -> None:
    found = own_check(tmp_path, *(f"{HEAD} {{ t = Mul (x, two) c = {asked} {CHOSEN} }}" for asked in (a, b)))
    assert found.status in ("inconclusive", "different"), found.message


def walked(folder: Path, a: str, b: str, case: np.ndarray) -> Walk:
    runners = []
    for name, body in (("a", a), ("b", b)):
        onnx.save(parser.parse_model(f"{HEAD} {{ {body} }}"), folder / name)
        runners.append(opened(str(folder / name), name))
    walk = Walk(*runners, [{"x": case}], {"x": "tensor(float)"})
    walk.run()
    return walk


def cone(folder: Path, a: str, b: str, value: str) -> Cone:
    found = Cone.of(walked(folder, a, b, np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)), value)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("a", "b", "agrees"),
    [
        ("y = Min (x, three)", "y = Identity (x)", False),
        ("y = Mul (x, two)", "y = Add (x, x)", True),
        ("s = Sub (x, x) y = Mul (s, two)", "y = Sub (x, x)", None),
    ],
    ids=["differs", "agrees", "all zero"],
)
def test_verdicts(a: str, b: str, agrees: bool | None, tmp_path: Path) -> None:
    assert probe(cone(tmp_path, a, b, "y"), partial(beyond, points=[2.0, 4.0], factors=(8.0,))) is agrees


@pytest.mark.parametrize(
    ("n", "differs"),
    [("n = Mul (x, two)", []), ("n = Mul (x, higher)", ["y"])],
    ids=["rounding", "another value"],
)
def test_noise_is_measured_at_the_first_differing_value(
    n: str, differs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise is measured at the value where the difference begins.

    A value that agrees on A's operands adds no difference.
    """
    asked: list[list[str]] = []
    noise = Walk.noise

    def noted(self: Walk, wanted: list[str]) -> dict[str, list[Difference]]:
        asked.append([*wanted])
        return noise(self, wanted)

    monkeypatch.setattr(Walk, "noise", noted)
    rest = "r = Relu (n) s = Mul (r, three) y = Min (s, two)"  # two everywhere
    case = np.linspace(2, 3, 16, dtype=np.float32).reshape(2, 8)
    a = f"t = Add (x, higher) u = Sub (t, higher) n = Mul (u, two) {rest}"
    walk = walked(tmp_path, a, f"{n} {rest}", case)
    found = [gap.why.split("`")[1] for gap in gaps(walk) if "` is computed from a value that differs" in gap.why]
    assert (found, asked) == (differs, [["n"]])


def test_samples_are_within_what_operators_make(tmp_path: Path) -> None:
    """Samples of whole numbers stay whole, and samples of bounded values stay within the bounds."""
    found = cone(tmp_path, "f = Floor (x) e = Exp (x) y = Add (f, e)", "f = Floor (x) e = Exp (x) y = Add (e, f)", "y")
    known = {name: found.walk.original.values[0][name] for name in found.entries}
    assert sorted(known) == ["e", "f"]
    samples = [*beyond(found, known, [0.25, 3.5], (-8.0, 8.0)), *near(found, known, 4)]
    assert len(samples) == 10
    assert all((s["f"] == np.round(s["f"])).all() for s in samples if "f" in s)
    assert all(s["e"].min() >= 0 for s in samples)
    assert max(s["e"].max() for s in samples) > 8
