"""The noise of whole outputs is measured only as far as a difference needs an explanation."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxopt.verification import VerifyOptions
from onnxopt.verification.inputs.cases import OWN
from onnxopt.verification.inputs.feeding import Data
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.verification.job import Job
from onnxopt.verification.judge import Judge
from onnxopt.verification.verdict import largest

MODEL = """<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z)
<float k = {9.0}> { z = Sin (x) a = Mul (z, k) b = Sin (a) c = Mul (b, k) y = Sin (c) }"""
CASES = OWN[:2]
NOTHING = {"y": 0.0, "z": 0.0}
RUNS = 10  # of two cases: two sets of weights, each with two sets of inputs; and one run in float64


@pytest.fixture
def said() -> list[str]:
    """Return the list of the judge's reported states."""
    return []


@pytest.fixture
def judge(said: list[str], tmp_path: Path) -> Judge:
    path = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(MODEL), path)
    judge = Judge(said.append)
    judge.open(Job(str(path), VerifyOptions(), ("the original", "the result")))
    judge.plan(make_plan(onnx.load(path)))
    for recipe in CASES:
        judge.original(recipe, Data({}))
    judge.result(str(path), VerifyOptions())
    said.clear()
    return judge


@pytest.mark.parametrize(
    ("enough", "told", "runs"),
    [
        ({"y": 1e-12, "z": 0.0}, "", 2),  # one run for each case
        ({"y": 1.0, "z": 0.0}, "", RUNS),
        ({"y": 1e-12}, "", RUNS),  # nothing is known of output z
        ({}, "", RUNS),
        ({"y": 1e-12, "z": 1.0}, "y", 1),  # output z was not reported
        ({"y": 1.0, "z": 0.0}, "y", RUNS // 2),  # not yet explained, in the first case
    ],
)
def test_the_measurement_ends_once_noise_explains_the_difference(
    enough: dict[str, float], told: str, runs: int, judge: Judge, said: list[str]
) -> None:
    found = judge.noise([r.name for r in CASES], enough, told)
    assert found.keys() == {r.name for r in CASES}
    assert all(found[r.name]["y"] > 1e-12 for r in CASES[: 1 if told else 2])
    assert sum(state.startswith("running") for state in said) == runs


def test_noise_known_before_counts(judge: Judge, said: list[str]) -> None:
    names = [r.name for r in CASES]
    judge.shaken = {names[0]: {"y": 0.5}}
    assert judge.noise(names, {"y": 0.5, "z": 1.0}, "y") == {names[0]: {"y": 0.5, "z": 0.0}, names[1]: NOTHING}
    assert not said
    found = judge.noise(names, {"y": 0.6, "z": 0.0}, "y")
    assert found[names[0]]["y"] >= 0.5
    assert said  # known noise is too small


def test_noise_may_be_measured_on_the_result(judge: Judge, said: list[str]) -> None:
    names = [r.name for r in CASES]
    found = judge.noise(names, {"y": 1.0, "z": 0.0}, "y", of_result=True)
    assert not any("the original" in state for state in said) and len(said) > RUNS // 2
    assert found == judge.noise(names, {"y": 1.0, "z": 0.0}, "y")  # original and result are the same here
    said.clear()
    judge.noise(names, {"y": 1e-12}, "y", of_result=True)
    assert sum(state.startswith("running") for state in said) == 2, "as it is, and with other last bits"


def test_noise_explains_the_largest_difference_of_all_cases() -> None:
    assert largest([("y", 1e-3), ("z", 0.0), ("y", 1e-2), ("z", 0.0)]) == {"y": 1e-2, "z": 0.0}
