"""Orders of axes hold of arrays; targets of a Reshape say each dim, or are none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxopt.graph.value import Shape
from onnxopt.rewriting.index_maps import after, constant_target, inverse


@given(st.permutations(range(5)), st.permutations(range(5)))
def test_orders(p: list[int], q: list[int]) -> None:
    x = np.empty((2, 3, 4, 5, 6))
    assert x.transpose(p).transpose(inverse(p)).shape == x.shape
    assert x.transpose(p).transpose(q).shape == x.transpose(after(p, q)).shape


@pytest.mark.parametrize(
    ("dims", "wanted", "target"),
    [
        ((8, "N", 16), (8, "N", 4, 4), [8, 0, 4, 4]),
        (("N", "S", 16), ("N", "S", 4, 4), [0, 0, 4, 4]),
        (("N", 16), (4, "N", 4), [4, -1, 4]),
        ((None, 16), (None, 4, 4), [-1, 4, 4]),  # what is not known is not the same
        (("N", "S", 16), ("N", 4, "S", 4), None),  # a dim of 0 is not copied beside one that is inferred
        (("N", "S"), (1, "N", "S"), None),
        ((2, 0), (0, 2), None),
    ],
)
def test_constant_targets(dims: Shape, wanted: Shape, target: list[int] | None) -> None:
    assert constant_target(dims, wanted) == target
