"""Code for other systems, as far as it runs here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import onnxopt
from onnxopt.io import staging
from onnxopt.worker import process
from onnxopt.worker.process import ending
from onnxopt.worker.service import Died, Service
from tests.samples import build

WINDOWS = """
import sys, pkgutil, importlib, importlib.abc, os, signal
import subprocess, tempfile, shutil, multiprocessing, concurrent.futures, ctypes, asyncio, pathlib, glob, uuid
import numpy, onnx, onnxruntime, onnx.reference, onnx.shape_inference, onnx.version_converter
import click, rich.console, rich.progress, google.protobuf.text_format

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "resource", "termios", "pty", "pwd", "grp"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
for name in ("fcntl", "resource"):
    sys.modules.pop(name, None)
for name in ("SIGKILL", "SIGALRM", "SIGHUP", "setitimer", "ITIMER_REAL", "pthread_kill"):
    delattr(signal, name)
for name in ("getppid", "geteuid", "getuid", "sysconf", "O_NOFOLLOW", "O_NONBLOCK", "SEEK_DATA", "SEEK_HOLE"):
    delattr(os, name)
sys.platform = "win32"
import onnxopt
for found in pkgutil.walk_packages(onnxopt.__path__, "onnxopt."):
    if found.name not in ("onnxopt.__main__", "onnxopt.batch.cluster"):
        importlib.import_module(found.name)
report = onnxopt.optimize_file(sys.argv[1], "out.onnx", verify=False)
onnxopt.optimize_file("out.onnx", "out.onnx2", verify=False)
from onnxopt.io.staging import is_owned
from onnxopt.worker import machine_memory, peak_memory, unused
print(report.pipeline.nodes_after, machine_memory() >= 0, peak_memory(), unused(), sorted(os.listdir()))
"""
START = "from tests.worker.toy import main; main()"


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, which cannot wait for a pipe."""
    monkeypatch.setattr(process, "CAN_WAIT", False)
    monkeypatch.setattr("selectors.PollSelector", None)


@pytest.mark.usefixtures("no_waiting")
def test_a_thread_reads_where_nobody_can_wait_for_a_pipe() -> None:
    with Service(START, 30.0) as service:
        pid, count = service.call("add")
        assert count == 1
        assert service.call("add") == (pid, 2)
        with pytest.raises(TypeError):
            service.call("add", "too much")
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(Died, match="crashed \\(SIGKILL\\)"):
            service.call("add")
        assert service.call("add")[1] == 1, "another one"


@pytest.mark.usefixtures("no_waiting")
def test_it_also_keeps_deadlines() -> None:
    with Service(START, 1.0) as service:
        assert service.call("add")[1] == 1
        began = time.monotonic()
        with pytest.raises(Died, match=r"did not finish within 1 s \(--timeout\)"):
            service.call("sleep", 60.0)
        assert time.monotonic() - began < 30


@pytest.mark.usefixtures("no_waiting")
def test_a_model_is_verified_so(tmp_path: Path) -> None:
    build.build_all(tmp_path)
    report = onnxopt.optimize_file(tmp_path / "residual_block.onnx", tmp_path / "out.onnx")
    assert report.verification is not None
    assert report.verification.status == "verified"


@pytest.mark.parametrize("can_wait", [True, False])
def test_what_was_read_is_there_in_pieces(can_wait: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CAN_WAIT", can_wait)
    with subprocess.Popen([sys.executable, "-c", "print('abcdefg', end='')"], stdout=subprocess.PIPE) as writer:
        pipe = process.Pipe(writer.stdout)
        deadline = time.monotonic() + 60
        assert [pipe.take(n, deadline) for n in (3, 1, 3)] == [b"abc", b"d", b"efg"]
        for _ in range(2):
            with pytest.raises(EOFError):
                pipe.take(1, deadline)


def test_a_process_on_windows_hears_no_ctrl_c_and_opens_no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process._apart() == {"start_new_session": True}
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0x200, raising=False)
    monkeypatch.setattr(subprocess, "CREATE_NO_WINDOW", 0x8000000, raising=False)
    assert process._apart() == {"creationflags": 0x8000200}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (3, "ended with exit code 3"),
        (-11, "crashed (SIGSEGV)"),
        (0xC0000005, "crashed (0xc0000005)"),
        (-37, "crashed (signal 37)"),
    ],
)
def test_how_a_process_ended(code: int, said: str) -> None:
    assert ending(code) == said


def test_a_file_that_somebody_looks_at_is_renamed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a scanner for viruses does on Windows; on other systems nobody waits."""
    (tmp_path / "a").touch()
    refused = []
    rename = os.replace

    def replace(file: Path, target: Path) -> None:
        refused.append(file)
        if len(refused) < 3:
            raise PermissionError
        rename(file, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(PermissionError):
        staging.move(tmp_path / "a", tmp_path / "b")
    refused.clear()
    monkeypatch.setattr(staging, "_TRIES", 5)
    staging.move(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").exists()
    assert len(refused) == 3


def test_a_model_is_optimized_where_nothing_of_posix_is_there(tmp_path: Path) -> None:
    """In a Python that says it is on Windows, and lacks what that lacks."""
    (tmp_path / "samples").mkdir()
    build.build_all(tmp_path / "samples")
    (tmp_path / "here").mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WINDOWS, str(tmp_path / "samples" / "residual_block.onnx")],
        capture_output=True,
        text=True,
        cwd=tmp_path / "here",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "6 True 0 0 ['out.onnx', 'out.onnx2']\n"
