"""A process that does one job after another: pickled Jobs on stdin; on stdout, of each, pickled names of phases, then
a pickled Done.

What it has imported for one job serves the next. Stdin stays open as long as somebody wants it: when it ends, the job
in hand is interrupted, and takes away what it had staged. So no worker outlives its parent, however that ends.
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

from onnxopt.batch.job import Done, Job
from onnxopt.batch.run import run
from onnxopt.worker.limits import peak_memory
from onnxopt.worker.service import LARGE, Spare

_MOST_JOBS: Final = 1000  # what leaks, in us or in a runtime, ends with the process
_LEGIBLE: Final = 0.05  # seconds


def main() -> None:
    """Serve jobs. An interruption leaves nothing behind, and says nothing: the parent does."""
    gc.disable()  # as in the command: a graph lives as long as its job
    jobs, judge = _Jobs(), Spare()
    with os.fdopen(os.dup(1), "wb") as target:
        os.dup2(2, 1)  # whatever a plugin prints must not enter the answer
        tell = _Telling(target)
        try:
            last = False
            while not last and (job := jobs.next()) is not None:
                outcome = run(job, tell.phase, judge=judge)
                jobs.is_busy = False  # before anybody hears of it, and ends stdin
                last = jobs.taken >= _MOST_JOBS or peak_memory() > LARGE
                tell.done(Done(outcome, last))
                if not last:
                    gc.collect()
                    gc.freeze()  # what is alive now stays, and need not be looked at again
        except (KeyboardInterrupt, BrokenPipeError):
            os._exit(130)
    sys.stderr.flush()
    os._exit(0)  # without taking the graph apart object by object


class _Telling:
    """Messages to the parent. Of the phases, which are forty in as many milliseconds, those that somebody can read."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self._phase = self._told = ""
        self._lock = threading.Lock()
        threading.Thread(target=self._tell, daemon=True).start()

    def phase(self, name: str) -> None:
        self._phase = name

    def done(self, message: Done) -> None:
        with self._lock:
            self._phase = self._told = ""
            self._send(message)

    def _tell(self) -> None:
        with contextlib.suppress(OSError):  # the main thread hears that the parent is gone, too
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
    """Reads stdin in a thread of its own, so that its end is seen while a job runs."""

    def __init__(self) -> None:
        self.taken = 0
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.is_busy = False
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> Job | None:
        """The next job, None after the last."""
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
    """Raise KeyboardInterrupt in the main thread, also where that waits in a system call."""
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    if sys.platform == "win32":
        signal.raise_signal(signal.SIGINT)
    else:
        signal.pthread_kill(main_thread, signal.SIGINT)
