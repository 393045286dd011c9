"""Values with a different shape or axis order in B: A's value through a Reshape or Transpose."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

_MOST_ORDERS: Final = 24


@dataclass(frozen=True)
class View:
    """Layout of a value in B: A's value transposed, then reshaped."""

    axes: tuple[int, ...] | None  # axis order; None: unchanged
    shapes: tuple[tuple[int, ...], ...]  # by case

    def __call__(self, value: Any, case: int) -> Any:
        turned = value if self.axes is None else value.transpose(self.axes)
        return np.ascontiguousarray(turned).reshape(self.shapes[case])

    def of_case(self, case: int, count: int) -> View:
        """Return a view with the shape of one case, for `count` cases."""
        return View(self.axes, (self.shapes[case],) * count)


def views(a: list[Any], b: list[Any]) -> Iterator[View]:
    """Yield the views of A's values `a` with the shapes of B's values `b`, by case."""
    if not all(isinstance(x, np.ndarray) and isinstance(y, np.ndarray) for x, y in zip(a, b)):
        return
    if any(x.dtype != y.dtype or x.size != y.size for x, y in zip(a, b)) or not a:
        return
    shapes = tuple(y.shape for y in b)
    if any(x.shape != y.shape for x, y in zip(a, b)):
        yield View(None, shapes)
    first, rank = a[0], a[0].ndim
    if rank < 2 or any(x.ndim != rank for x in a):
        return
    if math.factorial(rank) > _MOST_ORDERS * 30:
        return
    exact = [axes for axes in itertools.permutations(range(rank)) if axes != tuple(range(rank))]
    turned = [axes for axes in exact if all(tuple(x.shape[i] for i in axes) == y.shape for x, y in zip(a, b))]
    for axes in turned[:_MOST_ORDERS]:
        yield View(axes, shapes)
    if first.shape == b[0].shape:
        return
    for axes in (axes for axes in exact if axes not in turned and rank <= 4):
        yield View(axes, shapes)
