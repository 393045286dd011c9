"""A worker process as seen by its parent: messages with deadlines, and the cause of its death."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import selectors
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onnxopt.errors import StartError, is_short
from onnxopt.runtime import let_threads_sleep
from onnxopt.startup import postpone_imports
from onnxopt.worker import confinement, usual_memory
from onnxopt.worker.forked import Forked
from onnxopt.worker.serving import HEADER, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from queue import SimpleQueue

CAN_WAIT: Final = sys.platform != "win32"  # the system can wait for a pipe
_CHUNK: Final = 1 << 16  # bytes, what a pipe holds
_POLL: Final = 0.1  # seconds; on Windows, waiting for a queue ignores Ctrl-C
VERIFYING: Final = "from onnxopt.verification.judge import main; main()"  # program of a verification's worker
_HOME: Final = Path(__file__).parents[2]
_CRASHES: Final = 0xC0000000  # smallest Windows exit code of a crash
# Permanent errors, unlike lack of resources.
_BARRED: Final = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ENOSYS)


class Gone(Exception):
    """The worker died, or did not answer in time (`late`). The message follows "onnxruntime"."""

    def __init__(self, how: str, late: bool = False) -> None:
        super().__init__(how)
        self.late = late


def child(program: str) -> list[str]:
    """Return the command of a Python process that runs `program`; all worker processes use it.

    -P: files in the current folder are data and are not imported; the package's own folder is last on the path.
    """
    home = f"import gc, sys; gc.disable(); sys.path.append({str(_HOME)!r})"  # `serve` collects again
    threads = "from onnxopt.runtime import let_threads_sleep; let_threads_sleep()"
    parts = "from onnxopt.startup import postpone_imports; postpone_imports()"
    return [sys.executable, "-P", "-c", f"{home}; {threads}; {parts}; {program}"]


def start(program: str, **given: Any) -> subprocess.Popen[bytes]:
    """Start a process that runs `program`. `given`: further arguments of Popen.

    Raises StartError if impossible: an embedded or moved Python, or a sandbox.
    """
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
    """Return Popen arguments for a separate session, so Ctrl-C reaches only the parent, which ends the worker cleanly.

    On Windows also without a window.
    """
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    return {"start_new_session": True}


def ending(code: int) -> str:
    """Return a description of an exit code: `ended with exit code 3`, `crashed (SIGSEGV)`, `crashed (0xc0000005)`."""
    if code >= _CRASHES:
        return f"crashed ({code:#x})"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"crashed ({signal.Signals(-code).name})"
    except ValueError:  # real-time signals have no names
        return f"crashed (signal {-code})"


_ahead: dict[str, subprocess.Popen[bytes] | Forked] = {}  # started before a `Worker` takes them, by program


def start_ahead(program: str, shared: Sequence[str] = ()) -> None:
    """Start the process of the next `Worker` with `program` and the usual memory limit, while the caller imports.

    shared: modules that both processes import. Linux copies this process with the modules: importing them takes half of
    the start. Errors are left to the start of the `Worker`, and to the caller's imports. A pipe must not get the
    descriptor of a closed standard stream.
    """
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a package that cannot be imported may raise anything
            command = f"{confinement(usual_memory())}; {program}"
            is_alone = threading.active_count() == 1  # see `Forked`: an agent of the environment may run threads
            if sys.platform == "linux" and shared and is_alone and not is_short():
                let_threads_sleep()
                postpone_imports()
                for module in shared:
                    import_module(module)
                _ahead[command] = Forked(command)
            else:
                _ahead[command] = _start_worker(command)


def end_ahead() -> None:
    """End the processes started ahead that no `Worker` took."""
    while _ahead:
        with _ahead.popitem()[1] as process:
            process.kill()


def _start_worker(command: str) -> subprocess.Popen[bytes]:
    return start(command, stderr=subprocess.DEVNULL)


class Worker:
    """A Python process that runs `program`, with messages on stdin and stdout.

    Limited to `memory` bytes (0: no limit). Ends with its parent.
    """

    def __init__(self, program: str, memory: int = 0) -> None:
        self._memory = memory
        command = f"{confinement(memory)}; {program}"
        self._process = _ahead.pop(command) if command in _ahead else _start_worker(command)
        self._pipe = Pipe(self._process.stdout)

    def send(self, message: Any) -> None:
        """Send a message. A dead worker is reported by `receive`."""
        stream = self._process.stdin
        assert stream is not None
        with contextlib.suppress(BrokenPipeError):  # the process died; `receive` reports how
            stream.write(pack(message))
            stream.flush()

    def receive(self, deadline: float, timeout: float) -> Any:
        """Return the next message, before `deadline` on the monotonic clock.

        timeout: seconds named in the error. Raises Gone, and ends a late worker.
        """
        size = HEADER.unpack(self._read(HEADER.size, deadline, timeout))[0]
        return pickle.loads(self._read(size, deadline, timeout))

    def _read(self, size: int, deadline: float, timeout: float) -> bytearray:
        try:
            return self._pipe.take(size, deadline)
        except Late:
            self.close()
            raise Gone(f"did not finish within {timeout:g} s (--timeout)", late=True) from None
        except EOFError:
            raise Gone(self._obituary()) from None

    def _obituary(self) -> str:
        how = ending(self._process.wait())
        if "SIGABRT" in how and self._memory:  # reaction of a runtime's threads to lack of memory
            return f"{how}, perhaps for want of more than {self._memory / (1 << 30):.1f} GiB (--memory)"
        return how + (", out of memory it seems" if "SIGKILL" in how else "")

    def close(self) -> None:
        """End the process at once. May be called repeatedly.

        Reclaiming a runtime's memory takes some 10 ms; only Windows waits, as files stay in use until then.
        """
        if os.name != "nt" and self._process.poll() is None:  # started before the process's end keeps a core busy
            with contextlib.suppress(RuntimeError):  # no further thread possible
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

    def __exit__(self, *error: object) -> None:
        self.close()


# -- reading with a deadline ---------------------------------------------------------------------------------------


class Late(Exception):
    """The data did not arrive in time."""


class Pipe:
    """The reading end of a pipe, exclusively owned. Windows can wait for sockets only, so a thread reads there."""

    def __init__(self, stream: Any) -> None:
        self._rest = bytearray()  # received, not taken yet
        self._more = _reader(stream)

    def take(self, size: int, deadline: float) -> bytearray:
        """Return `size` bytes, before `deadline` on the monotonic clock. Raises Late, and EOFError if the pipe ends."""
        while len(self._rest) < size:
            chunk = self._more(deadline)
            if not chunk:
                raise EOFError
            self._rest += chunk
        taken = self._rest[:size]
        del self._rest[:size]
        return taken


def _reader(stream: Any) -> Callable[[float], bytes]:
    """Return a function of a deadline, which returns available bytes, up to a chunk; b"" at the end. Raises Late.

    A worker sends dozens of short messages: a poll needs no descriptor of its own for each.
    """
    if sys.platform == "win32" or not CAN_WAIT:
        return _Pump(stream)
    selector = selectors.PollSelector()
    selector.register(stream, selectors.EVENT_READ)

    def read(deadline: float) -> bytes:
        if not selector.select(max(0.0, deadline - time.monotonic())):
            raise Late
        data: bytes = stream.read1(_CHUNK)
        return data

    return read


class _Pump:
    """Reads a stream in a thread."""

    def __init__(self, stream: Any) -> None:
        from queue import Empty, SimpleQueue

        self._empty: type[Exception] = Empty
        self._chunks: SimpleQueue[bytes] = SimpleQueue()
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: Any) -> None:
        chunk = b"more"
        while chunk:
            chunk = b""
            with contextlib.suppress(OSError, ValueError):  # closed in the meantime
                chunk = stream.read1(_CHUNK)
            self._chunks.put(chunk)

    def __call__(self, deadline: float) -> bytes:
        while True:
            left = deadline - time.monotonic()
            with contextlib.suppress(self._empty):
                chunk = self._chunks.get(timeout=max(0.0, min(left, _POLL)))
                if not chunk:
                    self._chunks.put(chunk)  # the end stays
                return chunk
            if left <= 0:
                raise Late
