"""Each rule on a few fixed instances that nobody wrote; `make fuzz-rules` draws hundreds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rules.apart import Apart
from tests.rules.campaign import BETWEEN, attempts
from tests.rules.instances import rules

SAMPLE = 3
# Of constants that a node repeats only a few in a hundred are no number, and known, and beside what is as large.
MORE = {"expand_of_operand": 45, "squeeze_of_computed": 300}


@pytest.fixture(scope="module")
def apart() -> Iterator[Apart]:
    with Apart() as made:
        yield made


@pytest.mark.parametrize("name", sorted(set(rules().values())))
def test_rules_on_what_nobody_wrote(name: str, apart: Apart) -> None:
    for rule in (r for r, p in rules().items() if p == name):
        fired = 0
        for number, _, outcome in attempts(apart, rule, MORE.get(rule, SAMPLE), float("inf"), between=BETWEEN):
            hint = f"`python -m tests.rules.shrinking {rule} {number}` prints the smallest model"
            assert not outcome.fault, f"{rule}: {outcome.fault}\n{hint}"
            fired += outcome.fired > 0 and not outcome.left_out
        assert fired, f"no instance of {rule}"
