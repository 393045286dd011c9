"""Folders for unfinished files, removed by the next process if their process was killed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onnxopt.batch.job import Job
from onnxopt.batch.storage import is_url
from onnxopt.errors import unwritable
from onnxopt.io.locks import alone_in
from onnxopt.io.staging import MANY, StagingFolder, clear


@contextmanager
def staging(job: Job) -> Iterator[StagingFolder]:
    """Yield a folder for the result on the destination's file system. Raises WriteError."""
    place = _place(job)
    try:
        place.mkdir(parents=True, exist_ok=True)
        folder = StagingFolder(place, MANY, os.path.basename(os.path.realpath(job.destination)))
    except OSError as e:
        raise unwritable(job.destination, e, "name a folder that can be written") from None
    try:
        yield folder
    finally:
        folder.remove()


@contextmanager
def fetching() -> Iterator[Path]:
    """Yield a folder for a downloaded model."""
    folder = StagingFolder(Path(tempfile.gettempdir()), MANY)
    try:
        yield folder.path
    finally:
        folder.remove()


def clear_staging(job: Job) -> None:
    """Remove files staged for a job by a killed process."""
    for place in {_place(job), Path(tempfile.gettempdir())}:
        with alone_in(place):
            clear(place, MANY)


def _place(job: Job) -> Path:
    """Return the destination's folder; a temporary folder for URLs and checks."""
    if job.check or is_url(job.destination):
        return Path(tempfile.gettempdir())
    return Path(os.path.realpath(job.destination)).parent
