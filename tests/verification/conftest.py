"""One worker for the verdicts of a module: its start is most of what one of a small model costs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import keeping_judge

_OWN_WORKERS = "test_lost_workers"  # which is about what becomes of them


@pytest.fixture(scope="module", autouse=True)
def judge_is_kept(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.path.stem == _OWN_WORKERS:
        yield
    else:
        with keeping_judge():
            yield
