"""How long each of a batch is: integers of which the longest is as long as what it is said of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from onnxopt.verification.inputs.plan import InputSpec, Plan

# Where sequences lie, in modes that are tried after those that know nothing of it: behind the batch, or last.
AXES: Final = {"lengths": 1, "last lengths": -1}
_INTEGERS: Final = ("int32", "int64")
_STEP: Final = 3  # each is shorter by a third of the longest


def says_lengths(i: InputSpec) -> bool:
    """May these be lengths: integers, one for each of a batch, that index nothing and are compared with nothing? Those
    of 8 bits hold none."""
    return i.kind in _INTEGERS and len(i.shape) < 2 and not (i.sequence or i.bound or i.compared or i.is_mask)


def longest(plan: Plan, dims: Mapping[str, int], mode: str) -> int | None:
    """The size of the axis that is meant, of the first input of floats that is a batch of something; None in other
    modes."""
    if mode not in AXES:
        return None
    shapes = [i.shape for i in plan.inputs if i.kind.startswith("float") and len(i.shape) > 1]
    size = shapes[0][AXES[mode]] if shapes else None
    return dims.get(size) if isinstance(size, str) else size


def uneven(shape: Sequence[int], most: int) -> Any:
    """The longest first, none of nothing."""
    return np.maximum(1, most - np.arange(math.prod(shape)) * max(1, most // _STEP)).reshape(shape)
