"""What the system does not give to onnxruntime is no fault of a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser

from onnxopt.verification import VerifyOptions, judge
from onnxopt.verification.inputs.cases import OWN
from onnxopt.verification.inputs.datasets import Data
from onnxopt.verification.inputs.plan import make_plan
from onnxopt.verification.protocol import Request
from onnxopt.verification.run import OnnxRuntime
from onnxopt.worker.serving import Refused

NO_THREAD = (
    "env.cc:327 onnxruntime::PosixThread() pthread_create failed, error code: 12 error msg: Cannot allocate memory"
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (y) { y = Sin (x) }')
    onnx.save(model, tmp_path / "m.onnx")
    return str(tmp_path / "m.onnx")


@pytest.fixture
def opened(path: str) -> judge.Judge:
    made = judge.Judge()
    made.open(path, VerifyOptions(), ("the original", "the result"))
    made.plan(make_plan(onnx.load(path)))
    made.original(Request(OWN[0], Data({})))
    return made


def refusing(monkeypatch: pytest.MonkeyPatch, says: str, times: int, *, optimize: bool) -> None:
    left, load = [times], OnnxRuntime.__init__

    def loading(self: OnnxRuntime, path: str, **given: Any) -> None:
        if bool(given.get("optimize")) == optimize and left[0]:
            left[0] -= 1
            raise RuntimeError(says)
        load(self, path, **given)

    monkeypatch.setattr(OnnxRuntime, "__init__", loading)


def test_threads_that_the_system_refuses(opened: judge.Judge, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, NO_THREAD, 1, optimize=False)
    with pytest.raises(Refused, match="the system refuses"):
        opened.result(path, VerifyOptions())
    assert opened.result(path, VerifyOptions()) == ""
    refusing(monkeypatch, NO_THREAD, 1, optimize=True)
    assert opened.result(path, VerifyOptions()) == ""
    with pytest.raises(Refused, match="the system refuses"):
        opened.optimized()


def test_threads_that_a_run_is_refused(opened: judge.Judge, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert opened.result(path, VerifyOptions()) == ""

    def run(feeds: Any) -> Any:
        raise RuntimeError(NO_THREAD)

    monkeypatch.setattr(opened.b, "run", run)
    with pytest.raises(Refused, match="the system refuses"):
        opened.compare(OWN[0].name, {})


def test_nothing_else_is_loaded_when_the_optimizer_is(
    opened: judge.Judge, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, load = [], OnnxRuntime.__init__

    def loading(self: OnnxRuntime, path: str, **given: Any) -> None:
        loaded.append((given.get("optimize", False), opened.engine._session is not None, opened.b is not None))
        load(self, path, **given)

    assert opened.result(path, VerifyOptions()) == ""
    monkeypatch.setattr(OnnxRuntime, "__init__", loading)
    assert opened.optimized() == ("", True)
    assert loaded == [(True, False, False)]
    assert opened.result(path, VerifyOptions()) == ""  # another one
    assert all(o.ok for o in opened.compare(OWN[0].name, {}).outputs)


def test_memory_that_the_optimizer_is_refused(opened: judge.Judge, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, "std::bad_alloc", 1, optimize=True)
    assert opened.result(path, VerifyOptions()) == ""
    why, original = opened.optimized()
    assert (why.startswith("it takes more memory than it may"), original) == (True, True)
