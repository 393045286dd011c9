"""Files in the current folder are data: no process started there runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxopt.cli.main import _COMMANDS
from tests.cli.conftest import SCRIPT, Run, run_script

MODEL = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y) { i = Identity (x) y = %s (i) }'
PACKAGE = Path(__file__).resolve().parents[2] / "onnxopt"
# Import every module that workers import, at their start and later.
CHILDREN = """
import sys
import onnxopt.verification.judge, onnxopt.comparison.latency, onnxopt.verification.look
import onnxopt.batch.worker, onnxopt.batch.run, onnxopt.cli.main, onnxopt.cli.optimize, onnxopt.passes, onnx.reference
import onnxruntime, onnx, numpy, click, rich.console, rich.progress, onnxopt.rollback, onnxopt.bisection
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""
COMMANDS = [
    ("optimize", "a.onnx", "out.onnx"),
    ("optimize", "a.onnx", "b.onnx", "--out-dir", "o", "--jobs", "2"),
    ("optimize", "a.onnx", "out.onnx", "--verify-each"),
    ("verify", "a.onnx", "b.onnx"),
    ("bench", "a.onnx", "--seconds", "0.1"),
    ("bisect", "a.onnx"),
    ("report", "a.onnx", "a.onnx", "-o", "p.html"),
    ("partition", "a.onnx", "--ops", "Sin", "--out-dir", "parts"),
    ("extract", "a.onnx", "part.onnx", "--outputs", "y"),
    ("stats", "a.onnx"),
    ("diff", "a.onnx", "b.onnx", "--html", "d.html"),
    ("why", "a.onnx", "elim-identity"),
    ("find", "a.onnx", "Sin(x)"),
    ("passes",),
    ("explain", "elim-identity"),
    ("demo", "--out-dir", "d"),
    ("completion", "bash"),
    ("reproduce", "nothing"),
]
AT_ONCE = {"builtins", "sys", "onnxopt", "__main__"}  # imported before any search of folders


def imported() -> set[str]:
    """Return the modules that a child imports, without those of Python's own start."""
    done = subprocess.run([sys.executable, "-P", "-c", CHILDREN], capture_output=True, text=True, check=True)
    return set(done.stdout.split()) - AT_ONCE


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the command in a new process. The test is about imports from the very start on."""
    return lambda *args: run_script(tmp_path, [*map(str, args)], os.environ)


@pytest.fixture(scope="module")
def lying() -> set[str]:
    return {name for name in imported() if name.isidentifier()}


@pytest.fixture
def folder(tmp_path: Path, lying: set[str]) -> Path:
    """Return a folder with two models, and a module of each name that records its import."""
    for name, op in (("a", "Sin"), ("b", "Cos")):
        onnx.save(parser.parse_model(MODEL % op), tmp_path / f"{name}.onnx")
    for name in lying:
        said = f"open({str(tmp_path / 'was_run')!r}, 'a').write({name + ' '!r})\n"
        (tmp_path / f"{name}.py").write_text(said)
    return tmp_path


def test_the_list_of_imported_modules_is_complete(lying: set[str]) -> None:
    assert {"pickle", "selectors", "json", "typing", "numpy", "onnx", "onnxruntime", "click", "rich"} <= lying
    assert len(lying) > 100


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_module_of_the_current_folder_is_imported(command: tuple[str, ...], run: Run, folder: Path) -> None:
    r = run(*command)
    assert "Traceback" not in r.stderr and "internal error" not in r.stderr
    assert not (folder / "was_run").exists(), (folder / "was_run").read_text()


def test_every_command_is_tested() -> None:
    assert {name for name, *_ in COMMANDS} == set(_COMMANDS)


def test_python_m_imports_no_module_of_the_current_folder(folder: Path) -> None:
    """`python -m onnxopt` imports no module of the current folder, but those that Python imports first (docs/ci.md)."""
    before_us = python_itself()
    for file in folder.glob("*.py"):
        if file.stem in before_us:
            file.unlink()
    home = str(PACKAGE.parent)
    command = [sys.executable, "-m", "onnxopt", "optimize", "a.onnx", "b.onnx", "--out-dir", "o", "--jobs", "2"]
    env = os.environ | {"PYTHONPATH": home}
    r = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert r.returncode == 0, r.stderr
    assert not (folder / "was_run").exists(), (folder / "was_run").read_text()


def python_itself() -> set[str]:
    """Return the modules that `-m` and the package's `__init__` import before `__main__`."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import sys, runpy, pkgutil, onnxopt; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_processes_are_started_in_one_place() -> None:
    """One module starts programs, with `child`, which keeps the current folder out of the import path; one forks."""
    starts = re.compile(r"\b(Popen|subprocess\.(run|call|check_\w+)|os\.(system|popen|exec\w+|spawn\w+|fork))\(")
    found = {
        (str(file.relative_to(PACKAGE)), "child(" in file.read_text())
        for file in PACKAGE.rglob("*.py")
        if starts.search(file.read_text()) or "multiprocessing" in file.read_text()
    }
    assert found == {("worker/process.py", True), ("worker/forked.py", False)}


@pytest.mark.skipif(os.name == "nt", reason="a current folder cannot be removed there")
def test_a_removed_current_folder_is_an_error(run: Run, tmp_path: Path) -> None:
    """A removed current folder gives exit code 2 and a hint, not an internal error."""
    onnx.save(parser.parse_model(MODEL % "Sin"), tmp_path / "a.onnx")
    for command in ("optimize ../a.onnx ../b.onnx", "stats ../a.onnx", "report ../a.onnx ../a.onnx -o ../r.html"):
        (tmp_path / "gone").mkdir()
        words = ["sh", "-c", f'rmdir ../gone; exec "$0" {command}', str(SCRIPT)]
        done = subprocess.run(words, cwd=tmp_path / "gone", capture_output=True, text=True, check=False)
        assert done.returncode == 2, done
        assert done.stderr.startswith("error: the current folder is not there any more\nhint: "), done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.onnx"]
