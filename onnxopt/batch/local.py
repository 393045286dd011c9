"""Jobs on this machine, each in a process of its own: a crash on one model is that model's outcome."""

from __future__ import annotations

import contextlib
import pickle
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from onnxopt.batch.job import Job, Outcome
from onnxopt.batch.staging import clear_staging
from onnxopt.verification.process import child

_START = "from onnxopt.batch.worker import main; main()"
_PATIENCE = 3.0  # seconds for an interrupted process to clean up, before it is killed and we do


def run_locally(
    jobs: Sequence[Job],
    processes: int,
    done: Callable[[Outcome], None],
    phase: Callable[[str, str], None] = lambda source, name: None,
) -> list[Outcome]:
    """The outcomes, in the order of the jobs; `done` hears each as it comes, `phase` what happens to each source now
    (in another thread). On an interruption every process is told to end, and nothing that is unfinished stays."""
    workers = _Workers(phase)
    pool = ThreadPoolExecutor(max(1, processes))
    try:
        futures: dict[Future[Outcome], int] = {pool.submit(workers.run, job): i for i, job in enumerate(jobs)}
        outcomes: dict[int, Outcome] = {}
        waiting = set(futures)
        while waiting:
            finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in finished:
                outcomes[futures[future]] = future.result()
                done(future.result())
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        workers.stop()
        raise
    finally:
        pool.shutdown(wait=True)
    return [outcomes[i] for i in range(len(jobs))]


class _Workers:
    """The processes that run now."""

    def __init__(self, phase: Callable[[str, str], None]) -> None:
        self._phase = phase
        self._running: dict[subprocess.Popen[bytes], Job] = {}
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, job: Job) -> Outcome:
        """The outcome of a job in a new process, also of one that dies."""
        with self._lock:
            if self._stopped:
                return Outcome(job.source, job.destination, message=f"{job.source}: interrupted")
            process = subprocess.Popen(
                child(_START),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for us: a second signal would cut its cleaning up short
            )
            self._running[process] = job
        outcome: object = None
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
            process.stdin.write(pickle.dumps(job))
            process.stdin.flush()
            while isinstance(outcome := pickle.load(process.stdout), str):
                self._phase(job.source, outcome)
        code = process.wait()
        with self._lock:
            del self._running[process]
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                stream.close()
        if isinstance(outcome, Outcome):
            return outcome
        clear_staging(job)
        return Outcome(job.source, job.destination, message=f"{job.source}: {_obituary(code)}")

    def stop(self) -> None:
        """End what runs, and start nothing more."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()  # it hears that
        deadline = time.monotonic() + _PATIENCE
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()  # and `run` removes what it staged


def _obituary(code: int) -> str:
    if code < 0:
        return f"the process that optimized it crashed ({signal.Signals(-code).name})"
    return f"the process that optimized it ended with exit code {code}"
