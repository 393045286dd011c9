"""A found project file chooses among results, and never acts; a named one may do both."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from onnxopt.cli.command import ACTS, CHOOSES, acts
from onnxopt.cli.main import _COMMANDS
from tests.cli.conftest import SCRIPT, Run


def options() -> set[str]:
    """Return every long option of every command."""
    found = set()
    for name in _COMMANDS:
        command = getattr(import_module(f"onnxopt.cli.{name}"), name)
        for param in command.params:
            if isinstance(param, click.Option):
                found |= {f.removeprefix("--") for f in (*param.opts, *param.secondary_opts) if f.startswith("--")}
    return found


def test_every_option_either_chooses_or_acts() -> None:
    assert set(ACTS) | CHOOSES == options()
    assert not set(ACTS) & CHOOSES


def test_unknown_options_count_as_acting() -> None:
    assert acts("an-option-of-tomorrow")
    assert acts("pipeline", "@/etc/passwd")
    assert not acts("pipeline", "canonicalize")


ACTING = {
    "plugin": '["evil.py"]',
    "custom-op-library": '["evil.so"]',
    "out-dir": '"there"',
    "in-place": "true",
    "backup": '".orig"',
    "cache-dir": '"there"',
    "reproducer": '"there"',
    "dump-dir": '"there"',
    "report": '"there"',
    "journal": '"there"',
    "junit": '"there"',
    "executor": '"dask:tcp://there:8786"',
    "input": '["x=x.npy"]',
    "no-verify": "true",
    "rtol": "1e9",
    "atol": "1e9",
    "timeout": "1e-9",
    "verify-memory": '"1"',
    "verify-dim": '["N=99999999999"]',
    "memory": '"64M"',
    "work": "1e-9",
    "allow-unverified": "true",
    "dtype": '"float16"',
    "strip-qdq": "true",
    "keep": '["x"]',
    "inputs": '["x"]',
    "outputs": '["y"]',
    "quiet": "true",
    "pipeline": '"@/etc/passwd"',
    "project-file": '"other.toml"',
}


@pytest.mark.parametrize("name", ACTING)
@pytest.mark.parametrize("where", ["onnxopt.toml", "../onnxopt.toml", "pyproject.toml"])
def test_a_found_project_file_may_not_act(
    name: str, where: str, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A found project file with an acting option is refused. The sixty commands run in this process."""
    from onnxopt.cli.main import cli
    from onnxopt.errors import UsageError

    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "evil.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')")
    head = "[tool.onnxopt]\n" if "pyproject" in where else ""
    (inside / where).write_text(f"{head}{name} = {ACTING[name]}\n")
    monkeypatch.chdir(inside)
    before = set(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=f"toml: {name} .*merely found") as refused:
        cli(["optimize", str(samples / "must_stay.onnx"), "out.onnx"], standalone_mode=False)
    assert "--project-file" in refused.value.hint
    assert set(tmp_path.rglob("*")) == before


def test_every_acting_option_is_tested() -> None:
    optimize = getattr(import_module("onnxopt.cli.optimize"), "optimize")  # noqa: B009 - the module has its name
    own = {f.removeprefix("--") for p in optimize.params for f in p.opts if f.startswith("--")}
    assert set(ACTING) == (own & set(ACTS)) | {"pipeline"}


