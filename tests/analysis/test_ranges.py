"""Integers known to fit a type do fit, at all sizes that a machine can hold."""

from __future__ import annotations

import pytest
from onnx import TensorProto

from onnxopt.analysis.shapes.symbolic import Monomial, Size, fits, symbol

N, M, K = symbol("n"), symbol("m"), symbol("k")
INT32, INT64 = TensorProto.INT32, TensorProto.INT64


@pytest.mark.parametrize(
    ("size", "data_type", "expected"),
    [
        ((1 << 31) - 1, INT32, True),
        (-(1 << 31), INT32, True),
        (1 << 31, INT32, False),
        (-(1 << 31) - 1, INT32, False),
        (1 << 31, INT64, True),
        (-(1 << 63), INT64, True),
        (1 << 63, INT64, False),
        (N, INT32, True),
        (64 * N + 1000, INT32, True),
        (64 * N - 64 * M, INT32, False),
        (N + (1 << 31) - 1, INT32, False),
        (N * M, INT32, False),
        (1024 * N * M, INT64, True),
        (N * M * (1 << 20), INT64, False),
        (N * N * N, INT64, False),
        (N * M * K * 1024, INT64, True),  # one tensor has these dims
        (N * M * K * (1 << 40), INT64, False),
        (1, TensorProto.BOOL, False),
    ],
)
def test_what_fits(size: Size, data_type: int, expected: bool) -> None:
    def is_counted(product: Monomial) -> bool:
        return product == ("k", "m", "n")

    assert fits(size, data_type, is_counted) == expected
