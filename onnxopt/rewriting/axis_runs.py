"""Which axes a Reshape keeps together: what it does to each of them can as well be done in another order of axes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Final

from onnxopt.analysis.shapes.symbolic import Size, TooComplex, symbol
from onnxopt.graph.value import Dim, Shape
from onnxopt.record import record

_PRODUCT: Final = r"\{([\w.?@]+(?:\*[\w.?@]+)*)\}"  # of numbers and symbols: no sum, no floor, no quotes


@record(frozen=True)
class Moved:
    """A Reshape to `dims`, then a Transpose in the order `perm`."""

    dims: Shape
    perm: tuple[int, ...]


def before_transpose(dims: Shape, perm: Sequence[int], target: Shape) -> Moved | None:
    """Reshape(Transpose(x, perm), target) = Transpose(Reshape(x, …), …), `dims` those of x; None where no Reshape does.

    What the Reshape joins or splits, a run of axes, has to lie in x as it does behind the Transpose. Axes of one
    element lie anywhere: those of the target go with what they follow, the first stay the first.
    """
    runs = _runs([dims[i] for i in perm], target) if _is_order(perm, dims) else None
    if runs is None:
        return None
    places = {axis: i for i, axis in enumerate(i for i, d in enumerate(dims) if d != 1)}
    starts: list[tuple[int, list[int]]] = []
    for ours, theirs in runs:
        at = [places[perm[i]] for i in ours]
        if at != list(range(at[0], at[0] + len(at))):
            return None
        starts.append((at[0], theirs))
    order = list(range(runs[0][1][0]))  # of one element each
    order += [axis for _, theirs in sorted(starts) for axis in theirs]
    return Moved(tuple(target[i] for i in order), inverse(order))


def behind_transpose(dims: Shape, target: Shape, perm: Sequence[int]) -> tuple[int, ...] | None:
    """Transpose(Reshape(x, target), perm) = Reshape(Transpose(x, …), …), `dims` those of x: the order of its axes.

    Read backwards it is the other equation.
    """
    if not _is_order(perm, target):
        return None
    found = before_transpose(tuple(target[i] for i in perm), inverse(perm), dims)
    return None if found is None else inverse(found.perm)


def _is_order(perm: Sequence[int], dims: Shape) -> bool:
    """Each axis once, counted from the front: an exporter writes negative ones, which the standard does not know."""
    return sorted(perm) == list(range(len(dims)))


def inverse(perm: Sequence[int]) -> tuple[int, ...]:
    """Where each axis goes: inverse(p)[p[i]] = i."""
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


def after(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """The one order that does both: Transpose(Transpose(x, first), second)."""
    return tuple(first[i] for i in second)


def constant_target(dims: Shape, wanted: Shape) -> list[int] | None:
    """What a Reshape of `dims` is given for `wanted`: a symbol that stays where it is is 0, another dim is -1.

    Not both, as runtimes refuse a -1 where the dim that is copied turns out to be 0.
    """
    stays = [isinstance(d, str) and dims[i : i + 1] == (d,) for i, d in enumerate(wanted)]
    target = [d if isinstance(d, int) else 0 if same else -1 for d, same in zip(wanted, stays)]
    unknown = target.count(-1)
    return None if 0 in wanted or unknown > 1 or (unknown and any(stays)) else target


def product(dims: Sequence[Dim]) -> Size | None:
    """The elements of axes of these dims; None where one is unknown."""
    total: Size = 1
    try:
        for d in dims:
            size = _size(d)
            if size is None:
                return None
            total = total * size
    except TooComplex:
        return None
    return total


def _runs(ours: Sequence[Dim], theirs: Sequence[Dim]) -> list[tuple[list[int], list[int]]] | None:
    """The shortest runs of axes of both that hold the same elements, in order; None where that is not proven.

    Where the products of what comes before are the same, a run ends. Axes of one element are in no run of `ours`; of
    `theirs`, but for the first ones, in that of what they follow.
    """
    mine, other = _ends(ours), _ends(theirs)
    if not mine or not other or mine[-1][0] != other[-1][0]:
        return None
    ends = {size for size, _ in mine} & {size for size, _ in other}
    runs = list(zip(_cut(mine, ends), _cut(other, ends)))
    begins = [axes[0] for _, axes in runs]
    stops = [*begins[1:], len(theirs)]
    return [(run, list(range(*ends))) for (run, _), *ends in zip(runs, begins, stops)]


def _ends(dims: Sequence[Dim]) -> list[tuple[Size, int]] | None:
    """(elements of this and all before, axis) of each axis that may have more than one."""
    axes = [i for i, d in enumerate(dims) if d != 1]
    try:
        sizes = [_size(dims[i]) for i in axes]
        return list(zip(accumulate(sizes, mul), axes)) if None not in sizes and 0 not in sizes else None
    except TooComplex:
        return None


def _cut(ends: list[tuple[Size, int]], at: set[Size]) -> list[list[int]]:
    runs: list[list[int]] = [[]]
    for size, axis in ends:
        runs[-1].append(axis)
        if size in at:
            runs.append([])
    return runs[:-1]


def _size(dim: Dim) -> Size | None:
    """A dim, that is written as a product of symbols, as one."""
    if not isinstance(dim, str):
        return dim
    product = re.fullmatch(_PRODUCT, dim)
    factors = product[1].split("*") if product is not None else [dim]
    total: Size = 1
    for f in factors:
        total = total * (int(f) if f.isdecimal() else symbol(f))
    return total
