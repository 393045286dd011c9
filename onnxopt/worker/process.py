"""A worker process seen from its parent: messages with a deadline, and what its death was."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from onnxopt.errors import StartError
from onnxopt.worker.frames import HEADER, pack
from onnxopt.worker.limits import confinement
from onnxopt.worker.pipes import Late, Pipe

_HOME: Final = Path(__file__).parents[2]
_CRASHES: Final = 0xC0000000  # exit codes of Windows from here on: a process that did something forbidden
_BARRED: Final = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ENOSYS)  # not for want of room


class Gone(Exception):
    """The worker died or did not answer in time (`late`); says how, in words that follow "onnxruntime"."""

    def __init__(self, how: str, late: bool = False) -> None:
        super().__init__(how)
        self.late = late


def child(program: str) -> list[str]:
    """The command of a Python process that runs `program`: all that we start begin here.

    -P: what lies in the current folder is data, whatever it is called; ours is found after everything else.
    """
    home = f"import sys; sys.path.append({str(_HOME)!r})"
    threads = "from onnxopt.threads import let_threads_sleep; let_threads_sleep()"
    others = "from onnxopt.lazy_modules import postpone_modules; postpone_modules()"
    onnx = "from onnxopt.lazy_onnx import import_onnx_in_parts; import_onnx_in_parts()"
    return [sys.executable, "-P", "-c", f"{home}; {threads}; {others}; {onnx}; {program}"]


def start(program: str, **given: Any) -> subprocess.Popen[bytes]:
    """A process that runs `program`; `given`: more for Popen. Raises StartError where that can never be: for a Python
    that is part of another program, or was moved away; in a sandbox that lets nothing be started."""
    if not sys.executable:
        raise StartError("no process can be started: this Python does not know where it is", "set sys.executable")
    try:
        pipe, more = subprocess.PIPE, _apart() | given
        return subprocess.Popen(child(program), stdin=pipe, stdout=pipe, **more)
    except OSError as e:
        if e.errno not in _BARRED:
            raise
        why = f"{sys.executable}: {e.strerror}"
        raise StartError(
            f"no process can be started: {why}", "onnxopt runs onnxruntime in processes of its own: allow it to"
        ) from None


def _apart() -> dict[str, Any]:
    """Ctrl-C is for us, who then end it: a signal of its own would cut its cleaning up short. On Windows also without a
    window, where we have none."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    return {"start_new_session": True}


def ending(code: int) -> str:
    """`ended with exit code 3`, `crashed (SIGSEGV)`; on Windows `crashed (0xc0000005)`."""
    if code >= _CRASHES:
        return f"crashed ({code:#x})"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"crashed ({signal.Signals(-code).name})"
    except ValueError:  # those of real time have no names
        return f"crashed (signal {-code})"


class Worker:
    """A Python process that runs `program`, and answers messages on its stdin by messages on its stdout.

    It takes at most `memory` bytes (0: whatever there is), and ends with its parent, however that ends.
    """

    def __init__(self, program: str, memory: int = 0) -> None:
        self._memory = memory
        self._process = start(
            f"{confinement(memory)}; {program}",
            stderr=subprocess.DEVNULL,
        )
        self._pipe = Pipe(self._process.stdout)

    def send(self, message: Any) -> None:
        stream = self._process.stdin
        assert stream is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead; receiving says how
            stream.write(pack(message))
            stream.flush()

    def receive(self, deadline: float, timeout: float) -> Any:
        """The next message, before `deadline` on the monotonic clock; `timeout` is what the user asked for, in seconds.

        Raises Gone, and ends a worker that is late.
        """
        size = HEADER.unpack(self._read(HEADER.size, deadline, timeout))[0]
        return pickle.loads(self._read(size, deadline, timeout))

    def _read(self, size: int, deadline: float, timeout: float) -> bytes:
        try:
            return self._pipe.take(size, deadline)
        except Late:
            self.close()
            raise Gone(f"did not finish within {timeout:g} s (--timeout)", late=True) from None
        except EOFError:
            raise Gone(self._obituary()) from None

    def _obituary(self) -> str:
        how = ending(self._process.wait())
        if "SIGABRT" in how and self._memory:  # what a runtime's threads do where memory is refused
            return f"{how}, perhaps for want of more than {self._memory / (1 << 30):.1f} GiB (--memory)"
        return how + (", out of memory it seems" if "SIGKILL" in how else "")

    def close(self) -> None:
        """End it now, whatever it does. May be called again.

        A system takes some 10 ms to take a runtime's memory back, and nobody waits for that, but where files are in use
        until then.
        """
        if os.name != "nt" and self._process.poll() is None:  # before its end keeps a processor busy
            with contextlib.suppress(RuntimeError):  # no thread any more
                threading.Thread(target=self._process.wait, daemon=True).start()
        self._process.kill()
        if os.name == "nt":
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
