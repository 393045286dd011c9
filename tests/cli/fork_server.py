"""The `onnxopt` command many times from one start: most of a short run is the start of Python, numpy and onnx.

Each run is a forked process. The server has imported the modules that commands on a small model import, but no
passes: these imports are half of a short run. A run begins and ends in `onnxopt.__main__`.
A worker is a child of its run, with the same program, and is forked from the run.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import onnx
import onnx.parser

from onnxopt.errors import UsageError
from tests.forked_worker import STARTS, ask, asked, fork_workers

ROOT = Path(__file__).resolve().parents[2]
# The start of the command precedes all other imports: it imports onnx in parts.
SMALL = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { a = Identity (x) y = Neg (a) }'
PROGRAM = f"""
from onnxopt.runtime import let_threads_sleep; let_threads_sleep()
from onnxopt.startup import postpone_imports; postpone_imports()
import onnxopt.__main__, onnxopt.cli.main, numpy, onnx, sys
sys.path.append({str(ROOT)!r})
from tests.cli.fork_server import import_what_runs_do, serve
from tests.forked_worker import import_what_workers_do
import_what_workers_do()
import_what_runs_do({SMALL!r})
serve(int(sys.argv[1]))
"""
RUNS = (
    *("optimize a.onnx b.onnx", "verify a.onnx b.onnx", "stats a.onnx b.onnx", "diff a.onnx b.onnx"),
    *("report a.onnx b.onnx -o r.html", "extract a.onnx c.onnx --outputs a", "partition a.onnx --ops Neg"),
    *("passes", "explain dead-code", "why a.onnx elim_identity", "find a.onnx Neg(x)", "bisect a.onnx"),
)
SECONDS = 600  # a longer run is ended by SIGALRM


class ForkServer:
    """Run commands, one at a time, as forks of a started process."""

    def __init__(self, script: Path) -> None:
        self._script = script
        self._env = dict(os.environ)
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, str(other.fileno())],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # a pipe, as for a run: Python reads the properties of a stream once
                stderr=subprocess.PIPE,
            )

    def can_have(self, env: Mapping[str, str]) -> bool:
        """Return whether a run with this environment equals a run of a new process."""
        names = (name for name in {*env, *self._env} if env.get(name) != self._env.get(name))
        return not any(name.startswith(STARTS) for name in names)

    def run(
        self,
        args: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        *,
        together: bool = False,
        stdin: int | None = None,
        limits: Mapping[int, int] = {},
        seconds: int = SECONDS,
    ) -> subprocess.CompletedProcess[str]:
        """Run the command like `subprocess.run` with captured text.

        together: stderr goes to stdout, in order. stdin: a descriptor; default: /dev/null. limits: resource
        (`resource.RLIMIT_DATA`) and its limit. seconds: SIGALRM ends a longer run.
        """
        (out, their_out), (err, their_err) = os.pipe(), os.pipe()
        limited = {"limits": [*limits.items()], "seconds": seconds}
        streams = [their_out, their_out if together else their_err, *([] if stdin is None else [stdin])]
        self._start(args, cwd, env, *streams, **limited)
        os.close(their_out)
        os.close(their_err)
        said = _read_to_the_end(out, err)
        return subprocess.CompletedProcess([str(self._script), *args], self._wait(), *map(_text, said))

    def run_at_terminal(self, args: Sequence[str], cwd: Path, env: Mapping[str, str]) -> tuple[int, str]:
        """Run the command with both streams at a pseudo-terminal. Return (exit code, output)."""
        leading, following = os.openpty()
        self._start(args, cwd, env, following, following)
        os.close(following)
        data = shown_on(leading)
        return self._wait(), _text(data)

    def _start(self, args: Sequence[str], cwd: Path, env: Mapping[str, str], *streams: int, **more: object) -> None:
        command = [str(self._script), *args]
        ask(self._socket, {"argv": command, "cwd": str(cwd), "env": dict(env)} | more, streams)

    def _wait(self) -> int:
        return int.from_bytes(self._socket.recv(4), "little", signed=True)

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._socket.close()
        self._process.communicate(timeout=30)


def shown_on(terminal: int) -> bytes:
    """Return the output at this end of a pseudo-terminal, until the other end is closed. Close this end."""
    data = b""
    while True:
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:  # every other end is closed
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


def import_what_runs_do(model: str) -> None:
    """Import the modules that commands import for the text `model`, without passes. A fork runs the commands."""
    source, target = os.pipe()
    if os.fork() == 0:
        os.close(source)
        _tell_modules(model, target)
    os.close(target)
    with os.fdopen(source) as told:
        names = told.read().split()
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0 and names
    for name in names:
        importlib.import_module(name)


def _tell_modules(model: str, target: int) -> NoReturn:
    """Run the commands in this process, write the names of imported modules to `target`, and exit."""
    code, before = 1, {*sys.modules}
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        fork_workers()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            onnx.save(onnx.parser.parse_model(model), "a.onnx")
            from onnxopt.cli.main import cli

            for words in RUNS:
                with contextlib.suppress(SystemExit, UsageError):  # exit codes of commands, and nothing to bisect
                    cli(words.split(), standalone_mode=False, obj=time.perf_counter())
        found = [n for n in sys.modules if n not in before and not n.startswith("onnxopt.passes.")]
        os.write(target, "\n".join(found).encode())
        code = 0
    finally:
        os._exit(code)


def serve(descriptor: int) -> None:
    """Answer requests until the other side closes.

    A request is its length (8 bytes) with the descriptors of stdout, stderr and maybe stdin, then JSON. An answer is
    the exit code, negative for a signal.
    """
    gc.freeze()  # forks need not traverse objects made before
    with socket.socket(fileno=descriptor) as client:
        for request, streams in asked(client, 3):
            pid = os.fork()
            if pid == 0:
                client.close()
                _become_the_command(request, streams)
            for stream in streams:
                os.close(stream)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            client.sendall(code.to_bytes(4, "little", signed=True))


def _become_the_command(request: dict[str, object], streams: Sequence[int]) -> None:
    try:
        for to, stream in zip((1, 2, 0), streams):
            os.dup2(stream, to)
            os.close(stream)
        os.chdir(str(request["cwd"]))
        env, argv = request["env"], request["argv"]
        limits, seconds = request.get("limits", []), request.get("seconds", SECONDS)
        assert isinstance(env, dict) and isinstance(argv, list)
        assert isinstance(limits, list) and isinstance(seconds, int)
        signal.alarm(seconds)
        for kind, limit in limits:
            import resource

            resource.setrlimit(kind, (limit, limit))
        os.environ.clear()
        os.environ.update(env)
        sys.argv[:] = argv
        fork_workers()
        from onnxopt.__main__ import run

        run()
    except BaseException:
        import traceback

        traceback.print_exc()
        with contextlib.suppress(OSError):
            sys.stderr.flush()
    os._exit(1)
