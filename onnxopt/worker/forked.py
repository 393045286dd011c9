"""A worker process that is a copy of its parent (Linux): what the parent has imported is not imported again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import NoReturn

if sys.platform == "linux":  # Windows copies no process; libraries of macOS do not bear a copy

    class Forked:
        """A copy of this process that runs `program`, with the parts of Popen's interface that `Worker` uses.

        Not for processes with further threads, whose locks the copy would never see released.
        """

        def __init__(self, program: str) -> None:
            self.returncode: int | None = None
            self._lock = threading.Lock()  # the number of a process that has ended may be another's
            ends: list[int] = []
            try:
                for _ in range(2):
                    ends += os.pipe()
                self.pid = os.fork()
            except OSError:
                for end in ends:
                    os.close(end)
                raise
            source, to_it, from_it, target = ends
            if self.pid == 0:
                os.close(to_it)
                os.close(from_it)
                become(program, source, target)
            os.close(source)
            os.close(target)
            self.stdin, self.stdout = os.fdopen(to_it, "wb"), os.fdopen(from_it, "rb")

        def poll(self) -> int | None:
            """Return the exit code, negative for a signal; None while running."""
            with self._lock:
                if self.returncode is None:
                    ended, status = 1, 0
                    with suppress(ChildProcessError):  # ended, and nobody is told how: SIGCHLD is ignored
                        ended, status = os.waitpid(self.pid, os.WNOHANG)
                    self.returncode = os.waitstatus_to_exitcode(status) if ended else None
                return self.returncode

        def wait(self) -> int:
            """Wait for the end, and return the exit code."""
            with suppress(ChildProcessError):  # another thread was told of the end
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            code = self.poll()
            assert code is not None
            return code

        def kill(self) -> None:
            """End the process, unless it has ended."""
            with self._lock:
                if self.returncode is None:
                    with suppress(ProcessLookupError):
                        os.kill(self.pid, signal.SIGKILL)

        def __enter__(self) -> Forked:
            return self

        def __exit__(self, *error: object) -> None:
            self.stdin.close()
            self.stdout.close()
            self.wait()

    def become(program: str, source: int, target: int) -> NoReturn:
        """Run `program` in a session of its own, stdin and stdout at these descriptors, without stderr; then exit."""
        code = 1
        try:
            os.setsid()
            for end, stream in ((source, 0), (target, 1), (os.open(os.devnull, os.O_WRONLY), 2)):
                os.dup2(end, stream)
            sys.stdin = os.fdopen(0, closefd=False)
            sys.argv[:] = ["-c"]
            exec(program, {"__name__": "__main__"})
            code = 0
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else e.code is not None
        finally:
            os._exit(code)

else:
    Forked = subprocess.Popen[bytes]  # as a program started anew
