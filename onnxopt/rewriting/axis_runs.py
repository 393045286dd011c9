"""Orders of axes, and dims as sizes and as targets of a Reshape."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from onnxopt.analysis.shapes.symbolic import Size, TooComplex, symbol
from onnxopt.graph.value import Dim

_KEPT: Final = 1024  # dims: a model has few, which are asked for again and again
_PRODUCT: Final = r"\{([\w.?@]+(?:\*[\w.?@]+)*)\}"  # of numbers and symbols: no sum, no floor, no quotes


def inverse(perm: Sequence[int]) -> tuple[int, ...]:
    """Where each axis goes: inverse(p)[p[i]] = i."""
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


def after(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """The one order that does both: Transpose(Transpose(x, first), second)."""
    return tuple(first[i] for i in second)


def constant_target(dims: Sequence[Dim | Size], wanted: Sequence[Dim | Size]) -> list[int] | None:
    """What a Reshape of `dims` is given for `wanted`: a symbol that stays where it is is 0, another dim is -1.

    Not both, as runtimes refuse a -1 where the dim that is copied turns out to be 0.
    """
    stays = [not isinstance(d, int | None) and [*dims[i : i + 1]] == [d] for i, d in enumerate(wanted)]
    target = [d if isinstance(d, int) else 0 if same else -1 for d, same in zip(wanted, stays)]
    unknown = target.count(-1)
    return None if 0 in wanted or unknown > 1 or (unknown and any(stays)) else target


def product(dims: Sequence[Dim]) -> Size | None:
    """The elements of axes of these dims; None where one is unknown."""
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
    """A dim, that is written as a product of symbols, as one."""
    return _parsed(dim) if isinstance(dim, str) else dim


@lru_cache(_KEPT)
def _parsed(dim: str) -> Size:
    product = re.fullmatch(_PRODUCT, dim)
    factors = product[1].split("*") if product is not None else [dim]
    total: Size = 1
    for f in factors:
        total = total * (int(f) if f.isdecimal() else symbol(f))
    return total
