"""Jobs on a Dask cluster: the same jobs, sent to its workers, models and results by path or URL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onnxopt.batch.job import Job, Outcome, run
from onnxopt.errors import UsageError

_RETRIES = 3  # of a job whose worker died


def run_on_dask(
    jobs: Sequence[Job], address: str, done: Callable[[Outcome], None], timeout: float = 10.0
) -> list[Outcome]:
    """The outcomes, in the order of the jobs. A job whose worker dies is given to another one.

    Raises UsageError if there is no cluster at `address` (a scheduler, such as `tcp://host:8786`), or Dask is missing.
    """
    try:
        from distributed import Client, as_completed
        from distributed.client import Future
    except ImportError:
        raise UsageError("the executor dask needs Dask", "pip install 'onnxopt[dask]'") from None
    try:
        client = Client(address, timeout=timeout)
    except (OSError, TimeoutError, ValueError) as e:
        raise UsageError(
            f"no Dask scheduler answers at {address}: {e or type(e).__name__}", "start one: dask scheduler"
        ) from None
    outcomes: dict[int, Outcome] = {}
    with client:
        futures: dict[Future, int] = {
            client.submit(run, job, pure=False, retries=_RETRIES, key=f"onnxopt-{i}-{id(job)}"): i
            for i, job in enumerate(jobs)
        }
        try:
            for future in as_completed(futures):
                i = futures[future]
                outcomes[i] = _outcome(jobs[i], future)
                done(outcomes[i])
        except BaseException:
            client.cancel(list(futures))
            raise
    return [outcomes[i] for i in range(len(jobs))]


def _outcome(job: Job, future: Any) -> Outcome:
    if future.status == "finished":
        outcome = future.result()
        assert isinstance(outcome, Outcome)
        return outcome
    error = future.exception() if future.status == "error" else None
    said = f"{type(error).__name__}: {error}" if error is not None else future.status
    return Outcome(job.source, job.destination, message=f"{job.source}: on the cluster: {said}")
