"""Models that `onnxopt verify` cannot compare: other interfaces, invalid files, unloadable models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.cli.verify.conftest import VECTOR


@pytest.mark.parametrize(
    ("signature", "says"),
    [
        ("(float[4] x) => (float[4] z)", "A and B differ in their outputs: only A has `y`, only B has `z`"),
        ("(float[4] x, float[4] w) => (float[4] y)", "A and B differ in their inputs: only B has `w`"),
        ("(double[4] x) => (double[4] y)", "input `x` is float in A and double in B"),
    ],
)
def test_other_interfaces_are_refused(signature: str, says: str, run: Run, write: Any) -> None:
    write("a.onnx", VECTOR, "{ y = Neg (x) }")
    write("b.onnx", signature, f"{{ {signature[-2]} = Neg (x) }}")
    r = run("verify", "a.onnx", "b.onnx")
    assert r.returncode == 2
    assert says in r.stderr


def test_unreadable_files_are_refused(run: Run, write: Any, tmp_path: Path) -> None:
    write("a.onnx", VECTOR, "{ y = Neg (x) }")
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "text.onnx").write_text("no model at all")
    for pair, says in (
        (("a.onnx", "absent.onnx"), "absent.onnx: no such file"),
        (("a.onnx", "."), ". is a directory"),
        (("a.onnx", "-"), "hint: only `onnxopt optimize` reads stdin"),
        (("empty.onnx", "a.onnx"), "empty.onnx is empty"),
        (("a.onnx", "text.onnx"), "text.onnx is not an ONNX model, or is truncated"),
    ):
        r = run("verify", *pair)
        assert r.returncode == 2, pair
        assert says in r.stderr
        assert len(r.stderr.splitlines()) == 2


def test_an_unloadable_b_is_different(run: Run, write: Any) -> None:
    write("a.onnx", VECTOR, "{ y = Neg (x) }")
    write("b.onnx", VECTOR, "{ y = NoSuchOperator (x) }")
    r = run("verify", "a.onnx", "b.onnx")
    assert r.returncode == 1
    assert "✗ DIFFERENT: B cannot be loaded" in r.stdout
    r = run("verify", "b.onnx", "a.onnx")
    assert r.returncode == 1
    assert "! not verified: onnxruntime cannot load the original" in r.stdout


def test_providers(run: Run, write: Any) -> None:
    write("a.onnx", VECTOR, "{ y = Sin (x) }")
    assert run("verify", "a.onnx", "a.onnx", "--cases", "random", "--provider", "cpu").returncode == 0
    r = run("verify", "a.onnx", "a.onnx", "--provider", "NoSuchProvider")
    assert r.returncode == 2
    assert "no execution provider 'NoSuchProvider' here" in r.stderr
    assert "CPUExecutionProvider" in r.stderr
