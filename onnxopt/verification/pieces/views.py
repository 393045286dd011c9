"""A value that B holds in another shape or order of axes: it is A's, read through a Reshape or Transpose."""

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
    """B's value is A's with its axes in the order `axes` (None: as they are), in the shape that it has in each case."""

    axes: tuple[int, ...] | None
    shapes: tuple[tuple[int, ...], ...]

    def __call__(self, value: Any, case: int) -> Any:
        turned = value if self.axes is None else value.transpose(self.axes)
        return np.ascontiguousarray(turned).reshape(self.shapes[case])

    def of_case(self, case: int, count: int) -> View:
        """The same where so many others have the shape of one case."""
        return View(self.axes, (self.shapes[case],) * count)


def views(a: list[Any], b: list[Any]) -> Iterator[View]:
    """The ways in which the values `b` of the cases may hold what `a` do."""
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
