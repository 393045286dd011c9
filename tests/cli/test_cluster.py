"""Jobs on a Dask cluster: no job is lost when a worker is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import FUSING, SCRIPT, Run

ROOT = Path(__file__).resolve().parents[2]
SLOW = '''
import os, pathlib, time
from onnxopt import model_pass, register
@register
@model_pass(opt_level=1)
def slow(model, ctx):
    """Says which process it runs in, and takes its time."""
    pathlib.Path(__file__).with_name(f"at.{os.getpid()}").touch()
    time.sleep(0.5)
'''


@pytest.fixture
def cluster() -> Iterator[tuple[str, list[int]]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.batch.cluster"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None and process.stdin is not None
    address, *workers = process.stdout.readline().split()
    yield address, [int(w) for w in workers]
    process.stdin.close()
    process.wait(timeout=30)
    process.stdout.close()


def test_no_job_of_a_killed_worker_is_lost(
    samples: Path, run: Run, tmp_path: Path, cluster: tuple[str, list[int]], model: Path, library: str
) -> None:
    """No job of a killed worker is lost, nor the next run's.

    Its workers load the named operator library, relative to its folder.
    """
    address, workers = cluster
    (tmp_path / "slow.py").write_text(SLOW)
    models = []
    for i in range(4):
        models.append(tmp_path / f"in/{i}.onnx")
        models[-1].parent.mkdir(exist_ok=True)
        shutil.copy(samples / "residual_block.onnx", models[-1])
    more = ["--plugin", "slow.py", "--with", "slow", "--format", "json"]
    here = [f"file://{m}" if i % 2 else f"in/{m.name}" for i, m in enumerate(models)]
    process = subprocess.Popen(
        [SCRIPT, "optimize", *here, "--out-dir", "out", "--executor", f"dask:{address}", *more],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not {f"at.{w}" for w in workers} <= {p.name for p in tmp_path.iterdir()}:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.kill(workers[0], signal.SIGKILL)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 0, said + out
    outcomes = json.loads(out)["models"]
    assert [o["status"] for o in outcomes] == ["optimized"] * 4
    assert [o["source"] for o in outcomes] == here, "as the user calls them, though the workers are elsewhere"
    assert run("optimize", models[0], "alone.onnx").returncode == 0
    made = sorted((tmp_path / "out").rglob("*"))
    assert [p.name for p in made] == [f"{i}.onnx" for i in range(4)], "whole results, and nothing else"
    assert {p.read_bytes() for p in made} == {(tmp_path / "alone.onnx").read_bytes()}
    shutil.copy(library, tmp_path / "fc.so")
    more = [*FUSING, "--custom-op-library", "fc.so", "--format", "json"]
    done = run("optimize", model, "--out-dir", "fused", "--executor", f"dask:{address}", *more)
    (outcome,) = json.loads(done.stdout)["models"]
    said = outcome["report"]["verification"]["message"]
    assert done.returncode == 0 and "largest difference" in said and "with the reference" not in said, done


def test_results_go_to_urls(samples: Path, run: Run, tmp_path: Path) -> None:
    source = f"file://{samples / 'residual_block.onnx'}"
    done = run("optimize", source, "--out-dir", f"file://{tmp_path}/build")
    assert done.returncode == 0, done.stderr
    assert run("optimize", samples / "residual_block.onnx", "alone.onnx").returncode == 0
    assert (tmp_path / "build/residual_block.onnx").read_bytes() == (tmp_path / "alone.onnx").read_bytes()
    assert run("optimize", f"file://{samples}/external_weights.onnx", "--out-dir", "build").returncode == 0
    assert run("optimize", samples / "external_weights.onnx", "--out-dir", "here").returncode == 0
    here = sorted((tmp_path / "here").iterdir())
    assert len(here) == 2, "the model and its data"
    assert all((tmp_path / "build" / p.name).read_bytes() == p.read_bytes() for p in here)
    missing = run("optimize", "file:///nowhere/m.onnx", "--out-dir", "build")
    assert missing.returncode == 2
    assert "file:///nowhere/m.onnx" in missing.stderr


def test_no_cluster_there(samples: Path, run: Run) -> None:
    done = run(
        *("optimize", samples / "residual_block.onnx", "--out-dir", "build", "--executor", "dask:tcp://127.0.0.1:1"),
        DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT="1s",
    )
    assert done.returncode == 2
    assert "no Dask scheduler answers at tcp://127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
