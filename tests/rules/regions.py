"""Regions that graph passes look for: a model for each number, equal on every machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from onnx import ModelProto

from tests.rules import (
    regions_constants,
    regions_flow,
    regions_layout,
    regions_linear,
    regions_parts,
    regions_sizes,
)

Maker = Callable[[str], ModelProto]

REGIONS: Final[Mapping[str, tuple[Maker, ...]]] = {
    **regions_constants.REGIONS,
    **regions_flow.REGIONS,
    **regions_layout.REGIONS,
    **regions_linear.REGIONS,
    **regions_parts.REGIONS,
    **regions_sizes.REGIONS,
}
"""What draws regions for a pass, by its name."""

WITH_ELEMENTS: Final = frozenset({"shape-arithmetic"})
"""Passes whose results hold of tensors with elements only (docs/rewrites.md)."""


def region(pass_name: str, number: int) -> ModelProto:
    """Returns a model with a possible region of the pass."""
    makers = REGIONS[pass_name]
    return makers[number % len(makers)](f"{pass_name} {number}")
