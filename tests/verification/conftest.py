"""Tests of a module share one worker: for a small model, the start of a worker takes most of the time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import keeping_judge

_OWN_WORKERS = "test_lost_workers"  # its tests kill workers


@pytest.fixture(scope="module", autouse=True)
def judge_is_kept(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.path.stem == _OWN_WORKERS:
        yield
    else:
        with keeping_judge():
            yield
