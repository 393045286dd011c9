"""Resources that the system refuses to a pass or rule give one error line, and are no fault of the pass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxopt.errors import is_starved, refused
from tests.cli.conftest import SCRIPT
from tests.cli.fork_server import ForkServer

WORDLESS = "error return without exception set"  # the message of CPython 3.13 for refused memory
NULL = "<built-in function compile> returned NULL without setting an exception"
TEXT = '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Relu (x) }'
PASS = """
from onnxopt import model_pass, register
@register
@model_pass(opt_level=2)
def starves(model, ctx):
    'Is refused memory.'
    raise ERROR
"""
RULE = """
from onnxopt import PassInfo, RewritePass, op, register, rewrite, var
@rewrite(op.Relu(var("x")))
def starving(m, x):
    'Is refused memory.'
    raise ERROR
@register
class Starves(RewritePass):
    'Is refused memory.'
    info = PassInfo("starves", opt_level=2)
    rules = (starving,)
"""
NONE_LEFT = ["error: the system refuses: it has no more memory", "hint: raise its limits (ulimit -a), or make room"]


def test_two_kinds_of_exceptions_mean_refused_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """MemoryError, and two kinds of SystemError under a memory limit, mean refused memory.

    Without a limit, the SystemErrors are bugs in C code.
    """
    for limited in (True, False):
        monkeypatch.setattr("onnxopt.errors.is_limited", lambda limited=limited: limited)
        assert is_starved(MemoryError())
        assert is_starved(SystemError(WORDLESS)) == is_starved(SystemError(NULL)) == limited
        assert not is_starved(SystemError("bad argument to internal function"))
        assert refused(SystemError(WORDLESS)) == ("it has no more memory" if limited else "")
        assert not refused(KeyError("memory"))


Optimize = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def optimize(tmp_path: Path, fork_server: ForkServer | None) -> Optimize:
    """Return a function that runs a command with a plugin that raises `error`. `limit`: KiB of data."""

    def call(plugin: str, error: str, *more: str, limit: int | None) -> subprocess.CompletedProcess[str]:
        onnx.save(parser.parse_model(TEXT), tmp_path / "m.onnx")
        (tmp_path / "starves.py").write_text(plugin.replace("ERROR", error))
        words = ["optimize", "m.onnx", *more, "--plugin", "starves.py", "--with", "starves"]
        if fork_server is not None:
            import resource

            limits = {} if limit is None else {resource.RLIMIT_DATA: limit << 10}
            return fork_server.run(words, tmp_path, os.environ, limits=limits)
        shell = ["sh", "-c", f'ulimit -S -d {limit or "unlimited"}; exec "$@"', "sh", str(SCRIPT), *words]
        return subprocess.run(shell, capture_output=True, text=True, cwd=tmp_path, check=False)

    return call


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
@pytest.mark.parametrize("plugin", [PASS, RULE], ids=["pass", "rule"])
@pytest.mark.parametrize("error", ["MemoryError()", f"SystemError({WORDLESS!r})"], ids=["memory", "system"])
def test_refused_memory_in_a_pass_is_no_bug(plugin: str, error: str, optimize: Optimize, tmp_path: Path) -> None:
    done = optimize(plugin, error, "out.onnx", "--no-verify", limit=8_000_000)
    assert (done.returncode, done.stderr.splitlines()) == (2, NONE_LEFT)
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_a_system_error_without_a_limit_is_a_bug(optimize: Optimize) -> None:
    done = optimize(PASS, f"SystemError({WORDLESS!r})", "out.onnx", "--no-verify", limit=None)
    assert done.returncode == 4 and "this is a bug in the pass" in done.stderr, done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_refused_memory_in_a_batch(optimize: Optimize) -> None:
    many = ("--out-dir", "out", "--no-verify", "--format", "json", "--jobs", "1")
    done = optimize(PASS, "MemoryError()", *many, limit=8_000_000)
    assert done.returncode == 2, done.stderr
    (found,) = json.loads(done.stdout)["models"]
    assert found["message"] == "m.onnx: the system refuses: it has no more memory"
