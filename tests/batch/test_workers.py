"""Processes run several jobs in sequence: each model as if alone, and a crash costs one job."""

from __future__ import annotations

from pathlib import Path

import pytest

import onnxopt
from onnxopt.batch import Job, Outcome
from onnxopt.batch.local import run_locally
from onnxopt.batch.run import run
from onnxopt.optimizer import OptimizeOptions
from onnxopt.verification import PROVEN
from onnxopt.worker.service import Service, Spare
from tests.samples import build

# Notes the process; one model ends it.
PLUGIN = """
import os
import signal
import time
from pathlib import Path

from onnxopt import model_pass, register

HERE = Path(__file__).parent


@register
@model_pass(opt_level=1)
def witness(model, ctx):
    "Notes the process."
    with open(HERE / "pids", "a") as file:
        file.write(f"{os.getpid()}\\n")
    if (HERE / "slow").exists():
        time.sleep(0.3)
    if (HERE / "deadly").exists() and (HERE / "deadly").read_text() in model.name:
        os.kill(os.getpid(), signal.SIGKILL)
"""
NAMES = ("repvgg_blocks", "residual_block", "qdq_conv", "dense_batchnorm", "channels_last", "transformer_block")


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    build.build_all(tmp_path)
    plugin = tmp_path / "witness.py"
    plugin.write_text(PLUGIN)
    options = OptimizeOptions(extra=("witness",))
    paths = [(str(tmp_path / f"{name}.onnx"), str(tmp_path / f"{name}.opt.onnx")) for name in NAMES]
    return [Job(a, b, options, None, plugins=(str(plugin),)) for a, b in paths]


def pids(folder: Path) -> set[str]:
    return set((folder / "pids").read_text().split())


def test_two_processes_do_all(jobs: list[Job], tmp_path: Path) -> None:
    heard: list[Outcome] = []
    outcomes = run_locally(jobs, 2, heard.append)
    assert [o.source for o in outcomes] == [j.source for j in jobs]
    assert sorted(o.source for o in heard) == sorted(j.source for j in jobs)
    assert {o.status for o in outcomes} <= {"optimized", "unchanged"}, [o.message for o in outcomes]
    assert 1 <= len(pids(tmp_path)) <= 2


def test_what_was_done_before_shows_in_nothing(jobs: list[Job], tmp_path: Path) -> None:
    run_locally(jobs, 1, lambda outcome: None)
    assert len(pids(tmp_path)) == 1
    for job in jobs:
        onnxopt.optimize_file(job.source, tmp_path / "alone.onnx", verify=False)
        assert Path(job.destination).read_bytes() == (tmp_path / "alone.onnx").read_bytes(), job.source


def test_what_takes_a_while_is_told(jobs: list[Job], tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    heard: list[tuple[str, str]] = []
    run_locally(jobs[:2], 1, lambda outcome: None, lambda source, name: heard.append((source, name)))
    assert {(job.source, "witness") for job in jobs[:2]} <= {*heard}
    assert len(heard) < 40


def test_a_death_costs_one_job(jobs: list[Job], tmp_path: Path) -> None:
    first = max(jobs, key=lambda job: Path(job.source).stat().st_size)
    (tmp_path / "deadly").write_text(Path(first.source).stem)
    outcomes = run_locally(jobs, 1, lambda outcome: None)
    failed = [o for o in outcomes if o.status == "failed"]
    assert [o.source for o in failed] == [first.source]
    assert "crashed (SIGKILL)" in failed[0].message
    assert len(pids(tmp_path)) == 2
    assert not list(tmp_path.glob(".*.tmp*"))


def test_nothing_small_is_opened_before_there_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many models most do not change, and what is not changed is not verified."""
    asked: list[str] = []
    post = Service.post
    monkeypatch.setattr(Service, "post", lambda self, name, *args: (asked.append(name), post(self, name, *args))[1])
    build.build_all(tmp_path)
    first = Job(str(tmp_path / "residual_block.onnx"), str(tmp_path / "a.onnx"))
    again = Job(first.destination, str(tmp_path / "b.onnx"))
    judge = Spare()
    done = run(first, judge=judge)
    assert (done.status, "open" in asked) == ("optimized", True), done.message
    assert done.report is not None
    assert done.report["verification"]["status"] in PROVEN
    asked.clear()
    assert (run(again, judge=judge).status, asked) == ("unchanged", [])
    judge.close()
