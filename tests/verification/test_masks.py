"""Beside the number that masks a score, the scores still count."""

from __future__ import annotations

import numpy as np
import pytest

from onnxopt.verification.rounding import difference


@pytest.mark.parametrize("mask", [np.finfo(np.float32).min, -1e9, -10000.0, -np.inf])
def test_a_mask_is_not_the_range(mask: float) -> None:
    a = np.array([[0.5, mask, mask], [1.0, -2.0, mask]], np.float32)
    b = a.copy()
    b[1, 1] = -1.9
    assert difference(a, b).relative == pytest.approx(0.05)
    assert difference(a, a).relative == 0


@pytest.mark.parametrize("huge", [[3e4, 2e4], [3e4, 3e4 + 1], [3e4]], ids=["two", "near", "one"])
def test_what_stands_out_is_no_mask(huge: list[float]) -> None:
    a = np.array([0.5, 1.0, *huge], np.float32)
    b = a.copy()
    b[0] += 0.1
    assert difference(a, b).span == 3e4 + (1 if len(huge) == 2 and huge[1] > huge[0] else 0)


def test_a_mask_that_moved_is_the_range() -> None:
    a = np.array([0.5, 1.0, -1e9, -1e9], np.float32)
    b = np.array([0.5, 1.0, -1e9, 1.0], np.float32)
    assert difference(a, b).relative > 0.9
