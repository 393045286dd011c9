"""A fixed sample of the chains drawn by `make fuzz-rules`: one for each pair of operators that move elements."""

from __future__ import annotations

import pytest

from tests.rules.chains import MOVERS, campaign

FIRED = 1


@pytest.mark.parametrize("inner", MOVERS)
def test_chains_of_each_pair(inner: str) -> None:
    for outer in MOVERS:
        _, fired, faults = campaign(f"{inner}-{outer}", FIRED)
        assert not faults, f"{inner}-{outer} {faults[0][0]}: {faults[0][1]}"
        assert fired == FIRED, f"{inner}-{outer}"
