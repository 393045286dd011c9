"""Any number of wrong rewrites: few trials find them, and the search ends."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from onnxopt import OptimizeOptions, rollback
from onnxopt.bisection import Trials
from onnxopt.optimizer import DifferentResult, Report
from onnxopt.pipeline.registry import load_module
from onnxopt.rollback import optimize_or_roll_back, search
from onnxopt.verification import VerifyOptions
from tests.samples import ROOT, parsed

pytestmark = pytest.mark.usefixtures("kept_judge")

OPTIONS = OptimizeOptions(extra=("wrong-rule",), disable=("simplify-arithmetic",))


@pytest.fixture(autouse=True)
def _broken() -> None:
    load_module(str(ROOT / "tests" / "plugins" / "broken.py"))


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[Trials]:
    """One for each result that was verified on the way."""
    found: list[Trials] = []
    verify = Trials._verify

    def counting(self: Trials, *given: object) -> object:
        found.append(self)
        return verify(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Trials, "_verify", counting)
    return found


def terms(path: Path, wrong: int, right: int = 4) -> Path:
    """Each has an Identity that goes, and a Mul: of so many, what the rule makes of it is wrong."""
    nodes, weights = [], []
    for i in range(wrong + right):
        nodes.append(f"i{i} = Identity (x) m{i} = Mul (i{i}, k{i}) s{i} = Sigmoid (m{i})")
        weights.append(f"float[2] k{i} = {{{-1.5 - i if i < wrong else 1.5 + i}, 0.75}}")
    body = " ".join(nodes) + f" y = Sum ({', '.join(f's{i}' for i in range(wrong + right))})"
    text = f"g (float[N, 2] x) => (float[N, 2] y) <{', '.join(weights)}> {{ {body} }}"
    onnx.save(parsed(text), path)
    return path


def roll_back(folder: Path, wrong: int, lines: list[str] | None = None) -> Report:
    told = [] if lines is None else lines
    source = terms(folder / "m.onnx", wrong)
    return optimize_or_roll_back(
        source, folder / "out.onnx", OPTIONS, verify_options=VerifyOptions(), progress=told.append
    )


@pytest.mark.parametrize(("wrong", "most"), [(1, 1), (2, 1), (4, 1), (16, 2)])
def test_few_results_say_which(wrong: int, most: int, judged: list[Trials], tmp_path: Path) -> None:
    """At most one for each: many places are told apart by one result."""
    report = roll_back(tmp_path, wrong)
    values = [r.value for r in report.rolled_back]
    assert values == [f"m{i}" for i in range(wrong)]
    assert {r.name for r in report.rolled_back} == {"wrong_for_negative_factors"}
    assert report.verification is not None
    assert report.verification.agrees
    assert len(judged) <= most, len(judged)


def test_after_many_results_whole_rules_go(
    judged: list[Trials], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_RESULTS", 0)
    lines: list[str] = []
    report = roll_back(tmp_path, 4, lines)
    assert {(r.name, r.value) for r in report.rolled_back} >= {("wrong_for_negative_factors", "")}
    assert judged == []
    assert "bisecting: after 0 results on the way, whole rules are left out" in lines


def test_where_that_does_not_suffice_it_says_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback, "_MAX_ATTEMPTS", 1)
    with pytest.raises(DifferentResult) as e:
        roll_back(tmp_path, 16)
    assert "without wrong_for_negative_factors@m0, wrong_for_negative_factors@m1, " in e.value.hint
    assert e.value.hint.endswith(" and 4 more it still does")
    assert not (tmp_path / "out.onnx").exists()