@pytest.mark.parametrize("command", [("bisect", "m.onnx"), ("report", "m.onnx", "m.onnx", "-o", "p.html")])
def test_a_found_project_file_may_not_act_in_other_commands(command: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    (tmp_path / "onnxopt.toml").write_text('plugin = "evil.py"\n')
    r = run(*command)
    assert (r.returncode, r.stdout) == (2, "")
    assert "plugin runs code" in r.stderr and len(r.stderr.splitlines()) == 2


def test_a_named_project_file_may_act(run: Run, samples: Path, tmp_path: Path) -> None:
    (tmp_path / "onnxopt.toml").write_text('report = "r.json"\nno-verify = true\n')
    model = samples / "conv_scale_shift.onnx"
    assert run("optimize", model, "out.onnx").returncode == 2
    assert not (tmp_path / "out.onnx").exists()
    r = run("optimize", model, "out.onnx", "--project-file", "onnxopt.toml")
    assert r.returncode == 0 and "not verified: --no-verify" in r.stdout, r.stderr
    (tmp_path / "r.json").unlink()
    r = run("optimize", model, "out.onnx", ONNXOPT_PROJECT_FILE=str(tmp_path / "onnxopt.toml"))
    assert r.returncode == 0 and (tmp_path / "r.json").exists(), r.stderr
    (tmp_path / "pyproject.toml").write_text("[tool.onnxopt]\nlevel = 0\nno-verify = true\n")
    r = run("optimize", model, "out.onnx", "--project-file", "pyproject.toml")
    assert r.returncode == 0 and "the bytes are the same" in r.stdout, r.stderr
    r = run("optimize", model, "out.onnx", "--project-file", "nowhere.toml")
    assert r.returncode == 2 and "nowhere.toml cannot be read" in r.stderr
    assert "hint: check the path\n" in r.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("level = [1]", "level: an integer is expected, not [1]"),
        ("level = true", "level: an integer is expected, not True"),
        ('level = "1"', "level: an integer is expected, not '1'"),
        ("level = 9", "level: 9 is not in the range 0<=x<=3"),
        ("strict = 1", "strict: true or false is expected, not 1"),
        ("target = 1", "target: a string is expected, or a list of such, not 1"),
        ("disable = [1]", "disable: a string is expected, or a list of such, not 1"),
        ("disable = [['a']]", "disable: a string is expected, or a list of such, not ['a']"),
        ("max-constant-bytes = 1.5", "max-constant-bytes: a size, such as 65536 or '4M', is expected, not 1.5"),
        ("max-constant-bytes = 'x'", "max-constant-bytes: 'x' is not a size"),
        ("pipeline = {a = 1}", "pipeline: a string is expected"),
        ("format = 'yaml'", "format: 'yaml' is not one of"),
        ("config = 1", "config: a string is expected"),
        ("level = " + 2000 * "[", "cannot be read"),
        ("level = 1979-05-27", "level: an integer is expected"),
    ],
)
def test_values_have_the_types_of_their_options(text: str, said: str, run: Run, samples: Path, tmp_path: Path) -> None:
    (tmp_path / "onnxopt.toml").write_text(text)
    r = run("optimize", samples / "must_stay.onnx", "out.onnx")
    assert r.returncode == 2 and said in r.stderr and "onnxopt.toml" in r.stderr, r.stderr
    assert len(r.stderr.splitlines()) == 2


def test_a_pyproject_table_in_onnxopt_toml_has_a_hint(run: Run, tmp_path: Path) -> None:
    (tmp_path / "onnxopt.toml").write_text("[tool.onnxopt]\nlevel = 1\n")
    r = run("optimize", "m.onnx", "out.onnx")
    assert r.returncode == 2
    assert r.stderr.splitlines()[1].startswith("hint: [tool.onnxopt] is for pyproject.toml")


@pytest.mark.parametrize(
    "text", ["tool = 1 # [tool.onnxopt]", "tool.onnxopt = 1 # [tool.onnxopt", "\udcff[tool.onnxopt]"]
)
def test_an_invalid_project_file_is_an_error(text: str, run: Run, samples: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(text.encode(errors="surrogateescape"))
    r = run("optimize", samples / "must_stay.onnx", "out.onnx")
    assert r.returncode == 2 and "cannot be read" in r.stderr, r.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such pipes")
def test_a_pipe_is_read_once(samples: Path, tmp_path: Path) -> None:
    """A pipe (`--project-file <(settings)`) is read once, also to decide on JSON errors.

    A second read would never end.
    """
    os.mkfifo(tmp_path / "pipe")
    words = [SCRIPT, "optimize", samples / "residual_block.onnx", "out.onnx", "--project-file", "pipe"]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        (tmp_path / "pipe").write_text("nothing = 1")
        try:
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, said.splitlines()[0]) == (2, "error: pipe: no setting is called 'nothing'")
