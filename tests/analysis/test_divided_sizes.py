"""Sizes divided as floats and rounded: known results equal those of floats."""

from __future__ import annotations

import numpy as np
import pytest

from onnxopt.analysis.shapes import rounding

POWERS = (1, 2, 8, 4096, 65536)
OTHERS = (3, 5, 7, 10, 1000, 65535)


@pytest.mark.parametrize("over", [*POWERS, *OTHERS])
@pytest.mark.parametrize("added", [0, 1, -3, 77, 1024, 65536])
def test_what_is_rounded_is_what_floats_make_of_it(over: int, added: int) -> None:
    if not is_known(over, added):
        assert added
        return
    longest = rounding._MAX_DIM if over in POWERS else rounding._MAX_DIM_IF_ROUNDED
    near = [n * over + i for n in (1, 2**10, 2**16, 2**20, longest // over) for i in (-2, -1, 0, 1, 2)]
    sizes = np.array([n for n in [*near, *range(longest - 2000, longest), *range(2000)] if 0 <= n < longest])
    floats = sizes.astype(np.float32) / np.float32(over) + np.float32(added)
    assert np.array_equal(np.ceil(floats).astype(np.int64), -(-sizes // over) + added)
    assert np.array_equal(np.floor(floats).astype(np.int64), sizes // over + added)


def test_a_sum_that_may_round_to_an_integer_is_not_known() -> None:
    assert np.ceil(np.float32(1) / np.float32(1000) + np.float32(65536)) == 65536
    assert not is_known(1000, 65536)
    assert is_known(1000, 1)


def is_known(over: int, added: int) -> bool:
    ratio = rounding._Ratio(np.array([0], object), 1, float(rounding._MAX_DIM)).checked()
    divided = rounding._computed("Div", ratio, over) if ratio is not None else None
    assert divided is not None
    return not added or rounding._computed("Add", divided, added) is not None
