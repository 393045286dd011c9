"""Jobs on a Dask cluster: the same jobs, sent to its workers, models and results by path or URL."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from onnxopt.batch.job import Job, Outcome
from onnxopt.batch.run import run
from onnxopt.batch.storage import is_url
from onnxopt.errors import UsageError

_RETRIES = 3  # of a job whose worker died


def run_on_dask(jobs: Sequence[Job], address: str, done: Callable[[Outcome], None]) -> list[Outcome]:
    """The outcomes, in the order of the jobs. A job whose worker dies is given to another one.

    Raises UsageError if there is no cluster at `address` (a scheduler, such as `tcp://host:8786`) within the time that
    Dask's own configuration gives it, or Dask is missing.
    """
    try:
        from distributed import Client, as_completed
        from distributed.client import Future
    except ImportError:
        raise UsageError("the executor dask needs Dask", "pip install 'onnxopt[dask]'") from None
    try:
        client = Client(address)
    except (OSError, TimeoutError, ValueError) as e:
        raise UsageError(
            f"no Dask scheduler answers at {address}: {e or type(e).__name__}", "start one: dask scheduler"
        ) from None
    outcomes: dict[int, Outcome] = {}
    with client:
        futures: dict[Future, int] = {
            client.submit(run, portable(job), pure=False, retries=_RETRIES, key=f"onnxopt-{job.token}"): i
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


def portable(job: Job) -> Job:
    """The job with whole paths: its workers have other current folders."""
    verify = job.verify_options
    if verify is not None:
        verify = replace(verify, inputs={name: os.path.abspath(file) for name, file in verify.inputs.items()})
    return replace(
        job,
        source=_whole(job.source),
        destination=_whole(job.destination),
        verify_options=verify,
        cache=job.cache and os.path.abspath(job.cache),
        plugins=tuple(os.path.abspath(p) if p.endswith(".py") else p for p in job.plugins),
        reproducer=job.reproducer and os.path.abspath(job.reproducer),
    )


def _whole(place: str) -> str:
    return place if is_url(place) else os.path.abspath(place)


def _outcome(job: Job, future: Any) -> Outcome:
    if future.status == "finished":
        outcome = future.result()
        assert isinstance(outcome, Outcome)
        outcome.source, outcome.destination = job.source, job.destination  # as the user calls them
        if outcome.report is not None:
            outcome.report["source"] = job.source
            outcome.report["destination"] = job.destination if outcome.report["destination"] else ""
        return outcome
    error = future.exception() if future.status == "error" else None
    said = f"{type(error).__name__}: {error}" if error is not None else future.status
    return Outcome(job.source, job.destination, message=f"{job.source}: on the cluster: {said}")
