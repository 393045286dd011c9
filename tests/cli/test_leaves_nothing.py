"""A run leaves the requested files only: none in the home and temporary folders, none of a runtime."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Run

PACKAGE = Path(__file__).resolve().parents[2] / "onnxopt"


@pytest.mark.parametrize(
    "command",
    [
        ("optimize", "{models}/conv_scale_shift.onnx", "out.onnx"),
        ("optimize", "{models}/conv_scale_shift.onnx", "{models}/must_stay.onnx", "--out-dir", "o"),
        ("optimize", "{models}/conv_scale_shift.onnx", "out.onnx", "--no-verify"),  # constants are folded all the same
        ("verify", "{models}/conv_scale_shift.onnx", "{models}/conv_scale_shift.onnx"),
        ("bench", "{models}/conv_scale_shift.onnx", "--seconds", "0.1"),
        ("stats", "{models}/conv_scale_shift.onnx"),
    ],
    ids=lambda command: " ".join(command).replace("{models}/", ""),
)
def test_only_requested_files_are_left(command: tuple[str, ...], run: Run, samples: Path, tmp_path: Path) -> None:
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    home.mkdir()
    temporary.mkdir()
    places = dict.fromkeys(("HOME", "USERPROFILE", "LOCALAPPDATA"), str(home))
    places |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))
    done = run(*(word.format(models=samples) for word in command), **places, XDG_CACHE_HOME="", PYTHONPYCACHEPREFIX="")
    assert done.returncode == 0, done.stderr
    assert [*home.rglob("*"), *temporary.rglob("*")] == []


def test_onnxruntime_has_one_door() -> None:
    imports = re.compile(r"^\s*(from|import)\b.*\bonnxruntime\b", re.MULTILINE)
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if imports.search(text) else ():
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(n.partition(".")[0] == "onnxruntime" for n in names):
                assert file == PACKAGE / "runtime.py", file
