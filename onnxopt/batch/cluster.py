"""Jobs on a Dask cluster: sent to workers, with models and results by path or URL."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from onnxopt.batch import Job, Outcome
from onnxopt.batch.places import is_url
from onnxopt.batch.run import run
from onnxopt.errors import UsageError

_RETRIES = 3  # of a job after its worker died


def run_on_dask(jobs: Sequence[Job], address: str, done: Callable[[Outcome], None]) -> list[Outcome]:
    """Return the outcomes in the order of the jobs. A job is retried after its worker died.

    Raises UsageError without Dask, or if no scheduler answers at `address` (`tcp://host:8786`) within Dask's timeout.
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
    """Return the job with absolute paths, as workers have different current folders."""
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
        outcome.source, outcome.destination = job.source, job.destination  # names as given by the user
        if outcome.report is not None:
            outcome.report["source"] = job.source
            outcome.report["destination"] = job.destination if outcome.report["destination"] else ""
        return outcome
    error = future.exception() if future.status == "error" else None
    said = f"{type(error).__name__}: {error}" if error is not None else future.status
    return Outcome(job.source, job.destination, message=f"{job.source}: on the cluster: {said}")
