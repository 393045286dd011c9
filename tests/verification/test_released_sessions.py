"""The original is not in memory during the run of the result."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
from onnx import parser

from onnxopt.verification import VerifyOptions
from onnxopt.verification.inputs.cases import OWN
from onnxopt.verification.inputs.feeding import Data
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.verification.job import Job
from onnxopt.verification.judge import Judge

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 8] x) => (float[N, 8] y)'


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the number of other models in memory, at each load."""
    others: list[int] = []
    alive: list[weakref.ref[Any]] = []
    session = onnxruntime.InferenceSession

    def load(*args: Any, **given: Any) -> Any:
        gc.collect()
        others.append(sum(ref() is not None for ref in alive))
        made = session(*args, **given)
        alive.append(weakref.ref(made))
        return made

    monkeypatch.setattr(onnxruntime, "InferenceSession", load)
    return others


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("y = Sin (x)", [0, 0]),
        ("y = Cos (x)", [0, 0, 1]),  # the noise measurement loads the original once more
    ],
)
def test_one_model_is_in_memory_at_a_time(result: str, expected: list[int], loaded: list[int], tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.onnx", "b.onnx")]
    for path, body in zip(paths, ("y = Sin (x)", result), strict=True):
        onnx.save(parser.parse_model(f"{HEAD} {{ {body} }}"), path)
    judge = Judge()
    judge.open(Job(str(paths[0]), VerifyOptions(), ("the original", "the result")))
    judge.plan(make_plan(onnx.load(paths[0])))
    judge.original(OWN[0], Data({}))
    assert not judge.result(str(paths[1]), VerifyOptions())
    compared = judge.compare(OWN[0].name, {})
    assert all(o.ok for o in compared.outputs) == (result == "y = Sin (x)")
    assert loaded == expected
