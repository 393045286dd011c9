"""Names and files as large as the limits of the file system are accepted, and larger ones are errors."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from onnxopt.io.staging import StagingFolder, clear
from tests.cli.conftest import SCRIPT, Run
from tests.cli.fork_server import ForkServer

LONG = ("y" * 250 + ".onnx", "\u00fc" * 125 + ".onnx")  # 255 bytes


Limited = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def limited(samples: Path, tmp_path: Path, fork_server: ForkServer | None) -> Limited:
    """Return a function that optimizes a sample with a limit on the size of files, in bytes."""

    def call(size: int, *args: str) -> subprocess.CompletedProcess[str]:
        words = ["optimize", str(samples / "residual_block.onnx"), *args]
        if fork_server is not None:
            import resource

            return fork_server.run(words, tmp_path, os.environ, limits={resource.RLIMIT_FSIZE: size})
        shell = ["sh", "-c", f'ulimit -f {size // 512}; exec "$@"', "sh", str(SCRIPT), *words]
        return subprocess.run(shell, capture_output=True, text=True, cwd=tmp_path, check=False)

    return call


@pytest.mark.skipif(sys.platform == "win32", reason="the whole path has 260 characters there")
@pytest.mark.parametrize("name", LONG, ids=["ascii", "utf-8"])
def test_the_longest_file_name_is_written(name: str, run: Run, samples: Path, tmp_path: Path) -> None:
    """The longest possible file name is written, although the name of its staging folder would be longer."""
    model = samples / "residual_block.onnx"
    single = run("optimize", model, name)
    assert single.returncode == 0, single.stderr
    (tmp_path / "models").mkdir()
    shutil.copy(model, tmp_path / "models" / name)
    many = run("optimize", f"models/{name}", "--out-dir", "many")
    assert many.returncode == 0, many.stderr
    assert (tmp_path / name).read_bytes() == (tmp_path / "many" / name).read_bytes()
    assert {p.name for p in tmp_path.iterdir()} == {name, "models", "many"}, "nothing is left"


@pytest.mark.skipif(sys.platform == "win32", reason="the whole path has 260 characters there")
def test_leftovers_of_long_names_are_distinguished(tmp_path: Path) -> None:
    """Leftovers of two long names that differ at the end are distinguished: only the killed run's are removed."""
    a, b = "y" * 249 + "a.onnx", "y" * 249 + "b.onnx"
    killed, alive = StagingFolder(tmp_path, a), StagingFolder(tmp_path, b)
    killed._owner.close()
    clear(tmp_path, b)
    assert killed.path.exists()
    clear(tmp_path, a)
    assert not killed.path.exists()
    assert alive.path.exists()
    alive.remove()


def test_a_too_long_name_is_an_error(run: Run, samples: Path) -> None:
    done = run("optimize", samples / "residual_block.onnx", "y" * 300)
    assert done.returncode == 2
    assert done.stderr.splitlines()[1] == "hint: give it a shorter name"


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
@pytest.mark.parametrize("where", [("out.onnx",), ("--out-dir", "many")], ids=["one", "many"])
def test_a_limit_on_the_file_size_is_an_error(where: tuple[str, ...], limited: Limited, tmp_path: Path) -> None:
    """The error for a too large file has the name given by the user, not that of the staged file."""
    done = limited(1024, *where)
    out = "out.onnx" if len(where) == 1 else "many/residual_block.onnx"
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"error: cannot write {out}: File too large",
        "hint: raise the limit of a file's size (ulimit -f), or write to another file system",
    ]
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has such a device")
@pytest.mark.parametrize(
    "words", ["stats m.onnx", "stats m.onnx --format json", "verify m.onnx m.onnx --format json", "passes", "--help"]
)
@pytest.mark.parametrize("both", [False, True], ids=["stdout", "stderr too"])
def test_a_full_stdout_is_an_error(words: str, both: bool, samples: Path, tmp_path: Path) -> None:
    """A full stdout gives exit code 2, also if stderr is full. Code 1 would be a failed check."""
    shutil.copy(samples / "residual_block.onnx", tmp_path / "m.onnx")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [SCRIPT, *words.split()], stdout=full, stderr=full if both else subprocess.PIPE, cwd=tmp_path, check=False
        )
    assert done.returncode == 2
    if not both:
        assert done.stderr.decode().splitlines() == [
            "error: cannot write to stdout: No space left on device",
            "hint: make room where it goes; no file is half-written",
        ]


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
@pytest.mark.parametrize("before", [None, "of yesterday"])
def test_a_report_without_room_is_not_written(before: str | None, limited: Limited, tmp_path: Path) -> None:
    """A report without room is not written in part, and the result stays."""
    if before is not None:
        (tmp_path / "report.json").write_text(before)
    done = limited(6144, "out.onnx", "--report", "report.json", "-q")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: cannot write report.json: File too large")
    assert {p.name for p in tmp_path.iterdir()} == {"out.onnx", *(["report.json"] if before else [])}
    assert before is None or (tmp_path / "report.json").read_text() == before


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_a_dump_without_room_is_no_fault_of_a_pass(limited: Limited) -> None:
    done = limited(1024, "out.onnx", "--dump-dir", "dump")
    assert done.returncode == 2
    error, hint = done.stderr.splitlines()
    assert re.fullmatch(r"error: cannot write dump/\d{3}-[a-z-]+\.onnx: File too large", error)
    assert hint == "hint: raise the limit of a file's size (ulimit -f), or write to another file system"


def test_a_report_is_written_into_an_existing_file_of_a_read_only_folder(
    run: Run, samples: Path, tmp_path: Path
) -> None:
    """A report is written into an existing file of a read-only folder.

    A report also goes to /dev/stdout, beside other output.
    """
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "report.json").touch()
    (tmp_path / "closed").chmod(0o555)
    done = run("optimize", samples / "residual_block.onnx", "out.onnx", "-q", "--report", "closed/report.json")
    (tmp_path / "closed").chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "closed" / "report.json").read_text())["pipeline"]["nodes_after"] == 6
    said = run("optimize", samples / "residual_block.onnx", "out.onnx", "-q", "--report", "/dev/stdout")
    assert json.loads(said.stdout)["pipeline"]["nodes_after"] == 6
