"""A verification as a job: plain data in, events and a verdict out; a dead worker is replaced."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path

import pytest
from onnx import parser

from onnxopt.verification import Verifier, VerifyOptions
from onnxopt.verification.inputs.cases import OWN
from onnxopt.verification.inputs.feeding import Data
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.verification.job import Death, Job, Submission
from onnxopt.verification.job_runner import JobRunner
from onnxopt.verification.judge import Judge

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y) '
A = HEAD + "{ a = Tanh (x) y = Relu (a) }"
B = HEAD + "{ y = Relu (x) }"
# A log of each call of these methods of the judge.
COUNTED = """
import os, signal
from onnxopt.verification import judge
def counted(name):
    method = getattr(judge.Judge, name)
    def call(self, *given):
        with open({log!r}, "a") as f:
            f.write(name + chr(10))
        return method(self, *given)
    setattr(judge.Judge, name, call)
for name in ("original", "compare", "pieces", "finish"):
    counted(name)
def die(self, *given, **named):
    os.kill(os.getpid(), signal.SIGSEGV)
def fail(self, *given, **named):
    raise KeyError("z")
{more}
judge.main()
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, text in {"a": A, "b": A, "c": B}.items():
        (tmp_path / name).write_bytes(parser.parse_model(text).SerializeToString())
    return tmp_path


def verifier(files: Path, more: str = "", options: VerifyOptions | None = None) -> Verifier:
    return Verifier(files / "a", options, start=COUNTED.format(log=str(files / "log"), more=more))


def test_a_job_is_data() -> None:
    plan, death = make_plan(parser.parse_model(A)), Death("look", "running", "crashed", False)
    for message in (
        Job("m.onnx", VerifyOptions(), ("A", "B")),
        Job("m.onnx", VerifyOptions(), ("A", "B"), plan=plan, requests=[(OWN[0], partial(Data, {}))], deaths=[death]),
        Submission("n.onnx", VerifyOptions()),
    ):
        assert pickle.loads(pickle.dumps(message)).__class__ is message.__class__


def test_the_reported_progress_grows(files: Path) -> None:
    shares: list[float] = []
    with verifier(files) as judged:
        judged.progress = shares.append
        judged.submit(files / "b")
        assert judged.finish().status == "equal"
    assert len(shares) >= 5 and shares == sorted(shares) and 0 <= shares[0] < shares[-1] < 1


@pytest.mark.parametrize("override", [True, False])
def test_a_worker_derives_the_plan_that_a_caller_sends(override: bool, tmp_path: Path) -> None:
    """Cases and verdict are the same with a plan sent by the caller and one derived by the worker.

    Without `override`, initializers that are inputs keep their values.
    """
    text = A.replace("(float[N, 4] x)", "(float[N, 4] x, float two)").replace(
        "{", "<float two = {2}> { t = Mul (x, two) "
    )
    model = parser.parse_model(text.replace("Tanh (x)", "Tanh (t)"))
    (tmp_path / "a").write_bytes(model.SerializeToString())
    cases = []
    for is_sent in (True, False):
        with Verifier(tmp_path / "a") as judged:
            if is_sent:
                judged.describe(model, override=override)
            else:
                judged.prepare(override=override)
            judged.submit(tmp_path / "a")
            found = judged.finish()
        assert found.status == "equal"
        cases.append([(case.name, case.dims) for case in found.cases])
    assert cases[0] == cases[1] and len(cases[0]) == 2 + override


def test_the_data_of_a_case_is_read_once(files: Path) -> None:
    """Files may be as large as the memory of a worker."""
    read: list[str] = []

    def data() -> Data:
        read.append("x.npy")
        return Data({})

    ask = {"plan": make_plan(parser.parse_model(A)), "requests": [(OWN[0], data)]}
    runner = JobRunner(Judge(), lambda event: None)
    runner.open(Job(str(files / "a"), VerifyOptions(), ("A", "B"), stepwise=True, **ask))
    assert runner.verify(Submission(str(files / "b"), VerifyOptions())).status == "equal"
    assert len(read) == 1


def test_a_crash_while_deriving_the_plan_ends_the_job(files: Path) -> None:
    with verifier(files, "judge.Judge.own_cases = die") as judged:
        judged.prepare()
        judged.submit(files / "b")
        found = judged.finish()
    assert found.status == "not verified" and "crashed (SIGSEGV)" in found.message


@pytest.mark.parametrize("result", ["b", "c"])
def test_after_a_crash_in_pieces_outputs_decide_without_new_runs(result: str, files: Path) -> None:
    with verifier(files, "judge.Judge.pieces = die", VerifyOptions(pieces=True)) as judged:
        judged.submit(files / result)
        found = judged.finish()
    calls = (files / "log").read_text().split()
    assert found.status == ("equal" if result == "b" else "different"), found.message
    assert calls.count("original") == calls.count("compare") == 3
    assert calls.count("finish") == (result == "b")


def test_an_internal_error_in_pieces_is_inconclusive(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with verifier(files, "judge.Judge.pieces = fail", VerifyOptions(pieces=True)) as judged:
        judged.submit(files / "b")
        found = judged.finish()
    assert found.status == "inconclusive"
    assert "internal error (KeyError: 'z'), which `ONNXOPT_DEBUG=1 onnxopt verify" in found.message
    monkeypatch.setenv("ONNXOPT_DEBUG", "1")
    with verifier(files, "judge.Judge.pieces = fail  # loudly", VerifyOptions(pieces=True)) as judged:
        judged.submit(files / "b")
        with pytest.raises(KeyError):
            judged.finish()


def test_a_crash_in_the_last_step_repeats_no_run(files: Path) -> None:
    """A crash in the last step, the load with optimizations, repeats no run.

    The next worker gets the finished answers.
    """
    more = "judge.Judge.unloaded = lambda self, *a: (self.tell('loading the original with optimizations'), die(self))"
    with verifier(files, more) as judged:
        judged.submit(files / "b")
        found = judged.finish()
        assert found.agrees, found.message
        judged.submit(files / "c")
        assert judged.finish().status == "different"
    calls = (files / "log").read_text().split()
    assert calls.count("compare") == 2 * 3
