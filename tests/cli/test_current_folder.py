"""What lies in the current folder is data: no process that is started from there runs it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from tests.cli.conftest import Run

# Modules that a worker imports: of the standard library, and the largest of others.
LYING = (
    "pickle",
    "selectors",
    "struct",
    "contextlib",
    "dataclasses",
    "concurrent",
    "json",
    "numpy",
    "onnxruntime",
    "onnx",
)
MODEL = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y) { i = Identity (x) y = %s (i) }'


@pytest.mark.parametrize(
    "command",
    [
        ("optimize", "a.onnx", "out.onnx"),
        ("optimize", "a.onnx", "b.onnx", "--out-dir", "o", "--jobs", "2"),
        ("optimize", "a.onnx", "out.onnx", "--verify-each"),
        ("verify", "a.onnx", "b.onnx"),
        ("bench", "a.onnx", "--seconds", "0.1"),
        ("bisect", "a.onnx"),
        ("report", "a.onnx", "a.onnx", "-o", "p.html"),
    ],
    ids=" ".join,
)
def test_nothing_there_is_run(command: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    for name, op in (("a", "Sin"), ("b", "Cos")):
        onnx.save(parser.parse_model(MODEL % op), tmp_path / f"{name}.onnx")
    for name in LYING:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'a').write({name!r})\n")
    r = run(*command)
    assert "Traceback" not in r.stderr
    assert not (tmp_path / "was_run").exists(), (tmp_path / "was_run").read_text()
