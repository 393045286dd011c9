"""The same machine for all tests; and for those that optimize or verify hundreds of small models, the process that
folds what is risky, or judges, is kept for the next one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from onnxopt.verification import session
from onnxopt.worker import room
from onnxopt.worker.service import Spare

# What commands do otherwise in a build, in colours, or as their user has set them up.
for name in (
    *("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"),
    *("ONNXOPT_DEBUG", "ONNXOPT_PROJECT_FILE", "ONNXOPT_CACHE_KEY"),
):
    os.environ.pop(name, None)


@contextmanager
def keeping_worker() -> Iterator[None]:
    """Its start is most of what a fold there costs; that it starts and ends is tested elsewhere."""
    spare = Spare()

    def close(self: room.Room) -> None:
        if self._service is not None:
            spare.keep(self._service)
            self._service = None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "Service", spare.take)
        patch.setattr(room.Room, "close", close)
        yield
    spare.close()


@pytest.fixture(scope="module")
def kept_worker() -> Iterator[None]:
    with keeping_worker():
        yield


@contextmanager
def keeping_judge() -> Iterator[None]:
    """As a batch does with its small models: the worker forgets what it was told, and has imported what it needs.

    One of another program, or with another limit, is a new one; so is one that died, or has had much memory.
    """
    spare = Spare()

    def close(self: session.Session) -> None:
        if self._service is not None:
            spare.keep(self._service)
            self._service = None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "Service", spare.take)
        patch.setattr(session.Session, "close", close)
        yield
    spare.close()


@pytest.fixture(scope="module")
def kept_judge() -> Iterator[None]:
    with keeping_judge():
        yield
