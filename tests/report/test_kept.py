"""What is said of what was kept."""

from __future__ import annotations

import pytest

from onnxopt.report import kept


@pytest.mark.parametrize(
    ("weights", "last"), [(3, "`w2`"), (4, "and 1 more weight (-v)"), (5, "and 2 more weights (-v)")]
)
def test_weights_that_are_not_named_are_counted(weights: int, last: str) -> None:
    rule = {"hits": 0, "declined": {f"`w{i}`": (1, "") for i in range(weights)}}
    report = {"pipeline": {"passes": [{"name": "convert-dtype", "rules": {"narrow": rule}}]}}
    assert [*kept.lines(report)][-1] == f"kept: {last}"
