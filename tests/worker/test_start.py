"""A Python that cannot start itself: embedded, moved, or in a sandbox."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from onnxopt.cli.run import _OF_A_JOB, SingleRun
from onnxopt.cli.say import OutputSettings
from onnxopt.errors import StartError
from onnxopt.verification import Verifier, VerifyOptions
from onnxopt.worker import process, usual_memory
from onnxopt.worker.limits import Limits
from onnxopt.worker.process import Worker, end_ahead, start, start_ahead
from onnxopt.worker.service import Declined, Sandbox
from tests.samples import build


@pytest.mark.parametrize(
    ("executable", "why"),
    [("/no/python", "/no/python: No such file"), (__file__, "Permission denied"), ("", "does not know where it is")],
)
def test_a_python_that_cannot_be_started(executable: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(StartError, match=why) as found:
        Worker("pass")
    assert found.value.hint
    assert found.value.exit_code == 2, "no bug of ours"


def test_a_fold_is_declined_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/python")
    with Sandbox(Limits()) as room, pytest.raises(Declined, match="no process can be started"):
        room.call("fold")


def test_only_what_needs_one_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs no such process goes on: nothing is verified, and a fold is left alone."""
    import onnxopt
    from onnxopt.errors import OnnxOptError

    build.build_all(tmp_path)
    monkeypatch.setattr(sys, "executable", "/no/python")
    model = tmp_path / "residual_block.onnx"
    with pytest.raises(OnnxOptError, match="no process can be started"):
        onnxopt.optimize_file(model, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()
    assert len(onnxopt.optimize(str(model), verify=False).model.graph.node) == 6


SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")


def pid_of(worker: Worker) -> int:
    with worker:
        found = worker.receive(time.monotonic() + 60, 60)
    assert isinstance(found, int)
    return found


def test_the_next_worker_of_the_same_kind_takes_the_process_started_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os, sys; from onnxopt.worker.serving import send; send(sys.stdout.buffer, os.getpid())"
    started: list[int] = []
    monkeypatch.setattr(process, "start", lambda *a, **k: started.append((p := start(*a, **k)).pid) or p)
    start_ahead(program)
    assert pid_of(Worker(program, usual_memory() - 1)) == started[1], "of another limit"
    assert pid_of(Worker(program, usual_memory())) == started[0]
    assert pid_of(Worker(program, usual_memory())) == started[2]


SHARING = """
import time
from onnxopt.worker import usual_memory
from onnxopt.worker.process import Gone, Worker, end_ahead, start_ahead

program = (
    "import os, sys; from onnxopt.worker.serving import receive, send; out = os.fdopen(os.dup(1), 'wb');"
    "silent = os.path.samestat(os.fstat(2), os.stat(os.devnull));"
    "send(out, ('decimal' in sys.modules, os.getsid(0) == os.getpid(), silent));"
    "send(out, receive(sys.stdin.buffer)); os.abort()"
)
start_ahead(program, ["decimal"])
with Worker(program, usual_memory()) as worker:
    print(*worker.receive(time.monotonic() + 60, 60))
    worker.send("heard")
    print(worker.receive(time.monotonic() + 60, 60))
    try:
        worker.receive(time.monotonic() + 60, 60)
    except Gone as e:
        print(e)
start_ahead(program, ["decimal"])
end_ahead()
start_ahead(program, ["no.such.module"])
Worker(program, usual_memory()).close()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="started elsewhere without a copy")
def test_a_copy_started_ahead_has_the_shared_modules_and_its_own_streams() -> None:
    done = subprocess.run([sys.executable, "-c", SHARING], capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()
    assert said[:2] == ["True True True", "heard"]
    assert said[2].startswith("crashed (SIGABRT)")
    assert not done.stderr


UNHEARD = """
import signal, time
from onnxopt.worker import usual_memory
from onnxopt.worker.process import Gone, Worker, end_ahead, start_ahead

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
start_ahead("import os; os.abort()", ["decimal"])
with Worker("import os; os.abort()", usual_memory()) as worker:
    try:
        worker.receive(time.monotonic() + 60, 60)
    except Gone as e:
        print(e)
start_ahead("import time; time.sleep(60)", ["decimal"])
end_ahead()
print("ended")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="started elsewhere without a copy")
def test_who_ignores_that_children_end_is_told_no_exit_code_of_a_copy() -> None:
    """A command inherits that SIGCHLD is ignored; the system then keeps no exit code."""
    done = subprocess.run([sys.executable, "-c", UNHEARD], capture_output=True, text=True)
    assert (done.stdout.splitlines(), done.stderr) == (["ended with exit code 0", "ended"], "")


WATCHED = """
import sys, threading, time
sys.path.insert(0, {folder!r})
threading.Thread(target=__import__, args=["agent"], daemon=True).start()
from onnxopt.worker import usual_memory
from onnxopt.worker.process import Worker, start_ahead

while "agent" not in sys.modules: time.sleep(0.01)
program = {program!r}
start_ahead(program, ["decimal"])
with Worker(program, usual_memory()) as worker:
    print(worker.receive(time.monotonic() + 20, 20))
"""


def test_a_process_with_an_importing_thread_is_not_copied(tmp_path: Path) -> None:
    """An agent of the environment may import in a thread; a copy waited for its lock without end."""
    is_apart = "threading.current_thread() is not threading.main_thread()"
    (tmp_path / "agent.py").write_text(f"import threading, time; time.sleep(60 * ({is_apart}))")
    send = "from onnxopt.worker.serving import send; send(sys.stdout.buffer, 'started')"
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import agent; {send}"
    code = WATCHED.format(folder=str(tmp_path), program=program)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("started\n", "")


def test_a_process_started_ahead_that_no_worker_takes_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    monkeypatch.setattr(process, "start", lambda *a, **k: ended.append(p := subprocess.Popen([*SLEEP], **k)) or p)
    start_ahead("pass")
    end_ahead()
    assert ended[0].returncode
    end_ahead()


@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_nothing_starts_ahead_in_place_of_a_closed_stream(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, name, None)
    monkeypatch.setattr(process, "start", lambda *a, **k: pytest.fail("its pipes may take the descriptor"))
    start_ahead("pass")


def test_a_worker_reports_what_prevented_its_start_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/python")
    start_ahead("pass")
    with pytest.raises(StartError):
        Worker("pass", usual_memory())


@pytest.mark.parametrize("option", ["", *_OF_A_JOB])
def test_the_original_runs_while_the_command_imports(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless an option changes the job, which is known after the imports."""
    known: list[str] = []

    class Recorded(Verifier):
        def start(self) -> None:
            known.append("started")

        def prepare(self, *given: Any, **how: Any) -> None:
            known.append("prepared")

    monkeypatch.setattr("onnxopt.verification.verifier.Verifier", Recorded)
    asked: dict[str, Any] = dict.fromkeys([*_OF_A_JOB, "dtype", "int32", "strip_qdq", "begin", "end"])
    SingleRun(asked | {"level": 2, option: "given"}, VerifyOptions(), OutputSettings())._started(Path("model.onnx"))
    assert known == ["started", *([] if option else ["prepared"])]
