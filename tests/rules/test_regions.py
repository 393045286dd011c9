"""A fixed sample of the regions that `make fuzz-rules` draws for graph passes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Final

import onnx.printer
import pytest

from onnxopt.pipeline import GraphPass, ModelPass, all_passes
from tests.rules.apart import Apart
from tests.rules.regions import REGIONS, WITH_ELEMENTS, region

FIRED: Final = 10  # of each pass
MOST: Final = 60  # drawn


@pytest.fixture(scope="module")
def apart() -> Iterator[Apart]:
    with Apart() as found:
        yield found


def test_each_graph_pass_has_a_generator() -> None:
    passes = {n for n, cls in all_passes(plugins=False).items() if issubclass(cls, GraphPass | ModelPass)}
    assert set(REGIONS) >= passes


@pytest.mark.parametrize("pass_name", sorted(REGIONS))
def test_regions(apart: Apart, pass_name: str) -> None:
    fired = 0
    for number in count():
        model = region(pass_name, number)
        outcome = apart.examine(model, pass_name, empty=pass_name not in WITH_ELEMENTS)
        assert not outcome.fault, f"{pass_name} {number}\n{onnx.printer.to_text(model)}\n{outcome.fault}"
        fired += outcome.fired > 0 and not outcome.left_out
        if fired == FIRED:
            break
        assert number < MOST, f"{fired} of {number} fired"
