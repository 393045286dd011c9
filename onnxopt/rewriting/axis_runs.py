"""Axis permutations, and dims as sizes and as Reshape targets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from onnxopt.analysis.shapes.symbolic import Size, TooComplex, symbol
from onnxopt.graph.value import Dim

_KEPT: Final = 1024  # entries: a model has few different dims
_PRODUCT: Final = r"\{([\w.?@]+(?:\*[\w.?@]+)*)\}"  # products of numbers and symbols only


def inverse(perm: Sequence[int]) -> tuple[int, ...]:
    """Return the inverse permutation: inverse(p)[p[i]] = i."""
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


def after(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """Return the single permutation equal to Transpose(Transpose(x, first), second)."""
    return tuple(first[i] for i in second)


def constant_target(dims: Sequence[Dim | Size], wanted: Sequence[Dim | Size]) -> list[int] | None:
    """Return the Reshape target from `dims` to `wanted`: 0 for a symbol kept in place, -1 for a single other unknown
    dim.

    None if no such target exists. Never both 0 and -1: runtimes reject a -1 when the copied dim turns out to be 0.
    """
    stays = [not isinstance(d, int | None) and [*dims[i : i + 1]] == [d] for i, d in enumerate(wanted)]
    target = [d if isinstance(d, int) else 0 if same else -1 for d, same in zip(wanted, stays)]
    unknown = target.count(-1)
    return None if 0 in wanted or unknown > 1 or (unknown and any(stays)) else target


def product(dims: Sequence[Dim]) -> Size | None:
    """Return the number of elements along axes of these dims; None if a dim is unknown."""
    total: Size = 1
    try:
        for d in dims:
            size = size_of(d)
            if size is None:
                return None
            total = total * size
    except TooComplex:
        return None
    return total


def size_of(dim: Dim) -> Size | None:
    """Return a dim as a Size, with products of symbols parsed."""
    return _parsed(dim) if isinstance(dim, str) else dim


@lru_cache(_KEPT)
def _parsed(dim: str) -> Size:
    product = re.fullmatch(_PRODUCT, dim)
    factors = product[1].split("*") if product is not None else [dim]
    total: Size = 1
    for f in factors:
        total = total * (int(f) if f.isdecimal() else symbol(f))
    return total
