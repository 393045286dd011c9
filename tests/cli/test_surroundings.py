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
    """Results are the same under PYTHONOPTIMIZE=2. Docstrings, which hold the equations of rules, are missing there."""
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


def test_an_environment_variable_rejected_by_a_package_is_an_error(small: Path, tmp_path: Path) -> None:
    name = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
    done = run_script(tmp_path, ["optimize", "m.onnx", "out.onnx"], {**os.environ, name: "garbage"})
    error, hint = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert error.startswith(f"error: a package cannot be imported: {name} garbage is not supported.")
    assert hint.startswith("hint: mend what it names")
    assert not (tmp_path / "out.onnx").exists()


def test_a_package_that_raises_something_at_its_import_is_an_error(small: Path, tmp_path: Path) -> None:
    """Modules shared with the worker are imported before the command handles errors."""
    (tmp_path / "home" / "numpy").mkdir(parents=True)
    (tmp_path / "home" / "numpy" / "__init__.py").write_text("raise ValueError('numpy.dtype size changed')")
    kept = {"PYTHONPATH": str(tmp_path / "home")}
    done = run_script(tmp_path, ["optimize", "m.onnx", "out.onnx"], {**os.environ, **kept})
    assert done.returncode == 2
    assert done.stderr.startswith("error: a package cannot be imported: numpy.dtype size changed\nhint: ")


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
def test_empty_arguments_are_refused(words: tuple[str, ...], what: str, small: Path, run: Run, tmp_path: Path) -> None:
    """Empty arguments are refused. `--backup "$SUFFIX"` without a suffix replaced the original, without a backup."""
    before = (tmp_path / "m.onnx").read_bytes()
    done = run("optimize", *words)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: {what}")
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx"}
    assert (tmp_path / "m.onnx").read_bytes() == before


def test_a_text_option_may_be_empty(small: Path, run: Run) -> None:
    assert run("optimize", "m.onnx", "out.onnx", "--pipeline", "").returncode == 0


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
def test_a_result_for_an_unread_pipe_is_an_error(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe without a reader is an error, not an endless wait. A slightly late reader gets the model."""
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
def test_too_little_memory_at_the_start_is_an_error(limit: str, small: Path, tmp_path: Path) -> None:
    """Too little memory for the start gives exit code 2.

    OpenBLAS would end the process with code 1, like a failed check, and another library would abort.
    """
    limited = ["sh", "-c", f'ulimit -S {limit}; exec "$@"', "sh", str(SCRIPT), "optimize", "m.onnx", "out.onnx"]
    done = subprocess.run(limited, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr.splitlines()) == (2, NO_MEMORY)
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx"}


@pytest.mark.skipif(sys.platform != "linux", reason="a home that nobody can make")
def test_an_unwritable_home_disables_the_cache(small: Path, run: Run) -> None:
    """Without a writable home, the cache is not used, with a warning: its key cannot be stored."""
    words = ("optimize", "m.onnx", "--out-dir", "out", "--cache-dir", "cache")
    done = run(*words, HOME="/proc/nobody", XDG_CONFIG_HOME="")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "warning: the cache cache is not used: its key cannot be kept at /proc/nobody/.config/onnxopt/cache.key: "
        "No such file or directory; ONNXOPT_CACHE_KEY gives one"
    ]
