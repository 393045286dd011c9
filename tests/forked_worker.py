"""Workers forked from a forked command: importing Python modules, numpy and onnx dominates a short verification.

The workers are children of the command, run the same program, and share only loaded modules with it. onnxruntime, the
slowest import, is loaded by the command in advance and hidden from it. Tests of commands assert that workers start.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import onnxopt.verification
import onnxopt.worker
from onnxopt.worker import process
from onnxopt.worker.forked import Forked

STARTS = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC", "OMP_", "OPENBLAS", "PATH")  # what counts when a process starts
AS_NEW = "from tests.forked_worker import become_new; become_new()"  # where the program of a worker begins
_POPEN = subprocess.Popen
_OF_WORKERS = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
_RUNTIME: dict[str, ModuleType] = {}  # modules that workers have from the beginning, and commands import


def import_what_workers_do() -> None:
    """Load the modules of judges and folding workers, and onnxruntime, whose modules only workers see."""
    for package in (onnxopt.verification, onnxopt.worker):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)
    importlib.import_module("onnxruntime")
    importlib.import_module("onnx.defs").has("Identity")  # onnx registers all operators at the first question
    for name in [n for n in sys.modules if n.partition(".")[0] == "onnxruntime"]:
        _RUNTIME[name] = sys.modules.pop(name)


def ask(server: socket.socket, request: dict[str, object], ends: Sequence[int]) -> None:
    """Send a request, with copies of descriptors, to a process that forks."""
    data = json.dumps(request).encode()
    socket.send_fds(server, [len(data).to_bytes(8, "little")], ends)
    server.sendall(data)


def asked(client: socket.socket, count: int) -> Iterator[tuple[dict[str, Any], Sequence[int]]]:
    """Yields requests with their descriptors, which the caller closes, until the other side closes."""
    while True:
        size, ends, _, _ = socket.recv_fds(client, 8, count)
        if not size:
            return
        data = b""
        while len(data) < int.from_bytes(size, "little"):
            data += client.recv(1 << 16)
        yield json.loads(data), ends


class ForkedWorker(Forked):
    """A worker that finds onnxruntime loaded."""

    def __init__(self, program: str) -> None:
        super().__init__(f"{AS_NEW}; {program}")


def fork_workers() -> None:
    """From now on, in this process."""
    subprocess.Popen = _started  # type: ignore[assignment, misc]
    process.Forked = ForkedWorker  # type: ignore[misc]


def _started(command: Any, *args: Any, **given: Any) -> Any:
    """Returns a process: forked for a worker, started for all others."""
    return ForkedWorker(command[-1]) if is_worker(command, given) and not args else _POPEN(command, *args, **given)


def is_worker(command: Any, given: dict[str, Any]) -> bool:
    """Returns whether the process to start is a worker of `onnxopt.worker.process`."""
    return command[:-1] == [sys.executable, "-P", "-c"] and given == _OF_WORKERS | {"start_new_session": True}


def become_new() -> None:
    """Take the state of a new process: only its pipes open, default signals; and onnxruntime's modules."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.modules.update(_RUNTIME)
