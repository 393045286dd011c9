"""The surroundings of a call: environment variables, pipes, limits, empty arguments of a shell."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import onnx
import pytest

from onnxopt.errors import WriteError
from onnxopt.graph import read_model
from onnxopt.io.save import save
from tests.cli.conftest import SCRIPT, Run, run_script

PLUGIN = """
from onnxopt import model_pass, op, register, rewrite, var
@rewrite(op.Cos(var("x")))
def never(m, x):
    "Cos(x) = Cos(x)."
    m.skip()
@register
@model_pass(opt_level=1)
def nothing(model, ctx):
    "Does nothing."
"""
NO_MEMORY = ["error: the system refuses: it has no more memory", "hint: raise its limits (ulimit -a), or make room"]


def test_python_without_docstrings(small: Path, run: Run, tmp_path: Path) -> None:
    """Of rules they are the equations: nobody asks for them then, and the results are the same."""
    (tmp_path / "plugin.py").write_text(PLUGIN)
    words = ["optimize", "m.onnx", "--plugin", "plugin.py", "--with", "nothing"]
    assert run(*words, "out.onnx").returncode == 0
    kept = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode")}
    bare = {**os.environ, "PYTHONOPTIMIZE": "2", **kept}  # each module is compiled once
    done = run_script(tmp_path, [*words, "bare.onnx"], bare)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "bare.onnx").read_bytes() == (tmp_path / "out.onnx").read_bytes()
    assert "✓ equal" in done.stdout or "✓ verified" in done.stdout
    for words in (["passes"], ["explain", "gemm-fusion"]):
        assert run_script(tmp_path, words, bare).returncode == 0, words


def test_a_variable_that_a_package_does_not_know(small: Path, tmp_path: Path) -> None:
    name = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
    done = run_script(tmp_path, ["optimize", "m.onnx", "out.onnx"], {**os.environ, name: "garbage"})
    error, hint = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert error.startswith(f"error: a package cannot be imported: {name} garbage is not supported.")
    assert hint.startswith("hint: mend what it names")
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("m.onnx", "--in-place", "--backup", ""), "--backup is given nothing"),
        (("m.onnx", "--in-place", "--backup="), "--backup is given nothing"),
        (("m.onnx", "--out-dir", ""), "--out-dir is given nothing"),
        (("m.onnx", "out.onnx", "--reproducer", ""), "--reproducer is given nothing"),
        (("m.onnx", "out.onnx", "--journal="), "--journal is given nothing"),
        (("m.onnx", ""), "a name is empty"),
        (("", "out.onnx"), "a name is empty"),
    ],
)
def test_what_a_shell_left_empty(words: tuple[str, ...], what: str, small: Path, run: Run, tmp_path: Path) -> None:
    """`--backup "$SUFFIX"` without a suffix replaced the original, and kept none."""
    before = (tmp_path / "m.onnx").read_bytes()
    done = run("optimize", *words)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: {what}")
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx"}
    assert (tmp_path / "m.onnx").read_bytes() == before


def test_an_option_that_is_text_may_be_empty(small: Path, run: Run) -> None:
    assert run("optimize", "m.onnx", "out.onnx", "--pipeline", "").returncode == 0


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
def test_a_pipe(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads it: that is an error, not a wait without end. Who begins a little later gets the model."""
    model, pipe = read_model(onnx.load(tmp_path / "m.onnx")), tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(sys.modules["onnxopt.io.save"], "_PATIENCE", 0.1)
    with pytest.raises(WriteError, match="is a pipe that nobody reads"):
        save(model, pipe)
    monkeypatch.setattr(sys.modules["onnxopt.io.save"], "_PATIENCE", 30.0)
    read: list[bytes] = []
    reader = threading.Timer(0.2, lambda: read.append(pipe.read_bytes()))
    reader.start()
    save(model, pipe)
    reader.join()
    assert len(onnx.load_from_string(read[0]).graph.node) == model.node_count()


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
@pytest.mark.parametrize("limit", ["-d 60000", "-v 100000"])
def test_too_little_memory_to_begin_with(limit: str, small: Path, tmp_path: Path) -> None:
    """OpenBLAS ends the process (exit code 1, a check failed), and a library aborts it: nothing is begun."""
    limited = ["sh", "-c", f'ulimit -S {limit}; exec "$@"', "sh", str(SCRIPT), "optimize", "m.onnx", "out.onnx"]
    done = subprocess.run(limited, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr.splitlines()) == (2, NO_MEMORY)
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx"}


@pytest.mark.skipif(sys.platform != "linux", reason="a home that nobody can make")
def test_a_home_that_cannot_be_written(small: Path, run: Run) -> None:
    """The cache can: its key is what cannot be kept."""
    words = ("optimize", "m.onnx", "--out-dir", "out", "--cache-dir", "cache")
    done = run(*words, HOME="/proc/nobody", XDG_CONFIG_HOME="")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "warning: the cache cache is not used: its key cannot be kept at /proc/nobody/.config/onnxopt/cache.key: "
        "No such file or directory; ONNXOPT_CACHE_KEY gives one"
    ]
