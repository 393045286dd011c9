"""Faults of a machine: processes killed at any moment, limits, full disks, two writers, two threads.

Model and data are the old or the new ones afterwards, without other files.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxopt import optimize_file
from tests.cli.conftest import SCRIPT
from tests.hostile.promise import CONTROL, partial

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limits and signals of Linux")

MOMENTS = int(os.environ.get("ONNXOPT_MOMENTS", "4"))  # moments for each signal
SECONDS = 60
SIZE = 300  # of weights, 360 KB each
OURS = ("in.onnx", "in.data", "Makefile")


def lay(folder: Path) -> None:
    """Save a model with data beside it, a part of which the command must rewrite."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.random((SIZE, SIZE), np.float32), f"w{i}") for i in range(3)]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", SIZE]) for name in "xy")
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("Identity", ["a"], ["b"]),
        helper.make_node("Add", ["w1", "w2"], ["c"]),
        helper.make_node("MatMul", ["b", "c"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "in.onnx", save_as_external_data=True, location="in.data")
    (folder / "Makefile").write_text("somebody else's")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    where = tmp_path / "here"
    where.mkdir()
    lay(where)
    return where


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def is_result(name: str) -> bool:
    return name == "out.onnx" or (name.startswith("out.onnx.") and name.endswith(".data"))


def whole(folder: Path) -> None:
    """Assert that the folder has only the files of before, and a complete result if any."""
    foreign = [name for name in names(folder) if name not in OURS and not is_result(name)]
    assert not foreign
    assert (folder / "Makefile").read_text() == "somebody else's"
    if (folder / "out.onnx").exists():
        assert not partial(folder / "out.onnx")
        assert len(onnx.load(folder / "out.onnx").graph.initializer) == 2


def command(folder: Path, *more: str, limit: Callable[[], object] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [SCRIPT, "optimize", "in.onnx", "out.onnx", *more],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=limit,
    )


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Return (exit code, output) of the process, without a traceback."""
    said = b"".join(process.communicate(timeout=SECONDS)).decode()
    assert "Traceback" not in said and "internal error" not in said, said
    assert not CONTROL.search(said)
    return process.returncode, said


def gone(children: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def unmount(folder: Path) -> None:
    """Unmount the folder after the worker has ended, a moment after the command."""
    deadline = time.monotonic() + 10
    while subprocess.run(["umount", folder], check=False, capture_output=True).returncode:
        assert time.monotonic() < deadline, "somebody holds it"
        time.sleep(0.05)


def moments(seed: int, longest: float) -> Iterator[float]:
    """Yield a moment in each part of the whole time, in random order."""
    rng = random.Random(seed)
    for part in rng.sample(range(MOMENTS), MOMENTS):
        yield (part + rng.random()) / MOMENTS * longest


@pytest.fixture(scope="module")
def duration(tmp_path_factory: pytest.TempPathFactory) -> float:
    where = tmp_path_factory.mktemp("once")
    lay(where)
    began = time.monotonic()
    assert ended(command(where))[0] == 0
    return time.monotonic() - began


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM])
def test_a_command_killed_at_any_moment_leaves_whole_files(stop: signal.Signals, folder: Path, duration: float) -> None:
    """Runs killed at any moment, one after the other in one folder, leave whole files.

    The last run clears all of them.
    """
    for delay in moments(stop, duration):
        process = command(folder)
        time.sleep(delay)
        children = []
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(stop)
        code, _ = ended(process)
        assert code in (0, -stop, 130), code
        gone(children)
        assert not (folder / "out.onnx").exists() or not partial(folder / "out.onnx")
        if stop == signal.SIGTERM and code == 130:
            whole(folder)
    assert ended(command(folder))[0] == 0
    whole(folder)
    assert sum(name.endswith(".data") for name in names(folder)) == 2


def test_a_worker_killed_at_any_moment_gives_a_verdict_or_none(folder: Path, duration: float) -> None:
    """A killed worker gives a verdict or "not verified", never a result without this note."""
    for delay in moments(3, duration):
        process = command(folder)
        time.sleep(delay)
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children():
                child.kill()
        code, said = ended(process)
        assert code in (0, 1, 3), said
        whole(folder)


LIMITS = {
    "files": (resource.RLIMIT_NOFILE, (5, 8, 12, 24)),
    "memory": (resource.RLIMIT_AS, tuple(m << 20 for m in (200, 400, 800))),
    "data": (resource.RLIMIT_DATA, tuple(m << 20 for m in (40, 100, 200))),
    "size": (resource.RLIMIT_FSIZE, (0, 1000, 400_000)),
}


@pytest.mark.parametrize("kind", LIMITS)
def test_limits_of_the_system_leave_whole_files(kind: str, folder: Path) -> None:
    """A run under a limit of the system leaves only old files and whole results.

    The run ends with an error, with Python's traceback in the start of Python, or aborted in native code. The next
    run removes leftovers of an aborted one.
    """
    which, values = LIMITS[kind]
    for value in values:
        process = command(folder, limit=lambda value=value: resource.setrlimit(which, (value, value)))  # type: ignore[misc]
        said = b"".join(process.communicate(timeout=SECONDS)).decode(errors="replace")
        aborted = process.returncode < 0 or (process.returncode == 127 and said.endswith("ABORT\n"))
        if not aborted and ("onnxopt/cli/main.py" in said or "Traceback" not in said):
            assert process.returncode in (0, 1, 2), (value, process.returncode, said)
        if aborted:
            assert ended(command(folder))[0] == 0
        whole(folder)
        for name in names(folder):
            if is_result(name):
                (folder / name).unlink()


def test_a_full_disk(folder: Path) -> None:
    process = subprocess.Popen([SCRIPT, "optimize", "in.onnx", "/dev/full", "--external", "inline"], cwd=folder,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    code, said = ended(process)
    assert (code, "No space left" in said) == (2, True), said
    with open("/dev/full", "wb") as full:  # stdout of the command has no room
        done = subprocess.run(
            [SCRIPT, "stats", "in.onnx"], cwd=folder, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert b"Traceback" not in done.stderr and done.returncode == 2, done.stderr
    whole(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_small_disk(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    for size in (1200, 1500):
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "none", folder], check=False)
        if mounted.returncode:
            pytest.skip("nothing may be mounted here")
        try:
            lay(folder)
            code, said = ended(command(folder))
            assert (code, "No space left" in said) == (2, True) or code == 0, said
            whole(folder)
        finally:
            unmount(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_read_only_folder_is_an_error(folder: Path) -> None:
    folder.chmod(0o555)
    try:
        code, said = ended(command(folder))
    finally:
        folder.chmod(0o755)
    assert (code, "cannot write" in said) == (2, True), said
    whole(folder)


def test_two_writers(folder: Path) -> None:
    for _ in range(2):
        processes = [command(folder, "--no-verify", "-O1", *more) for more in ((), ("--disable", "elim-identity"), ())]
        assert [ended(process)[0] for process in processes] == [0, 0, 0]
        whole(folder)
    assert sum(name.endswith(".data") for name in names(folder)) == 2


def test_readers_of_two_writing_threads_find_whole_models(folder: Path) -> None:
    """Readers find whole models although several threads write the same files again and again."""
    failed: list[BaseException] = []

    def write(out: str) -> None:
        try:
            for _ in range(4):
                optimize_file(folder / "in.onnx", folder / out, level=1, verify=False)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=write, args=(out,)) for out in ("out.onnx", "out.onnx", "other.onnx")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    results = [name for name in names(folder) if name not in OURS]
    assert len(results) == 4
    assert not partial(folder / "out.onnx") and not partial(folder / "other.onnx")
