"""Jobs on this machine, in processes that each run jobs in sequence: a crash is the outcome of a single model."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from onnxopt.batch import Done, Job, Outcome
from onnxopt.batch.places import clear_staging
from onnxopt.worker.process import end_ahead, ending, start

_START = "from onnxopt.batch.worker import main; main()"
_LOOK = 0.2 if sys.platform == "win32" else None  # seconds; on Windows, an endless wait ignores Ctrl-C
_PATIENCE = 3.0  # seconds for an interrupted process to clean up before it is killed


def run_locally(
    jobs: Sequence[Job],
    processes: int,
    done: Callable[[Outcome], None],
    phase: Callable[[str, str], None] = lambda source, name: None,
) -> list[Outcome]:
    """Return the outcomes in the order of the jobs.

    done: called with each outcome; phase: called with (source, activity) in a second thread. On an interruption all
    processes end, and unfinished files are removed.
    """
    end_ahead()  # each process has a worker of its own
    workers = _Workers(phase)
    pool = ThreadPoolExecutor(max(1, processes))
    try:
        # The longest job should not start last.
        largest_first = sorted(range(len(jobs)), key=lambda i: -_size(jobs[i].source))
        futures: dict[Future[Outcome], int] = {pool.submit(workers.run, jobs[i]): i for i in largest_first}
        outcomes: dict[int, Outcome] = {}
        left = set(futures)
        while left:
            finished, left = wait(left, _LOOK, FIRST_COMPLETED)
            for future in sorted(finished, key=futures.__getitem__):
                outcomes[futures[future]] = future.result()
                done(future.result())
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        workers.stop()
        raise
    finally:
        pool.shutdown(wait=True)
        workers.close()
    return [outcomes[i] for i in range(len(jobs))]


class _Workers:
    """The running processes: each thread of the pool has one."""

    def __init__(self, phase: Callable[[str, str], None]) -> None:
        self._phase = phase
        self._own = threading.local()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, job: Job) -> Outcome:
        """Return the outcome of a job, also if its process dies."""
        process = self._process()
        if process is None:
            return Outcome(job.source, job.destination, message=f"{job.source}: interrupted")
        answer: object = None
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
            process.stdin.write(pickle.dumps(job))
            process.stdin.flush()
            while isinstance(answer := pickle.load(process.stdout), str):
                self._phase(job.source, answer)
        if isinstance(answer, Done) and not answer.last:
            return answer.outcome
        self._own.process = None
        code = process.wait()
        if isinstance(answer, Done):
            return answer.outcome
        clear_staging(job)
        message = f"{job.source}: the process that optimized it {ending(code)}"
        return Outcome(job.source, job.destination, message=message)

    def _process(self) -> subprocess.Popen[bytes] | None:
        """Return the thread's process, started unless it runs; None after `stop`."""
        with self._lock:
            if self._stopped:
                return None
            if getattr(self._own, "process", None) is None:
                self._own.process = start(_START)
                self._running.add(self._own.process)
            process: subprocess.Popen[bytes] = self._own.process
            return process

    def stop(self) -> None:
        """End all processes, and start no more."""
        with self._lock:
            self._stopped = True
        for process in self._running:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()  # interrupts the process
        deadline = time.monotonic() + _PATIENCE
        for process in self._running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()  # `run` removes its staged files

    def close(self) -> None:
        """Stop, after all threads have ended."""
        self.stop()
        for process in self._running:
            with contextlib.suppress(OSError), process:
                pass  # its pipes are closed


def _size(source: str) -> int:
    try:
        return os.path.getsize(source)
    except OSError:  # a URL, or a missing file
        return 0
