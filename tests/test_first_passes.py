"""The first passes under examples/: short, and as effective as described."""

from __future__ import annotations

import inspect
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from onnxopt.pipeline import registry
from tests.samples import ROOT

FOLDER = ROOT / "examples" / "first_passes"
LIMITS = {"hard_swish.py": 20, "qdq.py": 20, "flops.py": 15}


@pytest.fixture
def tests(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[..., None]]:
    """The functions of its own test file."""
    monkeypatch.setattr(registry, "_PASSES", registry._PASSES.copy())
    monkeypatch.syspath_prepend(FOLDER)
    found = runpy.run_path(str(FOLDER / "test_first_passes.py"))
    for name in LIMITS:
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"))
    return {name: f for name, f in found.items() if name.startswith("test_")}


def test_their_own_tests_pass(tests: dict[str, Callable[..., None]], tmp_path: Path) -> None:
    assert len(tests) == 3
    for test in tests.values():
        test(*[tmp_path for _ in inspect.signature(test).parameters])


@pytest.mark.parametrize("name", LIMITS)
def test_they_are_short_and_shown(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert sum(bool(line.strip()) for line in text.splitlines()) <= LIMITS[name]
    assert text in (ROOT / "docs" / "first-passes.md").read_text()
