"""Scale factors in place of sizes: the runtime's size from the factor, and the factor from sizes."""

from __future__ import annotations

import numpy as np
import pytest

from onnxopt.analysis.shapes import rounding
from onnxopt.analysis.shapes.symbolic import Size, symbol

LONGEST = rounding._MAX_DIM


@pytest.mark.parametrize("times", [*range(1, 9), 17, 100, 255, 256])
def test_a_multiple_is_its_factor_and_the_factor_makes_the_multiple(times: int) -> None:
    n = symbol("n")
    assert rounding._factor(n * times, n) == times
    longest = 2 * LONGEST // times  # what it makes is an axis too
    dims = np.unique([*range(1, 2000), *range(longest - 2000, longest)])
    sizes = dims * times
    quotients = sizes.astype(np.float32) / dims.astype(np.float32)
    assert (quotients == np.float32(times)).all()
    assert np.array_equal((dims.astype(np.float32) * np.float32(times)).astype(np.int64), sizes)


@pytest.mark.parametrize("over", [2**i for i in range(9)])
def test_an_even_part_is_its_factor(over: int) -> None:
    n = symbol("n")
    assert rounding._factor(n, n * over) == 1 / over
    sizes = np.unique([*range(1, 2000), *range(LONGEST // over - 2000, LONGEST // over)])
    quotients = sizes.astype(np.float32) / (sizes * over).astype(np.float32)
    assert (quotients == np.float32(1 / over)).all()


@pytest.mark.parametrize(
    ("size", "dim"),
    [
        (symbol("n"), symbol("m")),
        (symbol("n") + 1, symbol("n")),
        (symbol("n"), symbol("n") * 3),
        (symbol("n") * 3, symbol("n") * 2),
        (symbol("n") * 257, symbol("n")),
        (symbol("n"), symbol("n") * 512),
        (symbol("n") * -1, symbol("n")),
        (0, symbol("n")),
        (symbol("n"), 0),
        (None, symbol("n")),
    ],
)
def test_what_is_no_factor(size: Size | None, dim: Size | None) -> None:
    assert rounding._factor(size, dim) is None
