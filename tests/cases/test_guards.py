"""Every guard of a pass has a case: without the guard, the case fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.guards import PASSES, Guard, Trials, effect, guards_of
from tests.cases.test_cases import CASES


@pytest.fixture(scope="module")
def trials() -> Iterator[Trials]:
    trials = Trials()
    yield trials
    trials.close()


@pytest.mark.parametrize("file", [f for f in PASSES if guards_of(f)], ids=lambda f: f.stem)
def test_no_guard_can_go(file: Path, trials: Trials) -> None:
    assert not [str(g) for g in trials.untried(file)], "guards that no case needs"


def test_nothing_is_different_without_a_guard_that_is_not_there() -> None:
    assert not [c.name for c in CASES[::20] if effect(Guard(Path(), 0), c)]
