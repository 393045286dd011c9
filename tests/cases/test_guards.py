"""Every guard of a pass is there for a case of it: without the guard, that case fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.guards import PASSES, Guard, effect, guards_of, untried
from tests.cases.test_cases import CASES


@pytest.mark.parametrize("file", [f for f in PASSES if guards_of(f)], ids=lambda f: f.stem)
def test_no_guard_can_go(file: Path) -> None:
    assert not [str(g) for g in untried(file)], "guards that no case needs"


def test_nothing_is_different_without_a_guard_that_is_not_there() -> None:
    assert not [c.name for c in CASES[::20] if effect(Guard(Path(), 0), c)]
