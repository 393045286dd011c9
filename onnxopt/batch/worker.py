"""Worker process for jobs.

Reads pickled Jobs on stdin; writes, for each job, pickled names of phases, then a pickled Done on stdout. Imported
modules serve all jobs. When stdin ends, the current job is interrupted and removes its staged files: no worker outlives
its parent.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import queue
import signal
import sys
import threading
import time
from typing import IO, Final

from onnxopt.batch import Done, Job
from onnxopt.batch.run import run
from onnxopt.worker import peak_memory
from onnxopt.worker.service import LARGE, Spare

_MOST_JOBS: Final = 1000  # a restart bounds leaks
_LEGIBLE: Final = 0.05  # seconds


def main() -> None:
    """Serve jobs. An interruption leaves no files behind, and is reported by the parent."""
    gc.disable()  # as in the command: a graph lives as long as its job
    jobs, judge = _Jobs(), Spare()
    with os.fdopen(os.dup(1), "wb") as target:
        os.dup2(2, 1)  # output of plugins must not enter the answers
        tell = _Messages(target)
        try:
            last = False
            while not last and (job := jobs.next()) is not None:
                outcome = run(job, tell.phase, judge=judge)
                jobs.is_busy = False  # before the parent receives the outcome and may close stdin
                last = jobs.taken >= _MOST_JOBS or peak_memory() > LARGE
                tell.done(Done(outcome, last))
                if not last:
                    gc.collect()
                    gc.freeze()  # permanent objects need not be scanned again
        except (KeyboardInterrupt, BrokenPipeError):
            os._exit(130)
    sys.stderr.flush()
    os._exit(0)  # skips freeing the graph object by object


class _Messages:
    """Messages to the parent. Phases change within milliseconds, and only legible ones are sent."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self._phase = self._told = ""
        self._lock = threading.Lock()
        threading.Thread(target=self._tell, daemon=True).start()

    def phase(self, name: str) -> None:
        """Set the phase to announce."""
        self._phase = name

    def done(self, message: Done) -> None:
        """Send the answer to a job."""
        with self._lock:
            self._phase = self._told = ""
            self._send(message)

    def _tell(self) -> None:
        with contextlib.suppress(OSError):  # the main thread also notices the end of the parent
            while True:
                time.sleep(_LEGIBLE)
                with self._lock:
                    if (name := self._phase) not in ("", self._told):
                        self._send(name)
                        self._told = name

    def _send(self, message: object) -> None:
        pickle.dump(message, self._target)
        self._target.flush()


class _Jobs:
    """Reads jobs from stdin in a thread, to notice its end while a job runs."""

    def __init__(self) -> None:
        self.taken = 0
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.is_busy = False
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> Job | None:
        """Return the next job, None after the last."""
        job = self._queue.get()
        self.is_busy = job is not None
        self.taken += 1
        return job

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                job = pickle.load(sys.stdin.buffer)
                assert isinstance(job, Job)
                self._queue.put(job)
        self._queue.put(None)
        if self.is_busy:
            _interrupt()


def _interrupt() -> None:
    """Raise KeyboardInterrupt in the main thread, also during a system call."""
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    if sys.platform == "win32":
        signal.raise_signal(signal.SIGINT)
    else:
        signal.pthread_kill(main_thread, signal.SIGINT)
