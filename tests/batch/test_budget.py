"""Conditions of a budget, and figures of a report."""

from __future__ import annotations

from typing import Any

import pytest

from onnxopt.batch.budget import figures_of, parse_budget
from onnxopt.errors import UsageError

REPORT: dict[str, Any] = {
    "pipeline": {"nodes_before": 20, "nodes_after": 8, "passes": [{"rules": {"a": {"hits": 3}, "b": {"hits": 4}}}]},
    "verification": {"status": "verified", "worst_rel": 2e-6},
    "bytes_before": 4096,
    "bytes_after": 2048,
    "rolled_back": [],
    "changed": True,
    "seconds": 0.5,
}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes_after > 8", ""),
        ("nodes_after >= 8", "nodes_after >= 8 (nodes_after = 8)"),
        ("nodes_after > 0.3 * nodes_before", "(nodes_after = 8, nodes_before = 20)"),
        ("bytes_after > 1 * KiB and rewrites == 7", "(bytes_after = 2,048, rewrites = 7)"),
        ("not verified or rolled_back", ""),
        ("1 < nodes_removed / 2 < 5", ""),
        ("1 < nodes_removed / 2 <= 6", "nodes_removed = 12"),
        ("max_rel > -1e-6 + 2e-6", "max_rel = 2e-06"),
        ("nodes_after / rolled_back > 1", "rolled_back = 0"),
    ],
)
def test_conditions(text: str, said: str) -> None:
    found = parse_budget(text).exceeded(REPORT)
    assert (said in found) if said else not found


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("nodes > 3", "column 1: 'nodes'"),
        ("nodes_after > abs(3)", "column 15: 'abs(3)'"),
        ("nodes_after >", "column 13: invalid syntax"),
        ("nodes_after ** 2 > 1", "column 1: 'nodes_after ** 2'"),
        ("__import__('os').system('true')", "column 1"),
        ("nodes_after > 'a'", "column 15"),
        ("  nodes_after  >\n True ", "column 15: 'True'"),
        ("nodes_after > 3 - ü", "column 19: 'ü'"),
        ("-" * 400 + "1 > x", "column 405: 'x'"),
        ("(" * 300 + "1" + ")" * 300, "longer than 500"),
        ("nodes_after > \0", "column"),
        ("", "column"),
    ],
)
def test_nothing_else_is_evaluated(text: str, column: str) -> None:
    with pytest.raises(UsageError, match="--fail-if") as caught:
        parse_budget(text)
    assert column in caught.value.message
    assert "nodes_after" in caught.value.hint


@pytest.mark.parametrize(
    ("changed", "verification", "figures"),
    [
        (True, {"status": "inconclusive", "worst_rel": 1e-6}, (1e-6, 0)),
        (True, {"status": "not verified", "worst_rel": 0.0}, (float("inf"), 0)),
        (True, None, (float("inf"), 0)),
        (False, None, (0.0, 1)),
    ],
)
def test_what_was_not_compared_keeps_no_budget(changed: bool, verification: Any, figures: tuple[float, int]) -> None:
    found = figures_of(REPORT | {"changed": changed, "verification": verification})
    assert (found["max_rel"], found["verified"]) == figures
