"""`benchmarks/peers.py`: the comparison with peers, and the limit for "slower"."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onnxopt.comparison.latency import BenchOptions, Ratio
from tests.samples import ROOT

FILES = {name: Path(name) for name in ("onnxopt", "onnxopt -O3", "onnxsim", "onnxslim")}
RATIOS = {"onnxopt": 0.9, "onnxopt -O3": 0.5, "onnxsim": 0.8, "onnxslim": 0.7}


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import peers

    return peers


def measure(lows: Sequence[float], peers: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[tuple[Any, float]]]:
    """Returns the message for given lower ends of the intervals, and the measurements made."""
    asked: list[tuple[Any, float]] = []

    def bench(files: list[Path], options: BenchOptions) -> SimpleNamespace:
        low = lows[len(asked)]
        asked.append(([file.name for file in files], options.seconds))
        return SimpleNamespace(failure="", ratios=[Ratio(low + 0.01, low, low + 0.02, "")])

    monkeypatch.setattr(peers, "bench", bench)
    return peers.beside(FILES, RATIOS, BenchOptions(seconds=2)), asked


def test_the_fastest_of_the_others_is_measured_anew(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = measure([0.99], peers, monkeypatch)
    assert asked == [(["onnxslim", "onnxopt"], 2)]
    assert str(found) == "onnxslim | 1.000 | 0.990 to 1.010"
    assert not found.slower


@pytest.mark.parametrize(("again", "slower"), [(0.98, False), (1.05, True)])
def test_slower_is_what_is_so_twice(peers: Any, monkeypatch: pytest.MonkeyPatch, again: float, slower: bool) -> None:
    found, asked = measure([1.1, again], peers, monkeypatch)
    assert [seconds for _, seconds in asked] == [2, 8]
    assert found.slower is slower


def test_no_result_of_onnxopt_is_no_success(peers: Any) -> None:
    assert peers.beside(FILES, {"onnxsim": 1.0}, BenchOptions()).slower
    assert peers.beside(FILES, {"onnxopt": 1.0}, BenchOptions()).failure == "no other has a right result"
