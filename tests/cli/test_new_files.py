"""Names of output files are checked before the work is done."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import SCRIPT, Run, snapshot

WRITING = (
    "extract model.onnx {} --outputs r1",
    "optimize model.onnx out.onnx --report {}",
    "optimize model.onnx out.onnx --junit {}",
    "optimize model.onnx out.onnx --journal {}",
    "report model.onnx model.onnx -o {}",
    "partition model.onnx --ops Conv --fuse {}",
    "bisect model.onnx -o {}",
)


@pytest.fixture
def folder(samples: Path, tmp_path: Path) -> Path:
    shutil.copy(samples / "residual_block.onnx", tmp_path / "model.onnx")
    (tmp_path / "there").mkdir()
    return tmp_path


@pytest.mark.parametrize("command", WRITING)
def test_invalid_names_of_output_files_are_refused(run: Run, folder: Path, command: str) -> None:
    """`new/`, folders and `-` are refused as output files.

    `new/` became a file `new`; a file `-` is hard to remove in a shell.
    """
    before = snapshot(folder)
    for word, said in (
        ("new/", "new/ is a folder that is not there"),
        ("there", "there is a directory"),
        ("there/", "there/ is a directory"),
        ("-", "`-` would be a file of that name, and not stdout"),
    ):
        done = run(*command.format(word).split())
        assert (done.returncode, done.stdout) == (2, ""), done
        assert done.stderr.startswith(f"error: {said}\nhint: "), done.stderr
    assert snapshot(folder) == before


def test_a_missing_folder_is_reported_before_the_search(run: Run, folder: Path) -> None:
    done = run("bisect", "model.onnx", "-o", "nowhere/small.onnx")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: cannot write nowhere/small.onnx: no such folder\n")


@pytest.mark.parametrize("option", ["-o", "--output", "--out"])
def test_where_a_result_goes_needs_no_option(run: Run, folder: Path, option: str) -> None:
    done = run("optimize", "model.onnx", option, "out.onnx")
    assert done.returncode == 2
    assert f"has no option {option}\nhint: OUT follows IN, without an option: onnxopt optimize " in done.stderr
    other = run("stats", "model.onnx", option, "out.onnx")
    assert other.returncode == 2 and "OUT" not in other.stderr


def test_an_error_on_a_closed_pipe_keeps_its_exit_code(folder: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([SCRIPT, "stats", "absent.onnx"], cwd=folder, stderr=write, stdout=write, check=False)
    os.close(write)
    assert done.returncode == 2
