"""Crashes, hangs and kills under `onnxopt verify` give a verdict, and leave no process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.conftest import SCRIPT, Run, is_gone
from tests.cli.verify.conftest import VECTOR, compare, statuses

ENDLESS = (
    "<int64 n = {4611686018427387904}, bool c = {1}> { y = Loop (n, c, x) <body = b (int64 i, bool p, float[4] s)"
    " => (bool q, float[4] t) { q = Identity (p) t = Neg (s) }> }"
)
INTEGERS = "(int64[4] x) => (int64[4] y)"
LOWEST = f"<int64[4] k = {{{', '.join(['-9223372036854775808'] * 4)}}}, int64[1] two = {{2}}>"
SAFE = LOWEST + "{ z = Sub (x, two) m = Mul (k, z) n = Sub (m, m) y = Add (n, x) }"
CRASHES = SAFE.replace("Mul (k, z)", "Div (k, z)")  # the lowest integer divided by -1 is a processor trap


def test_a_crash_in_b_is_a_difference_and_the_other_cases_run(run: Run, write: Any) -> None:
    write("a.onnx", INTEGERS, SAFE)
    write("b.onnx", INTEGERS, CRASHES)
    code, found = compare(run, "--cases", "ones,zeros")
    assert code == 1
    assert statuses(found) == {"ones": "different", "zeros": "equal"}
    assert found["message"] == "case ones: onnxruntime crashed (SIGFPE) running B"


def test_a_crash_in_a_is_not_verified(run: Run, write: Any) -> None:
    write("a.onnx", INTEGERS, CRASHES)
    write("b.onnx", INTEGERS, SAFE)
    r = run("verify", "a.onnx", "b.onnx", "--cases", "ones,zeros")
    assert r.returncode == 1
    assert "! not verified: case ones: onnxruntime crashed (SIGFPE) running A" in r.stdout


def test_a_hang_gives_a_verdict(run: Run, write: Any) -> None:
    write("a.onnx", VECTOR, "{ y = Neg (x) }")
    write("b.onnx", VECTOR, ENDLESS)
    code, found = compare(run, "--timeout", "1", "--cases", "random,ones")
    assert code == 1
    assert statuses(found) == {"random": "different", "ones": "skipped"}
    assert "did not finish within 1 s (--timeout) running B" in found["message"]


def test_running_out_of_memory_gives_a_verdict(run: Run, write: Any) -> None:
    write("a.onnx", VECTOR, "{ y = Neg (x) }")
    huge = "<int64[2] n = {1099511627776, 4}> { e = Expand (x, n) y = ReduceMax <axes = [0], keepdims = 0> (e) }"
    write("b.onnx", VECTOR, huge)
    code, found = compare(run, "--cases", "random")
    assert code == 1
    assert "B fails where A runs" in found["message"]
    assert "it takes more memory than it may (--memory)" in found["message"]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the worker in /proc")
def test_a_killed_worker_gives_a_verdict(write: Any, tmp_path: Path) -> None:
    write("a.onnx", VECTOR, "{ y = Neg (x) }")
    write("b.onnx", VECTOR, ENDLESS)
    command = [SCRIPT, "verify", "a.onnx", "b.onnx", "--cases", "random", "-q"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        worker = None
        while worker is None or not _busy(worker):
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            worker = int(children[0]) if children else None
            time.sleep(0.05)
        os.kill(worker, signal.SIGSEGV)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "onnxruntime crashed (SIGSEGV) running B" in out


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the worker in /proc")
def test_ctrl_c_leaves_no_worker(write: Any, tmp_path: Path) -> None:
    write("a.onnx", VECTOR, ENDLESS)
    command = [SCRIPT, "verify", "a.onnx", "a.onnx"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not (worker := children.read_text().split()):
            time.sleep(0.02)
        found = psutil.Process(int(worker[0]))
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "error: interrupted" in error
    assert is_gone(found)


def _busy(pid: int) -> bool:
    """Return whether the process has worked so long that it must be in the endless loop."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK") > 1.5
