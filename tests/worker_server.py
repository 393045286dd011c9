"""Workers of tests that call Python, forked from a process with onnxruntime loaded (see `forked_worker.py`).

The process of the tests has run models, and a fork has none of a runtime's threads; so a server forks. The parent of a
worker is a process of the server that waits for it and reports its exit code.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from onnxopt.worker import process
from onnxopt.worker.forked import become
from tests.forked_worker import AS_NEW, STARTS, ask, asked, is_worker

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = f"""
import sys
sys.path.append({str(ROOT)!r})
from tests.forked_worker import import_what_workers_do
from tests.worker_server import serve
import_what_workers_do()
serve(int(sys.argv[1]))
"""
_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)


def _surroundings() -> tuple[object, ...]:
    """Returns the state that a new process inherits from this one, and the server from its own start."""
    env = {name: value for name, value in os.environ.items() if name.startswith(STARTS)}
    return env, sys.executable, [resource.getrlimit(kind) for kind in _LIMITS]


class WorkerServer:
    """Forks workers, one at a time, until this process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.surroundings = _surroundings()
        with other:
            command = [sys.executable, "-P", "-c", PROGRAM, str(other.fileno())]
            try:
                self._process = subprocess.Popen(command, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL)
            except OSError:  # of a test's executable
                self._socket.close()
                raise

    def ask(self, program: str, *ends: int) -> None:
        """Start a process that runs `program`. `ends`: its stdin, its stdout, and the pipe for its exit code."""
        request = {"program": program, "parent": os.getpid(), "cwd": os.getcwd(), "env": dict(os.environ)}
        with self._lock:
            ask(self._socket, request, ends)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


class ServedWorker:
    """As much of a Popen as `onnxopt.worker.process` uses."""

    def __init__(self, server: WorkerServer, program: str) -> None:
        (source, to_it), (from_it, target), (status, told) = os.pipe(), os.pipe(), os.pipe()
        server.ask(program, source, target, told)
        for end in (source, target, told):
            os.close(end)
        self._status = os.fdopen(status, "rb", buffering=0)
        self.pid = int.from_bytes(self._status.read(4), "little")
        self.returncode: int | None = None
        self._lock = threading.Lock()  # nobody may end a process that has ended, and whose number is another's
        self.stdin, self.stdout = os.fdopen(to_it, "wb"), os.fdopen(from_it, "rb")

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._status], [], [], 0)[0]:
                self.returncode = int.from_bytes(self._status.read(4), "little", signed=True)
                self._status.close()
            return self.returncode

    def wait(self) -> int | None:
        with contextlib.suppress(ValueError, OSError):  # another thread was told, and has closed it
            select.select([self._status], [], [])
        return self.poll()

    def kill(self) -> None:
        with self._lock:
            if self.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)


@cache
def _server() -> WorkerServer:
    return WorkerServer()


def fork_workers() -> None:
    """From now on, workers of this process are forked; a server starts with the first."""
    process.subprocess = _Starting()  # type: ignore[assignment]


def end_server() -> None:
    if _server.cache_info().currsize:
        _server().close()


class _Starting:
    """The module `subprocess`, but for how processes are started."""

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, command: Any, *args: Any, **given: Any) -> Any:
        if args or not is_worker(command, given) or _server().surroundings != _surroundings():
            return subprocess.Popen(command, *args, **given)
        return ServedWorker(_server(), command[-1])


def serve(descriptor: int) -> None:
    """Fork a worker for each request until the other side closes.

    A request is the length in 8 bytes, sent with three descriptors, and JSON; the answers are the worker's number in 4
    bytes, and its exit code in 4 bytes at its end.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who waits for workers ends by itself
    gc.freeze()  # forks need not go through what is here
    with socket.socket(fileno=descriptor) as client:
        for request, ends in asked(client, 3):
            if os.fork() == 0:
                client.close()
                _wait_for_a_worker(request, *ends)
            for end in ends:
                os.close(end)


def _wait_for_a_worker(request: dict[str, Any], source: int, target: int, told: int) -> NoReturn:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.chdir(request["cwd"])
            os.environ.clear()
            os.environ.update(request["env"])
            theirs = f"confine({request['parent']}, "  # of whom a worker does not outlive
            program = request["program"].replace(theirs, f"confine({parent}, ")
            become(f"{AS_NEW}; {program}", source, target)
        os.close(source)
        os.close(target)
        os.write(told, pid.to_bytes(4, "little"))
        os.write(told, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]).to_bytes(4, "little", signed=True))
    finally:
        os._exit(0)
