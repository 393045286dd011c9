"""Random inputs depend on the seed only, stay in range, and are evenly spread."""

from __future__ import annotations

import pickle
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxopt.verification import rounding
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.verification.rounding import Draws
from onnxopt.worker.process import child
from tests.samples import ROOT

MANY = 100_000
EXPECTED = {
    "normal": [-0.4285142123699188, 0.5418355464935303, -1.4330971240997314],
    "uniform": [0.9713054320946026, 0.4039108979737267],
    "integers": [22, 86, 48, 19],
    "flags": [True, False, False, True, True, False],
    "orders": [[2, 3, 0, 1], [1, 0, 3, 2]],
}
SHAPES = ([], [0], [1], [2, 3], [0, 4], [7])


def test_random_numbers_are_the_same_on_every_platform() -> None:
    found = Draws(7, "x")
    assert found.normal([3]).tolist() == EXPECTED["normal"]
    assert found.uniform([2]).tolist() == EXPECTED["uniform"]
    assert found.integers(-5, 100, [4]).tolist() == EXPECTED["integers"]
    assert found.flags([6]).tolist() == EXPECTED["flags"]
    assert found.orders(2, 4).tolist() == EXPECTED["orders"]


def test_each_seed_has_its_own_numbers() -> None:
    streams = [Draws(0), Draws(1), Draws(0, 0), Draws(0, 1), Draws("y")]
    assert len({s.normal([2]).tobytes() for s in streams}) == len(streams)
    stream = Draws(0)
    assert stream.normal([2]).tolist() != stream.normal([2]).tolist()


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_and_types(shape: list[int]) -> None:
    rounding = Draws(0)
    found = {
        np.float32: rounding.normal(shape),
        np.float64: rounding.uniform(shape),
        np.int64: rounding.integers(0, 9, shape),
        np.bool_: rounding.flags(shape),
    }
    for kind, values in found.items():
        assert isinstance(values, np.ndarray)
        assert (values.dtype, list(values.shape)) == (kind, shape)


def test_normal() -> None:
    found = Draws(3).normal([MANY])
    assert abs(found.mean()) < 0.01
    assert abs(found.std() - 1) < 0.01
    assert np.abs(found).max() <= 3
    assert abs((np.abs(found) < 1).mean() - 0.68) < 0.02
    assert len(np.unique(found)) > 0.98 * MANY  # another summation order would decide ties differently


def test_uniform_and_integers() -> None:
    found = Draws(3).uniform([MANY])
    assert (0 <= found.min() < 1e-3, 1 - 1e-3 < found.max() < 1) == (True, True)
    assert abs(found.mean() - 0.5) < 0.01
    numbers = Draws(3).integers(-2, 3, [MANY])
    assert np.abs(np.bincount(numbers + 2) / MANY - 0.2).max() < 0.01


def test_random_numbers_do_not_depend_on_chunks() -> None:
    """Many numbers, made in chunks, equal the numbers of several smaller draws."""
    count = 3 * rounding._CHUNK // 2
    for kind in ("normal", "uniform"):
        found = getattr(Draws(5), kind)([count])
        assert len(np.unique(found)) > 0.9 * count
        parts = Draws(5)
        assert (found == np.concatenate([getattr(parts, kind)([count // 3]) for _ in range(3)])).all()


def test_flags_and_orders() -> None:
    assert abs(Draws(3).flags([MANY]).mean() - 0.5) < 0.01
    found = Draws(3).orders(50, 20)
    assert (np.sort(found, axis=1) == np.arange(20)).all()
    assert len({row.tobytes() for row in found}) == 50


def test_a_judge_imports_no_heavy_modules(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (int64[M] y)
        <int64[4] classes = {3, 5, 7, 9}>
        { b = ArgMax <axis = 1, keepdims = 0> (x)  k = Gather (classes, b)  y = %s (k) }"""
    model = parser.parse_model(text % "Identity")
    onnx.save(model, tmp_path / "a.onnx")
    onnx.save(parser.parse_model(text % "Abs"), tmp_path / "b.onnx")
    code = f"""
import pickle, sys
from onnxopt.verification.judge import Judge
from onnxopt.verification.job_runner import JobRunner
from onnxopt.verification.inputs.cases import OWN
from onnxopt.verification.inputs.feeding import Data
from onnxopt.verification.job import Job
from onnxopt.verification import VerifyOptions
judge = Judge()
judge.open(Job({str(tmp_path / "a.onnx")!r}, VerifyOptions(), ("a", "b")))
judge.plan(pickle.loads({pickle.dumps(make_plan(model))!r}))
judge.original(OWN[0], Data({{}}))
judge.result({str(tmp_path / "b.onnx")!r}, VerifyOptions())
assert judge.compare(OWN[0].name, {{}}).outputs[0].ok
pieces, places = judge.pieces([OWN[0].name], [])
assert (pieces.cuts, places) == (3, []), (pieces.cuts, places)
print(*sys.modules)"""
    done = subprocess.run(child(code), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    assert "onnxopt.verification.coverage.gaps" in loaded
    assert {"numpy.random", "numpy.ma", "_hashlib", "onnx.onnx_cpp2py_export"}.isdisjoint(loaded)
