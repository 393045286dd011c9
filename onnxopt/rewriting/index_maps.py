"""A chain of element-moving operators as a single index map from result to source.

The source is cut into runs: neighbouring elements that stay together. An axis of the result is a list of parts in
row-major order, each a run or an axis of a run's picked elements. Operators change the map and are not recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np

from onnxopt.analysis.shapes.sizes import product
from onnxopt.analysis.shapes.symbolic import Size, TooComplex, divide, symbol
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.graph.value import Dim, Shape
from onnxopt.rewriting.match import Match

APART: Final = "what a step joins, splits or picks from is not provably side by side"

# -- permutations, dims as sizes and as Reshape targets -------------------------------------------------------------

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


def same(dims: Sequence[Dim | Size], wanted: Sequence[Dim | Size]) -> bool:
    """Return whether dims with equal element counts are equal. A single dim may be unknown if all others are known."""
    others = [d for d, w in zip(dims, wanted) if d == w]
    known = all(isinstance(d, int) and d for d in others)
    return len(dims) == len(wanted) and len(others) + known >= len(dims)


def elements(dims: Sequence[Dim]) -> Size | None:
    """Return the number of elements along axes of these dims; None if a dim is unknown."""
    try:
        sizes = [size_of(d) for d in dims]
        return None if None in sizes else product(sizes)
    except TooComplex:
        return None


def size_of(dim: Dim) -> Size | None:
    """Return a dim as a Size, with products of symbols parsed."""
    return _parsed(dim) if isinstance(dim, str) else dim


@lru_cache(_KEPT)
def _parsed(dim: str) -> Size:
    found = re.fullmatch(_PRODUCT, dim)
    factors = found[1].split("*") if found is not None else [dim]
    return product(int(f) if f.isdecimal() else symbol(f) for f in factors)


# -- runs and parts -------------------------------------------------------------------------------------------------


class Part:
    """An axis of the result, or a factor of an axis. `run`: its source; None for an inserted axis, repeated if larger
    than 1. `size`: a Size."""

    def __init__(self, size: Any, run: Run | None = None) -> None:
        self.size, self.run = size, run


class Run:
    """Neighbouring elements of the source.

    `pick`: the elements in the result: all (None), a Slice's range, or indices (a flat array or a value). `parts`: the
    axes of the picked elements, in order.
    """

    def __init__(self, size: Any, pick: Any = None, parts: list[Part] | None = None) -> None:
        self.size, self.pick, self.parts = size, pick, [] if parts is None else parts

    @property
    def is_listed(self) -> bool:
        """Whether the elements are picked by constant indices."""
        return isinstance(self.pick, np.ndarray)

    def index(self) -> Any:
        """Return the indices as an operand: an array with the axes of the parts, or a value."""
        return self.pick.reshape([p.size for p in self.parts]) if self.is_listed else self.pick


def whole(size: Size) -> Run:
    """Return a run with all its elements in the result, in order."""
    run = Run(size)
    run.parts.append(Part(size, run))
    return run


def length(parts: Sequence[Part]) -> Any:
    """Return the number of elements along an axis of these parts."""
    return product([p.size for p in parts])


def real(parts: Iterable[Part]) -> list[Part]:
    """Return the parts of more than one element."""
    return [p for p in parts if p.size != 1]


def _next_wide(parts: list[Part]) -> Part | None:
    """Remove leading parts of one element and the part behind them; return the latter, None at the end."""
    while parts and parts[0].size == 1:
        parts.pop(0)
    return parts.pop(0) if parts else None


def flat(axes: Iterable[Sequence[Part]]) -> list[Part]:
    """Return the parts of all axes, in order."""
    return [*chain.from_iterable(axes)]


class Seen(NamedTuple):
    """A view of a value, or `back` from it: axis i becomes the axes `to[i]`, of `sizes` if several; `rank` in all."""

    to: tuple[tuple[int, ...], ...]
    rank: int
    sizes: Shape
    back: bool


class IndexMap:
    """The map from a source to itself, to be extended by operators.

    `source`: the runs of each source axis. `axes`: the parts of each result axis, or None if only the element order is
    known, equal to the source's. `written`: target of a Reshape from source to result, if known.
    """

    def __init__(self, m: Match, x: Value) -> None:
        self.m = m
        self._unknown = 0
        dims = m.shape(x)
        self.is_open = dims is None  # unknown rank: more axes may follow the known ones
        self.dims = [self.size(d) for d in dims or ()]
        self.source = [[whole(d)] for d in self.dims]
        self.axes: list[list[Part]] | None = [runs[0].parts[:] for runs in self.source]
        self.written: list[int] | None = None
        self.crossed = False  # a run crosses axes of the source
        self.squeezed = False  # a Squeeze says that an axis of unknown size is of one element
        self.is_seen = False  # the source or the result is in a view
        self.read: list[Size] | None = None  # input dims of a final Reshape with a target of its own

    def runs(self) -> list[Run]:
        """Return all runs in source order."""
        return [*chain.from_iterable(self.source)]

    def neighbours(self) -> list[Run]:
        """Return the runs without those of one element, which separate no others."""
        return [r for r in self.runs() if r.size != 1 or r.pick is not None]

    def is_in_order(self) -> bool:
        """Whether the result has all elements in source order."""
        if self.axes is None:
            return True
        runs = [r for r in self.runs() if r.size != 1]
        return [p.run for p in real(flat(self.axes))] == runs and all(r.pick is None for r in runs)

    def lengths(self) -> list[Any]:
        """Return the sizes of the result's axes."""
        return [length(parts) for parts in self.known()]

    def is_unchanged(self) -> bool:
        """Whether the result is the source, with the same dims."""
        is_told = self.axes is not None and self.read is None
        return is_told and self.is_in_order() and same(self.dims, self.lengths())

    def size(self, dim: Dim) -> Size:
        """Return a dim as a size, with a new symbol for an unknown dim."""
        size = size_of(dim)
        if size is None:
            self._unknown += 1
            size = symbol(f" {self._unknown}")
        return size

    def known(self) -> list[list[Part]]:
        """Return the axes of the result."""
        assert self.axes is not None
        return self.axes

    def replace(self, run: Run, *by: Run) -> None:
        """Replace a run by others."""
        for runs in self.source:
            if run in runs:
                i = runs.index(run)
                runs[i : i + 1] = by

    def merge(self, runs: Sequence[Run], merged: Run) -> Run:
        """Replace neighbouring runs by a merged run."""
        self.crossed |= not any(set(runs) <= set(home) for home in self.source)
        self.replace(runs[0], merged)
        for run in runs[1:]:
            self.replace(run)
        return merged

    def grow(self, rank: int) -> None:
        """Assume at least `rank` axes for an unknown rank; runtimes would reject the chain otherwise."""
        while self.is_open and len(self.known()) < rank:
            self.dims.append(self.size(None))
            self.source.append([whole(self.dims[-1])])
            self.known().append(self.source[-1][0].parts[:])

    def begin(self, node: Node) -> None:
        """Let the axes of a result with only its order known be the source runs from now on."""
        dims = self.m.shape(node.output)
        if dims is None or 0 in dims:
            self.axes = None
            return
        self.source, self.crossed = [[whole(self.size(d))] for d in dims], True
        self.axes = [runs[0].parts[:] for runs in self.source]

    def run(self, axis: int) -> Run | None:
        """Return the run of an axis, merging neighbouring runs; None for an axis of one element."""
        parts = real(self.known()[axis]) or [p for p in self.known()[axis] if p.run is not None][:1]
        found = list(dict.fromkeys(p.run for p in parts))
        self.m.require(None not in found, "what is copied is picked from")
        runs = [r for r in found if r is not None]
        if not runs:
            return None
        if len(runs) == 1 and runs[0].parts == parts:
            return runs[0]
        self.m.require(all(r.pick is None for r in runs) and self._is_together(runs, parts), APART)
        merged = self.merge(runs, whole(product(r.size for r in runs)))
        self.known()[axis] = merged.parts[:]
        return merged

    def _is_together(self, runs: Sequence[Run], parts: Sequence[Part]) -> bool:
        """Whether the runs are neighbours in this order, and the parts are all their parts."""
        order = self.neighbours()
        at = order.index(runs[0])
        return order[at : at + len(runs)] == runs and flat(r.parts for r in runs) == parts

    # -- axes of other dims --------------------------------------------------------------------------------------

    def resolved(self, target: list[int]) -> list[int] | None:
        """Return `target` of the result as a target of the source; None if too much is unknown."""
        found = [self._copied(i) if t == 0 else t for i, t in enumerate(target)]
        # Runtimes reject a -1 beside a copied dim that turns out to be 0.
        inferred = self.written is None and any(f == -1 and t == 0 for f, t in zip(found, target))
        if None in found or found.count(-1) > 1 or (inferred and 0 in found):
            return None
        return [f for f in found if f is not None]

    def _copied(self, axis: int) -> int | None:
        """Return the entry of a source target for a dim copied from the result: 0 copies, -1 infers; None if
        unknown."""
        if self.written is not None:
            return self.written[axis]
        if self.axes is None:
            return None
        size = length(self.axes[axis])
        if isinstance(size, int):
            return size or None
        runs = [] if self.crossed else [*chain.from_iterable(self.source[axis : axis + 1])]
        kept = real(flat(r.parts for r in runs))
        return 0 if kept and real(self.axes[axis]) == kept else -1

    def regrouped(self, target: list[int] | None, node: Node) -> list[list[Part]] | None:
        """Return the axes of a result of these dims, with runs split as needed; None if not provable."""
        parts = flat(self.known())
        sizes = self._wanted(target, parts, node)
        if None in sizes or 0 in sizes or any(p.size == 0 for p in parts):
            return None
        axes = [axis for size in sizes if (axis := self.taken(parts, size or 0)) is not None]
        return axes if len(axes) == len(sizes) and not real(parts) else None

    def _wanted(self, target: list[int] | None, parts: Sequence[Part], node: Node) -> list[Size | None]:
        """Return the sizes that a Reshape to `target` gives; None for an unknown size or rank."""
        if target is not None:
            sizes = [t if t > 0 else length(self.known()[i]) if t == 0 else None for i, t in enumerate(target)]
            if sizes.count(None) == 1:
                sizes[sizes.index(None)] = divide(length(parts), product(s for s in sizes if s is not None))
            if None not in sizes:
                return sizes
        dims = self.m.shape(node.output)
        return [None] if dims is None else [size_of(d) for d in dims]

    def taken(self, parts: list[Part], size: Size) -> list[Part] | None:
        """Remove leading parts of `size` elements from the list and return them, or None."""
        if size == 1:
            return [parts.pop(0)] if parts and parts[0].size == 1 else [Part(1)]
        axis: list[Part] = []
        while size != 1:
            part = _next_wide(parts)
            if part is None:
                return None
            rest, behind = divide(size, part.size), divide(part.size, size)
            if rest is None and behind is None:
                if not self._join_next(part, parts):
                    return None
                continue
            if rest is None and behind is not None:
                halves = self._split(part, size, behind)
                if halves is None:
                    return None
                part, rest = halves[0], 1
                parts.insert(0, halves[1])
            axis.append(part)
            size = rest or 1
        return axis

    def _join_next(self, part: Part, parts: list[Part]) -> bool:
        """Join a part with the next of more than one element, at the head of the list. Returns whether possible."""
        following = next(iter(real(parts)), None)
        joined = self.joined(part, following) if following is not None else None
        if following is None or joined is None:
            return False
        parts[: parts.index(following) + 1] = [joined]
        return True

    def joined(self, a: Part, b: Part) -> Part | None:
        """Return a single part for two parts that are always neighbours, or None."""
        if a.run is None or b.run is None:
            return None
        part = self._factor(a, b, a.run) if a.run is b.run else self._side_by_side(a.run, b.run)
        if part is not None:
            self.axes = [[part if p is a else p for p in axis if p is not b] for axis in self.known()]
        return part

    def _factor(self, a: Part, b: Part, run: Run) -> Part | None:
        """Return a part for two neighbouring axes of the same indices, or None."""
        at = run.parts.index(a) if run.is_listed else -1
        if at < 0 or run.parts[at + 1 : at + 2] != [b]:
            return None
        part = Part(a.size * b.size, run)
        run.parts[at : at + 2] = [part]
        return part

    def _side_by_side(self, first: Run, second: Run) -> Part | None:
        """Return the part of two neighbouring runs merged, or None."""
        order = self.neighbours()
        if first.pick is not None or second.pick is not None:
            return None
        if order[order.index(first) + 1 :][:1] != [second]:
            return None
        return self.merge([first, second], whole(first.size * second.size)).parts[0]

    def _split(self, part: Part, first: Size, second: Size) -> tuple[Part, Part] | None:
        run = part.run
        halves = Part(first, run), Part(second, run)
        if run is not None and run.pick is None:
            a, b = whole(first), whole(second)
            self.replace(run, a, b)
            halves = a.parts[0], b.parts[0]
        elif run is not None:
            if not run.is_listed:
                return None
            i = run.parts.index(part)
            run.parts[i : i + 1] = halves
        self.axes = [[q for p in axis for q in (halves if p is part else (p,))] for axis in self.known()]
        return halves
