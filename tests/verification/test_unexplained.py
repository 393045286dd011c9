"""Pieces that agree are no proof where the whole differs by far more than rounding does."""

from __future__ import annotations

import pytest

from onnxopt.verification.plan import Plan
from onnxopt.verification.records import IN_PIECES, Verification
from onnxopt.verification.verdict import is_unexplained


@pytest.mark.parametrize(
    ("worst", "noise", "decides", "unexplained"),
    [
        (1e-1, {"y": 1e-7}, False, True),
        (1e-1, {"y": 1e-7, "z": 1e-3}, False, False),  # the network amplifies rounding
        (1e-1, {"y": 1e-7}, True, False),  # a decision may have jumped
        (1e-1, {}, False, False),  # not measured
    ],
)
def test_what_rounding_explains(worst: float, noise: dict[str, float], decides: bool, unexplained: bool) -> None:
    verdict = Verification(IN_PIECES, "", worst_rel=worst, noise=noise)
    assert is_unexplained(verdict, Plan(names=["x"], decides=decides)) is unexplained
