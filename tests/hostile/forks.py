"""A process that runs the command many times: each run is a fork, so a thousand runs need one start.

Requests are lines of JSON from stdin, answers lines of JSON on stdout. Linux only, for the processes left by a run.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import json
import os
import resource
import select
import signal
import sys
import time
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from tests.forked_worker import fork_workers, import_what_workers_do

MEMORY = 3 << 30  # bytes for each process of a run, so that a fault does not take the machine down
GRACE = 10.0  # seconds until every process of a run must have ended
_SUBREAPER = 36


def main() -> None:
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)  # processes left by a run become children of this process
    from onnxopt.cli.main import _COMMANDS  # every module that a run would import

    for name in _COMMANDS:
        import_module(f"onnxopt.cli.{name}")
    for module in ("numpy", "onnx.reference", "onnx.shape_inference", "onnxopt.api.optimizing"):
        import_module(module)
    for folder in ("analysis", "graph", "io", "passes", "pipeline", "reporting", "rewriting"):
        package = import_module(f"onnxopt.{folder}")
        for found in walk_packages(package.__path__, f"{package.__name__}."):
            import_module(found.name)
    import_what_workers_do()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    gc.freeze()
    for request in sys.stdin:
        answers.write(json.dumps(serve(json.loads(request))) + "\n")
        answers.flush()


def serve(request: dict[str, Any]) -> dict[str, Any]:
    """Run a request.

    Return {code, seconds, cpu, memory, left}: a negative code is a signal; `left`: processes that outlived the run.
    """
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        try:
            run(request)
        finally:
            os._exit(99)
    waiting = os.pidfd_open(pid)
    late = not select.select([waiting], [], [], request["timeout"])[0]
    os.close(waiting)
    if late:
        os.kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    seconds = time.monotonic() - began
    return {
        "code": os.waitstatus_to_exitcode(status),
        "late": late,
        "seconds": seconds,
        "cpu": usage.ru_utime + usage.ru_stime,
        "memory": usage.ru_maxrss * 1024,
        "left": left_behind(),
    }


def left_behind() -> list[str]:
    """Return the commands of children that do not end, and kill these children."""
    deadline = time.monotonic() + GRACE
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return []
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    with open(f"/proc/self/task/{os.getpid()}/children") as f:
        pids = [int(word) for word in f.read().split()]
    found = []
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as f:
            found.append(f.read().replace(b"\0", b" ").decode(errors="replace").strip())
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return found


def run(request: dict[str, Any]) -> None:
    """Run the command, in the child."""
    os.chdir(request["folder"])
    for descriptor, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["stdout"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        opened = os.open(name, flags)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin = io.TextIOWrapper(os.fdopen(0, "rb", closefd=False))
    for limit, value in ((resource.RLIMIT_DATA, MEMORY), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (value, value))
    os.environ.update(request["env"])
    sys.argv = ["onnxopt", *request["args"]]
    fork_workers()
    code: object = 0
    try:
        from onnxopt.cli.main import main as command

        command()
    except SystemExit as e:
        code = e.code
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 98
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    main()
