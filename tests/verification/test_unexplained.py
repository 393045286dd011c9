"""Agreeing pieces prove nothing if the outputs differ by far more than rounding explains."""

from __future__ import annotations

import pytest

from onnxopt.verification import IN_PIECES
from onnxopt.verification.inputs.plan import Plan
from onnxopt.verification.records import CaseRecord, OutputRecord, Verification
from onnxopt.verification.verdict import is_unexplained


@pytest.mark.parametrize(
    ("worst", "noise", "decides", "unexplained"),
    [
        (1e-1, {"y": 1e-7}, False, True),
        (1e-1, {"y": 1e-7, "z": 1e-3}, False, False),  # the network amplifies rounding
        (1e-1, {"y": 1e-7}, True, False),  # a decision may have jumped
        (1e-1, {}, False, False),  # not measured
        (1e-1, {"y": 0.0}, False, True),  # zero
        (float("inf"), {}, False, False),  # relative to zero
    ],
)
def test_differences_beyond_noise_are_unexplained(
    worst: float, noise: dict[str, float], decides: bool, unexplained: bool
) -> None:
    verdict = Verification(IN_PIECES, "", worst_rel=worst, noise=noise)
    assert is_unexplained(verdict, Plan(names=["x"], decides=decides)) is unexplained


@pytest.mark.parametrize(("note", "unexplained"), [("shape [2] became [3]", True), ("type a became b", False)])
def test_no_rounding_changes_a_shape(note: str, unexplained: bool) -> None:
    output = OutputRecord("y", "float32", [2], float("inf"), float("inf"), True, note)
    verdict = Verification(IN_PIECES, "", worst_rel=float("inf"), cases=[CaseRecord("a", {}, [output])])
    assert is_unexplained(verdict, Plan(names=["x"])) is unexplained


def test_zero_noise_of_a_narrower_type_is_no_evidence() -> None:
    verdict = Verification(IN_PIECES, "", worst_rel=1e-3, noise={"y": 0.0})
    assert not is_unexplained(verdict, Plan(names=["x"]), narrow=True)
