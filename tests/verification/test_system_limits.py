"""Resources that the system refuses to onnxruntime are no fault of a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser

from onnxopt.verification import UNVERIFIED, Verifier, VerifyOptions, judge
from onnxopt.verification.inputs.cases import OWN
from onnxopt.verification.inputs.feeding import Data
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.verification.job import Job
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
    made.open(Job(path, VerifyOptions(), ("the original", "the result")))
    made.plan(make_plan(onnx.load(path)))
    made.original(OWN[0], Data({}))
    return made


def refusing(monkeypatch: pytest.MonkeyPatch, says: str, times: int, *, optimize: bool) -> None:
    left, load = [times], OnnxRuntime.__init__

    def loading(self: OnnxRuntime, path: str, **given: Any) -> None:
        if bool(given.get("optimize")) == optimize and left[0]:
            left[0] -= 1
            raise RuntimeError(says)
        load(self, path, **given)

    monkeypatch.setattr(OnnxRuntime, "__init__", loading)


def test_refused_threads_are_no_verdict(opened: judge.Judge, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, NO_THREAD, 1, optimize=False)
    with pytest.raises(Refused, match="the system refuses"):
        opened.result(path, VerifyOptions())
    assert opened.result(path, VerifyOptions()) == ""
    refusing(monkeypatch, NO_THREAD, 1, optimize=True)
    assert opened.result(path, VerifyOptions()) == ""
    with pytest.raises(Refused, match="the system refuses"):
        opened.unloaded(path, opened.labels[1], True)


def test_threads_refused_at_a_run_are_no_verdict(
    opened: judge.Judge, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert opened.result(path, VerifyOptions()) == ""

    def run(feeds: Any) -> Any:
        raise RuntimeError(NO_THREAD)

    monkeypatch.setattr(opened.b, "run", run)
    with pytest.raises(Refused, match="the system refuses"):
        opened.compare(OWN[0].name, {})


def test_the_load_with_optimizations_releases_other_sessions(
    opened: judge.Judge, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, load = [], OnnxRuntime.__init__

    def loading(self: OnnxRuntime, path: str, **given: Any) -> None:
        loaded.append((given.get("optimize", False), opened.engine._session is not None, opened.b is not None))
        load(self, path, **given)

    assert opened.result(path, VerifyOptions()) == ""
    monkeypatch.setattr(OnnxRuntime, "__init__", loading)
    assert opened.finish() and opened.unloaded(path, opened.labels[1], True) == ""
    assert loaded == [(True, False, False)]
    assert opened.result(path, VerifyOptions()) == ""  # another session
    assert all(o.ok for o in opened.compare(OWN[0].name, {}).outputs)


def test_memory_refused_to_runtime_optimizations_is_no_difference(
    opened: judge.Judge, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch, "std::bad_alloc", 1, optimize=True)
    assert opened.result(path, VerifyOptions()) == ""
    assert opened.unloaded(path, opened.labels[1], True).startswith("it takes more memory than it may")
    refusing(monkeypatch, "std::bad_alloc", 1, optimize=True)
    assert opened.unloaded(path, opened.labels[0], True) == "", "of the original, that says nothing"


def starving(monkeypatch: pytest.MonkeyPatch, *, original: bool, judged: judge.Judge) -> list[str]:
    """Make runs of the result fail for memory while the original is loaded. Return the list of the models run.

    original: runs of the original fail as well.
    """
    ran: list[str] = []
    of_a, of_b = judged.engine.run, judged.b.run

    def run_a(feeds: Any) -> Any:
        ran.append("a")
        if original:
            raise RuntimeError("std::bad_alloc")
        return of_a(feeds)

    def run_b(feeds: Any) -> Any:
        ran.append("b")
        if judged.engine._session is not None or original:
            raise RuntimeError("std::bad_alloc")
        return of_b(feeds)

    monkeypatch.setattr(judged.engine, "run", run_a)
    monkeypatch.setattr(judged.b, "run", run_b)
    return ran


def test_the_result_is_run_again_without_the_original_in_memory(
    opened: judge.Judge, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is run again with the original released, if memory is refused beside the original."""
    refusing(monkeypatch, "std::bad_alloc", 1, optimize=False)
    assert opened.result(path, VerifyOptions()) == ""
    assert opened.engine._session is None, "it rests"
    opened.engine.wake()
    ran = starving(monkeypatch, original=False, judged=opened)
    assert all(o.ok for o in opened.compare(OWN[0].name, {}).outputs)
    assert ran == ["b", "b"]


def test_memory_refused_to_both_is_no_verdict(opened: judge.Judge, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert opened.result(path, VerifyOptions()) == ""
    ran = starving(monkeypatch, original=True, judged=opened)
    with pytest.raises(Refused, match="no memory for the result beside the values of the original"):
        opened.compare(OWN[0].name, {})
    assert ran == ["b", "b", "a"]


def test_memory_refused_to_the_result_only_is_different(
    opened: judge.Judge, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert opened.result(path, VerifyOptions()) == ""

    def run(feeds: Any) -> Any:
        raise RuntimeError("std::bad_alloc")

    monkeypatch.setattr(opened.b, "run", run)
    found = opened.compare(OWN[0].name, {})
    assert (found.status, "it takes more memory than it may" in found.note) == ("different", True)
    refusing(monkeypatch, "std::bad_alloc", 2, optimize=False)
    assert "it takes more memory than it may" in opened.result(path, VerifyOptions())


def test_memory_refused_at_both_loads_is_no_verdict(
    opened: judge.Judge, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch, "std::bad_alloc", 2, optimize=False)

    def wake() -> None:
        raise MemoryError

    monkeypatch.setattr(opened.engine, "wake", wake)
    with pytest.raises(Refused, match="no memory for the result"):
        opened.result(path, VerifyOptions())


@pytest.mark.parametrize("asked", ["original", "result", "unloaded"])
def test_memory_refused_to_a_worker_is_not_verified(asked: str, path: str) -> None:
    """A MemoryError in a worker gives no error of the command: the result is not verified."""
    once = path + ".once"
    start = (
        f"from onnxopt.verification import judge\nfrom pathlib import Path\n"
        f"once, method = Path({once!r}), judge.Judge.{asked}\n"
        "def starved(*given):\n    if once.exists(): return method(*given)\n    once.touch(); raise MemoryError\n"
        f"judge.Judge.{asked} = starved\njudge.main()"
    )
    with Verifier(path, start=start) as verifier:
        verifier.submit(path)
        found = verifier.finish()
        assert (found.status, "takes more memory than it may" in found.message) == (UNVERIFIED, True)
        verifier.submit(path)
        assert verifier.finish().agrees == (asked != "original"), "another result is judged"
