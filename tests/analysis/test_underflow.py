"""Losses of a folded weight whose numbers are too small for the type."""

from __future__ import annotations

import numpy as np
import pytest

from onnxopt.analysis.linear import underflows

HALF, SINGLE, DOUBLE = np.float16, np.float32, np.float64


@pytest.mark.parametrize(
    ("numbers", "dtype", "lost"),
    [
        ([], SINGLE, False),
        ([0.0, -0.0], SINGLE, False),
        ([1e-50], SINGLE, True),
        ([-2.3e-45], SINGLE, True),
        ([-3e-44, 1e-50], SINGLE, True),
        ([1.1e-38, 3e-39], SINGLE, False),  # subnormal, by a hair
        ([2.0**-149, 2.0**-140], SINGLE, False),  # exact
        ([1.0, 1e-50], SINGLE, False),
        ([1e-50] * 5000 + [1.0], SINGLE, False),
        ([1e-50] * 5000 + [-1.0], SINGLE, False),
        ([1e-7, -3e-7], HALF, True),
        ([5e-5, 1e-7], HALF, False),
        ([1e-50, np.inf], SINGLE, False),
        ([1e-50, np.nan], SINGLE, False),
        ([1e-320], DOUBLE, False),
    ],
)
def test_a_tensor_that_is_small_throughout(numbers: list[float], dtype: type, lost: bool) -> None:
    wide = np.array(numbers)
    assert underflows(wide, wide.astype(dtype)) is lost


@pytest.mark.parametrize(
    ("numbers", "lost"),
    [
        ([1.0, 1e-50], True),
        ([1.0, 2.3e-45], True),
        ([1.0, 1.1e-38], False),
        ([1.0, 2.0**-149, 0.0], False),
        ([], False),
    ],
)
def test_each_element(numbers: list[float], lost: bool) -> None:
    wide = np.array(numbers)
    assert underflows(wide, wide.astype(SINGLE), each=True) is lost
