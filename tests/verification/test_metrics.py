"""Figures of a comparison are right, checked with numpy's neighbouring numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxopt.verification import VerifyOptions
from onnxopt.verification.compare import cosine, measure, ulp_distance


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_ulp_counts_the_numbers_between(dtype: Any) -> None:
    start = np.array([1.0, -1.0, 1e-3, 0.0], dtype)
    end = start
    for _ in range(5):
        end = np.nextafter(end, dtype(np.inf))
    assert ulp_distance(start, start) == 0
    assert ulp_distance(start, end) == 5
    assert ulp_distance(end, start) == 5


def test_ulp_goes_through_zero() -> None:
    tiny = np.nextafter(np.float32(0), np.float32(1))
    assert ulp_distance(np.array([-tiny]), np.array([tiny])) == 2
    assert ulp_distance(np.array([-0.0]), np.array([0.0])) == 0
    largest = np.array([np.finfo(np.float64).max])
    assert ulp_distance(-largest, largest) == 2 * (0x7FEF_FFFF_FFFF_FFFF)


def test_ulp_of_bfloat16() -> None:
    values = np.array([1.0, 1.0078125], ml_dtypes.bfloat16)
    assert ulp_distance(values[:1], values[1:]) == 1


def test_cosine() -> None:
    a = np.array([1e30, 0, 0], np.float32)
    assert cosine(a, a) == pytest.approx(1)
    assert cosine(a, -a) == pytest.approx(-1)
    assert cosine(a, a[::-1]) == pytest.approx(0)
    assert cosine(a, 0 * a) is None


def test_measure_counts_nan_and_infinities_and_ignores_them() -> None:
    a = np.array([1, np.nan, np.inf, 4], np.float32)
    record = measure("y", a, a.copy(), VerifyOptions())
    assert (record.ok, record.nan, record.inf, record.ulp) == (True, [1, 1], [1, 1], 0)
    b = np.array([1, 2, np.inf, 4], np.float32)
    record = measure("y", a, b, VerifyOptions())
    assert (record.ok, record.nan, record.note) == (False, [1, 0], "NaN in other places")


def test_measure_records_the_tolerance() -> None:
    a = np.ones(3, np.float16)
    assert measure("y", a, a, VerifyOptions()).rtol == 6 * 2.0**-10
    assert measure("y", a, a, VerifyOptions(rtol=0.5, atol=0.25)).atol == 0.25
    whole = measure("y", np.ones(3, np.int64), np.ones(3, np.int64), VerifyOptions())
    assert (whole.rtol, whole.ulp, whole.cosine) == (None, None, None)
