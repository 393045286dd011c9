"""`onnxopt demo` for users with the package and without a model."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from onnxopt.cli.demo import network
from tests.cli.conftest import Run, snapshot


def test_demo_optimizes_the_packaged_model(run: Run, tmp_path: Path) -> None:
    onnx.checker.check_model(network(), full_check=True)
    done = run("demo", "--out-dir", "a folder")
    assert (done.returncode, done.stderr) == (0, "")
    places = "'a folder/demo.onnx' 'a folder/demo.opt.onnx'"
    assert done.stdout.startswith(f"$ onnxopt optimize {places}\n")
    assert f"\n$ onnxopt stats {places} --dim batch=1\n" in done.stdout
    assert "demo.opt.onnx: 28 → 16 nodes (-43%)" in done.stdout and "\n✓ verified" in done.stdout
    written = snapshot(tmp_path)
    assert {*written} == {"a folder/demo.onnx", "a folder/demo.opt.onnx"}
    assert max(map(len, written.values())) < 50_000
    assert run("demo", "--out-dir", "a folder").returncode == 0
    assert snapshot(tmp_path) == written, "and the same again"


@pytest.mark.parametrize(
    ("there", "words", "error"),
    [
        ("demo.onnx", "demo", "demo.onnx is there already, and is not the demo's"),
        ("demo.opt.onnx", "demo", "demo.opt.onnx is there already, and is not the demo's"),
        ("file", "demo --out-dir file", "cannot write file: File exists"),
        ("file", "demo m.onnx", "got unexpected extra argument (m.onnx)"),
    ],
)
def test_demo_replaces_no_files_of_others(there: str, words: str, error: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / there).write_text("mine")
    done = run(*words.split())
    first, second = done.stderr.splitlines()
    assert (done.returncode, first) == (2, f"error: {error}")
    assert second.startswith("hint: ")
    assert snapshot(tmp_path) == {there: b"mine"}
