"""Jobs on this machine, each in a process of its own: a crash on one model is that model's outcome."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from onnxopt.batch.job import Job, Outcome, clear_staging


def run_locally(jobs: Sequence[Job], processes: int, done: Callable[[Outcome], None]) -> list[Outcome]:
    """The outcomes, in the order of the jobs; `done` hears each as it comes. On an interruption every process is told
    to end, and takes away what it had staged."""
    running: set[subprocess.Popen[bytes]] = set()
    with _pool(max(1, processes), running) as pool:
        futures: dict[Future[Outcome], int] = {pool.submit(_run, job, running): i for i, job in enumerate(jobs)}
        outcomes: dict[int, Outcome] = {}
        waiting = set(futures)
        while waiting:
            finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in finished:
                outcomes[futures[future]] = future.result()
                done(future.result())
    return [outcomes[i] for i in range(len(jobs))]


@contextmanager
def _pool(threads: int, running: set[subprocess.Popen[bytes]]) -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(threads)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list(running):
            process.send_signal(signal.SIGINT)
        raise
    finally:
        pool.shutdown(wait=True)


def _run(job: Job, running: set[subprocess.Popen[bytes]]) -> Outcome:
    process = subprocess.Popen(
        [sys.executable, "-m", "onnxopt.batch.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    running.add(process)
    try:
        answer, _ = process.communicate(pickle.dumps(job))
    finally:
        running.discard(process)
    if process.returncode == 0 and answer:
        outcome = pickle.loads(answer)
        assert isinstance(outcome, Outcome)
        return outcome
    clear_staging(job)
    return Outcome(job.source, job.destination, message=f"{job.source}: {_obituary(process.returncode)}")


def _obituary(code: int) -> str:
    if code < 0:
        return f"the process that optimized it crashed ({signal.Signals(-code).name})"
    return f"the process that optimized it ended with exit code {code}"
