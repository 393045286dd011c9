"""Ctrl-C, SIGTERM, SIGHUP, SIGKILL: no half-written file, no temporary file and no process is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from tests.cli.conftest import SCRIPT, Run

SLEEPER = '''
import pathlib, time
from onnxopt import model_pass, register
@register
@model_pass(opt_level=1)
def sleeper(model, ctx):
    """Sleeps, except over what is called quick."""
    if model.path.stem != "quick":
        pathlib.Path("asleep." + model.path.stem).touch()
        SLEEP
'''
DEEPLY = """
        while True:
            try: time.sleep(60)
            except KeyboardInterrupt: pass
"""


def _hear_the_terminal() -> None:
    """Reset SIGHUP to its default. Under nohup, tests and their processes ignore it, and onnxopt would do so too."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Running:
    """`onnxopt optimize` in its own session. Its processes are found by a variable in their environment."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.folder, self._word = folder, f"ONNXOPT_TEST_{uuid4().hex}"
        (folder / "tmp").mkdir()
        own = {self._word: "1", "TMPDIR": str(folder / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"}
        self._before = set(folder.rglob("*"))
        self.process = subprocess.Popen(
            [SCRIPT, "optimize", *args, "--plugin", "sleeper.py", "--with", "sleeper"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | own,
            preexec_fn=_hear_the_terminal,
        )

    def until(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not happened():
            assert time.monotonic() < deadline, self.left()
            time.sleep(0.02)

    def until_asleep(self, *names: str) -> None:
        self.until(lambda: all((self.folder / f"asleep.{n}").exists() for n in names))

    def until_none_runs(self) -> None:
        """Wait until no process of the command is left.

        A process may end some ms after its parent, as its memory is freed.
        """
        self.until(lambda: not self.processes())

    def ended(self) -> tuple[int, list[str]]:
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said.splitlines()[-2:]

    def left(self) -> set[str]:
        """Return new files, except records of sleeping passes and onnxruntime's own `.ses`."""
        new = set(self.folder.rglob("*")) - self._before
        return {p.name for p in new if not p.name.startswith("asleep.") and p.name != ".ses"}

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if self._word in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found


@pytest.fixture
def start(samples: Path, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started = []

    # A signal at the start of a sleep is handled at its end: many short sleeps.
    def call(*args: str, sleep: str = "for _ in range(600): time.sleep(0.1)") -> Running:
        for name in ("a", "b", "quick"):
            shutil.copy(samples / "residual_block.onnx", tmp_path / f"{name}.onnx")
        (tmp_path / "sleeper.py").write_text(SLEEPER.replace("SLEEP", sleep))
        started.append(Running(tmp_path, *args))
        return started[-1]

    yield call
    for running in started:
        for process in running.processes():
            process.kill()
        running.process.communicate()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("whole_group", [True, False])
def test_one_model(start: Callable[..., Running], stop: signal.Signals, whole_group: bool) -> None:
    running = start("a.onnx", "out.onnx")
    running.until_asleep("a")
    assert len(running.processes()) == 2, "onnxopt, and the process that verifies"
    if whole_group:
        os.killpg(running.process.pid, stop)
    else:
        os.kill(running.process.pid, stop)
    code, (error, hint) = running.ended()
    assert error.startswith("error: interrupted in pass sleeper on a.onnx (sleeper.py:"), error
    assert (code, hint) == (130, "hint: no file is half-written")
    assert running.left() == set()
    running.until_none_runs()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_a_run_on_many_models_leaves_nothing(start: Callable[..., Running], stop: signal.Signals) -> None:
    """Two signals to the whole process group leave no file and no process.

    An impatient user sends them from a terminal.
    """
    running = start("a.onnx", "b.onnx", "--out-dir", "build", "--jobs", "2")
    running.until_asleep("a", "b")
    time.sleep(0.5)  # workers report their state twenty times a second
    os.killpg(running.process.pid, stop)
    os.killpg(running.process.pid, stop)
    code, (error, hint) = running.ended()
    assert error in (f"error: interrupted at {x}.onnx (sleeper), {y}.onnx (sleeper)" for x, y in ("ab", "ba")), error
    assert (code, hint) == (130, "hint: nothing was written")
    assert running.left() == {"build"}
    running.until_none_runs()


def test_finished_models_stay_after_an_interruption(start: Callable[..., Running]) -> None:
    running = start("quick.onnx", "a.onnx", "b.onnx", "--out-dir", "build")
    running.until_asleep("a")
    os.killpg(running.process.pid, signal.SIGINT)
    code, said = running.ended()
    assert (code, said[-1]) == (130, "hint: 1 of 3 models were finished before, and stay")
    assert running.left() == {"build", "quick.onnx"}
    running.until_none_runs()


def test_workers_that_ignore_the_interruption_are_killed(start: Callable[..., Running]) -> None:
    running = start("a.onnx", "b.onnx", "--check", "--jobs", "2", sleep=DEEPLY)
    running.until_asleep("a", "b")
    os.kill(running.process.pid, signal.SIGTERM)
    assert running.ended()[0] == 130
    running.until_none_runs()
    assert running.left() == set()


def test_no_worker_outlives_its_parent(start: Callable[..., Running]) -> None:
    running = start("a.onnx", "b.onnx", "--out-dir", "build", "--jobs", "2")
    running.until_asleep("a", "b")
    os.kill(running.process.pid, signal.SIGKILL)
    running.until_none_runs()
    assert running.left() == {"build"}


INITIALIZES = """
import os, signal
class Field:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000): pass
class Owner:
    field = Field()
"""
IMPORTS = '''
import os, sys
from onnxopt import model_pass, register

@register
@model_pass(name="imports")
def imports(model, ctx):
    """Imports something while a result is under way."""
    sys.path.append(os.path.dirname(__file__))
    import initializes
'''


@pytest.mark.parametrize("late", [False, True])
def test_an_interruption_during_the_import_of_a_module_is_no_bug(
    late: bool, run: Run, samples: Path, tmp_path: Path
) -> None:
    """An interruption during the import of a C module gives exit code 130 and leaves no file.

    The exception is replaced there, or aborts the process.
    """
    (tmp_path / "initializes.py").write_text(INITIALIZES)
    (tmp_path / "plugin.py").write_text(IMPORTS if late else INITIALIZES)
    there = set(tmp_path.iterdir())
    more = ["--with", "imports"] if late else []
    done = run("optimize", samples / "residual_block.onnx", "out.onnx", "--plugin", "plugin.py", *more)
    assert done.returncode == 130
    error, hint = done.stderr.split("\n")[-3:-1]
    assert (error[:18], hint) == ("error: interrupted", "hint: no file is half-written"), error
    assert set(tmp_path.iterdir()) == there


def test_an_interruption_before_imports_has_no_traceback(tmp_path: Path) -> None:
    """Ctrl-C before the command's own imports ends the process by the signal, without a traceback."""
    sooner = "import gc, signal; from onnxopt.__main__ import run; " + (
        "signal.signal(signal.SIGINT, signal.default_int_handler); "  # ignored if the tests run in the background
        "gc.disable = lambda: signal.raise_signal(signal.SIGINT); run()"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", sooner], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_second_interruption_while_an_error_is_printed(tmp_path: Path) -> None:
    """An interruption while an error is printed gives exit code 130. A second Ctrl-C usually comes at this time."""
    later = "import signal, onnxopt.cli.main as m; " + (
        "m.say_error = lambda *a, **k: signal.raise_signal(signal.SIGINT); m.main()"
    )
    words = [sys.executable, "-P", "-c", later, "stats", "nothing.onnx"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")
