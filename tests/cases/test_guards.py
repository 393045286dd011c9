"""Every guard of a pass is there for a case of it: without the guard, that case fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.guards import PASSES, guards_of, untried


@pytest.mark.parametrize("file", [f for f in PASSES if guards_of(f)], ids=lambda f: f.stem)
def test_no_guard_can_go(file: Path) -> None:
    assert not [str(g) for g in untried(file)], "guards that no case needs"
