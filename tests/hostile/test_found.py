"""Faults found by hostile inputs, each by the command that met it."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path
from subprocess import CompletedProcess

import onnx
import pytest
from onnx import parser

from tests.commands import SCRIPT, Run
from tests.hostile.bases import HEAD, base

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limits of a test")


# A process counts the memory of its parent at its start, so a small process starts the command.
MEASURED = """import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)"""


def started(folder: Path, *args: str, files: int = 0, through: tuple[str, ...] = ()) -> CompletedProcess[str]:
    """Run a command from the start of Python."""

    def limited() -> None:
        if files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    command = [*through, SCRIPT, *args]
    found = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, preexec_fn=limited, check=False
    )
    assert "Traceback" not in found.stderr
    return found


def refused(found: CompletedProcess[str], says: str) -> None:
    assert found.returncode == 2 and "Traceback" not in found.stderr, found.stderr
    assert says in found.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(base("chain"), tmp_path / "good.onnx")
    return tmp_path


def save(folder: Path, body: str) -> None:
    onnx.save(parser.parse_model(f"{HEAD} g (float[n, 4] x) => (float[] y) {body}"), folder / "m.onnx")


@pytest.mark.parametrize("way", [("--fuse", "out.onnx"), ("--out-dir", "parts")], ids=" ".join)
def test_a_partition_is_not_checked_in_the_command(way: tuple[str, str], run: Run, folder: Path) -> None:
    """A partition with a division that crashes a runtime succeeds: the check runs in a worker.

    The smallest integer divided by -1 ends a process.
    """
    save(folder, "<int64[1] low = {-9223372036854775808}, int64[1] minus = {-1}, int64 zero = {0}> "
         "{ a = CumSum (low, zero) c = Div (a, minus) d = Cast <to = 1> (c) y = Add (x, d) }")  # fmt: skip
    found = run("partition", "m.onnx", "--ops", "Add", *way)
    assert found.returncode == 0, found.stderr
    assert "checked: " in found.stdout
    assert (folder / way[1]).exists()


@pytest.mark.parametrize(
    "command", [("report", "good.onnx", "m.onnx", "-o", "p.html"), ("bisect", "m.onnx")], ids=" ".join
)
def test_the_memory_limit_holds_for_the_worker(command: tuple[str, ...], folder: Path) -> None:
    """The worker keeps within --memory. Without a limit, the model took 8 GB and 90 s."""
    chain = " ".join(f"c{i + 1} = Concat <axis = 0> (c{i}, c{i})" for i in range(50))
    save(folder, f"<float[2, 2] c0 = {{1, 2, 3, 4}}> {{ {chain} k = ReduceSum <keepdims = 0> (c50) y = Add (x, k) }}")
    began = time.monotonic()
    found = started(folder, *command, "--memory", "600M", through=(sys.executable, "-c", MEASURED))
    assert found.returncode in (0, 1, 2), found.stderr
    assert time.monotonic() - began < 60
    assert int(found.stderr.splitlines()[-1]) <= 1 << 20  # KiB


def test_a_reference_outside_of_functions(run: Run, folder: Path) -> None:
    model = parser.parse_model(f"{HEAD} g (float[2, 3] x) => (float[3, 2] y) {{ y = Transpose <perm = [1, 0]> (x) }}")
    model.graph.node[0].attribute[0].ref_attr_name = "k"
    onnx.save(model, folder / "m.onnx")
    refused(run("optimize", "m.onnx", "out.onnx", "--no-verify"), "refers to the attribute `k` of a function")


@pytest.mark.parametrize("location", ["x" * 5000, "a\0b"])
@pytest.mark.parametrize(
    "command", [("stats", "m.onnx"), ("report", "m.onnx", "m.onnx", "-o", "p.html", "--no-verify")]
)
def test_impossible_locations_are_errors(command: tuple[str, ...], location: str, run: Run, folder: Path) -> None:
    model = base("beside")
    model.graph.initializer[0].external_data[0].value = location
    onnx.save(model, folder / "m.onnx")
    (folder / "w.bin").write_bytes(bytes(64))
    found = run(*command)
    assert found.returncode in (0, 2) and "Traceback" not in found.stderr, found.stderr


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (("--dim", "N=" + "9" * 5000), "is not NAME=SIZE"),
        (("--dim", "N=²"), "is not NAME=SIZE"),
        (("--shape", "x:²"), "is not INPUT:1,128"),
        (("--pipeline", "fixpoint(" * 5000), "nested too deep"),
    ],
    ids=["long", "superscript", "superscript shape", "deep"],
)
def test_invalid_numbers_and_pipelines_are_refused(option: tuple[str, str], says: str, run: Run, folder: Path) -> None:
    refused(run("optimize", "good.onnx", "out.onnx", *option), says)


def test_too_few_open_files_are_an_error(folder: Path) -> None:
    refused(started(folder, "optimize", "good.onnx", "out.onnx", files=5), "the system refuses: Too many open files")
