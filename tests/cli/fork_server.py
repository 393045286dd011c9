"""The `onnxopt` command over and over from one start: most of a short run is Python, numpy and onnx beginning.

Each run is a process of its own, forked where the command has numpy and onnx and nothing else: what a command imports
of ours it imports itself, and what it postpones is postponed. It begins in `onnxopt.__main__`, and ends as it does.
A worker that it starts is its child as ever, and runs the same program, but is forked from it (`ForkedWorker`).
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
# The command's own beginning comes before anything else is imported: it postpones what it can.
PROGRAM = f"""
from onnxopt.byte_code import import_from_byte_code; import_from_byte_code()
from onnxopt.lazy_modules import postpone_modules; postpone_modules()
from onnxopt.threads import let_threads_sleep; let_threads_sleep()
from onnxopt.lazy_onnx import import_onnx_in_parts; import_onnx_in_parts()
import onnxopt.__main__, onnxopt.cli.main, numpy, onnx, sys
sys.path.append({str(ROOT)!r})
from tests.cli.fork_server import serve
serve(int(sys.argv[1]))
"""
STARTS = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC", "OMP_", "OPENBLAS", "PATH")  # what counts when a process starts


class ForkServer:
    """One run at a time."""

    def __init__(self, script: Path) -> None:
        self._script = script
        self._env = dict(os.environ)
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, str(other.fileno())],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # as of a run: Python asks once what a stream can do
                stderr=subprocess.PIPE,
            )

    def can_have(self, env: Mapping[str, str]) -> bool:
        """Is a run in this environment the same as one of a new process?"""
        names = (name for name in {*env, *self._env} if env.get(name) != self._env.get(name))
        return not any(name.startswith(STARTS) for name in names)

    def run(self, args: Sequence[str], cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run` with captured text."""
        (out, their_out), (err, their_err) = os.pipe(), os.pipe()
        self._start(args, cwd, env, their_out, their_err)
        os.close(their_out)
        os.close(their_err)
        said = _read_to_the_end(out, err)
        return subprocess.CompletedProcess([str(self._script), *args], self._wait(), *map(_text, said))

    def run_at_terminal(self, args: Sequence[str], cwd: Path, env: Mapping[str, str]) -> tuple[int, str]:
        """(exit code, all that was shown) where both streams are a pseudo-terminal."""
        leading, following = os.openpty()
        self._start(args, cwd, env, following, following)
        os.close(following)
        data = shown_on(leading)
        return self._wait(), _text(data)

    def _start(self, args: Sequence[str], cwd: Path, env: Mapping[str, str], *streams: int) -> None:
        command = [str(self._script), *args]
        request = json.dumps({"argv": command, "cwd": str(cwd), "env": dict(env)}).encode()
        socket.send_fds(self._socket, [len(request).to_bytes(8, "little")], streams)
        self._socket.sendall(request)

    def _wait(self) -> int:
        return int.from_bytes(self._socket.recv(4), "little", signed=True)

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._socket.close()
        self._process.communicate(timeout=30)


def shown_on(terminal: int) -> bytes:
    """All that comes to this side of a pseudo-terminal, until the other is closed; then this one is too."""
    data = b""
    while True:
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:  # nobody has it open any more
            break
        if not chunk:
            break
        data += chunk
    os.close(terminal)
    return data


def _read_to_the_end(*ends: int) -> list[bytes]:
    found = dict.fromkeys(ends, b"")
    with selectors.DefaultSelector() as selector:
        for end in ends:
            selector.register(end, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                chunk = os.read(key.fd, 1 << 16)
                found[key.fd] += chunk
                if not chunk:
                    selector.unregister(key.fd)
                    os.close(key.fd)
    return list(found.values())


def _text(data: bytes) -> str:
    return data.decode().replace("\r\n", "\n").replace("\r", "\n")


def serve(descriptor: int) -> None:
    """Until the other side closes. A request is 8 bytes of its length, with which come a stdout and a stderr, and JSON;
    the answer is the exit code, below zero for a signal."""
    with socket.socket(fileno=descriptor) as asked:
        while True:
            size, streams, _, _ = socket.recv_fds(asked, 8, 2)
            if not size:
                return
            request = b""
            while len(request) < int.from_bytes(size, "little"):
                request += asked.recv(1 << 16)
            pid = os.fork()
            if pid == 0:
                asked.close()
                _become_the_command(json.loads(request), streams)
            for stream in streams:
                os.close(stream)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            asked.sendall(code.to_bytes(4, "little", signed=True))


def _become_the_command(request: dict[str, object], streams: Sequence[int]) -> None:
    try:
        for to, stream in enumerate(streams, 1):
            os.dup2(stream, to)
            os.close(stream)
        os.chdir(str(request["cwd"]))
        env, argv = request["env"], request["argv"]
        assert isinstance(env, dict) and isinstance(argv, list)
        os.environ.clear()
        os.environ.update(env)
        sys.argv[:] = argv
        subprocess.Popen = _started  # type: ignore[assignment, misc]
        from onnxopt.__main__ import run

        run()
    except BaseException:
        import traceback

        traceback.print_exc()
        with contextlib.suppress(OSError):
            sys.stderr.flush()
    os._exit(1)


# -- what a command starts -------------------------------------------------------------------------------------

_POPEN = subprocess.Popen
_OF_WORKERS = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}


class ForkedWorker:
    """As much of a Popen as `onnxopt.worker.process` uses."""

    def __init__(self, program: str) -> None:
        (source, to_it), (from_it, target) = os.pipe(), os.pipe()
        self.returncode: int | None = None
        self._lock = threading.Lock()  # nobody may end a process that has ended, and whose number is another's
        self.pid = os.fork()
        if self.pid == 0:
            _become_a_worker(program, source, target)
        os.close(source)
        os.close(target)
        self.stdin, self.stdout = os.fdopen(to_it, "wb"), os.fdopen(from_it, "rb")

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG)) != (0, 0):
                self.returncode = os.waitstatus_to_exitcode(ended[1])
            return self.returncode

    def wait(self) -> int | None:
        with contextlib.suppress(ChildProcessError):  # whose end another thread was told
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        return self.poll()

    def kill(self) -> None:
        with self._lock:
            if self.returncode is None:
                os.kill(self.pid, signal.SIGKILL)


def _started(command: Any, *args: Any, **given: Any) -> Any:
    """A process: forked if it is a worker, any other as ever."""
    is_worker = command[:-1] == [sys.executable, "-P", "-c"] and given == _OF_WORKERS | {"start_new_session": True}
    return ForkedWorker(command[-1]) if is_worker and not args else _POPEN(command, *args, **given)


def _become_a_worker(program: str, source: int, target: int) -> NoReturn:
    """What a new process has: a session, its pipes and nothing else that is open, signals that mean what they did."""
    code = 1
    try:
        os.setsid()
        os.dup2(source, 0)
        os.dup2(target, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.argv[:] = ["-c"]
        exec(program, {"__name__": "__main__"})
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else e.code is not None
    finally:
        os._exit(code)
