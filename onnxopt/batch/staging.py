"""Folders for what is not finished: named after their job, so that whoever survives it can take them away."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from onnxopt.batch.job import Job
from onnxopt.batch.storage import is_url
from onnxopt.errors import WriteError


def staging(job: Job) -> tempfile.TemporaryDirectory[str]:
    """A folder for the result, on the file system where it goes. Raises WriteError."""
    place = _place(job)
    try:
        place.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=_prefix(job), suffix=".tmp", dir=place)
    except OSError as e:
        raise WriteError(
            f"cannot write {job.destination}: {e.strerror or e}", "name a folder that can be written"
        ) from None


def fetching(job: Job) -> tempfile.TemporaryDirectory[str]:
    """A folder for a model that is not a file here."""
    return tempfile.TemporaryDirectory(prefix=_prefix(job), suffix=".tmp")


def clear_staging(job: Job) -> None:
    """Remove what a process that was killed had staged for this job."""
    for place in {_place(job), Path(tempfile.gettempdir())}:
        for folder in place.glob(f"{_prefix(job)}*.tmp"):
            shutil.rmtree(folder, ignore_errors=True)


def _place(job: Job) -> Path:
    """Beside the destination; anywhere if nothing goes there, or over a network."""
    if job.check or is_url(job.destination):
        return Path(tempfile.gettempdir())
    return Path(os.path.realpath(job.destination)).parent


def _prefix(job: Job) -> str:
    return f".onnxopt.{job.token}."
