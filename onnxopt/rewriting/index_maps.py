"""A chain of element-moving operators as a single index map from result to source.

The source is cut into runs: neighbouring elements that stay together. An axis of the result is a list of parts in
row-major order, each a run or an axis of a run's picked elements. Operators change the map and are not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from itertools import pairwise
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np

from onnxopt.analysis.shapes.sizes import LARGEST, cuts, indices, known_order, product
from onnxopt.analysis.shapes.symbolic import Size, divide, symbol
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.graph.value import Dim
from onnxopt.operators import SAME_ORDER
from onnxopt.proto.messages import Array
from onnxopt.rewriting.axis_runs import size_of
from onnxopt.rewriting.match import Match
from onnxopt.rewriting.rule import listed_axes, operands
from onnxopt.startup.record import record

VIEWS: Final = (*SAME_ORDER, "Transpose")

_STORED: Final = 1 << 12  # indices stored without replacing others
_COMPUTED: Final = 1 << 16  # indices computed
APART: Final = "what a step joins, splits or picks from is not provably side by side"
_RANK: Final = "a rank is unknown"
_ORDER: Final = "no order of the axes that there are"
_AXES: Final = "no axes, or computed ones, or such as are not there"
_OUT_OF_RANGE: Final = "an index that is not there"
_TOO_MANY_INDICES: Final = "an index for each element would be large"
_NEGATIVE: Final = "negative axes of an unknown rank"

Cut: TypeAlias = tuple[int, int, int]  # start, end, step of a Slice


@record(eq=False)
class Part:
    """An axis of the result, or a factor of an axis. `run`: its source; None for an inserted axis, repeated if larger
    than 1."""

    size: Any  # a Size
    run: Run | None = None


@record(eq=False)
class Run:
    """Neighbouring elements of the source.

    `pick`: the elements in the result: all (None), a Slice's range, or indices (a flat array or a value). `parts`: the
    axes of the picked elements, in order.
    """

    size: Any  # a Size
    pick: Any = None
    parts: list[Part] = field(default_factory=list)


def whole(size: Size) -> Run:
    """Return a run with all its elements in the result, in order."""
    run = Run(size)
    run.parts.append(Part(size, run))
    return run


def length(parts: Sequence[Part]) -> Any:
    """Return the number of elements along an axis of these parts."""
    return product(p.size for p in parts)


def _range(cut: Cut, size: int) -> range:
    taken = indices(*cut, size)
    assert taken is not None  # guaranteed by the map
    return range(size)[taken]


def real(parts: Sequence[Part]) -> list[Part]:
    """Return the parts of more than one element."""
    return [p for p in parts if p.size != 1]


class IndexMap:
    """The map from a source to itself, extended by `apply`.

    `source`: the runs of each source axis. `axes`: the parts of each result axis, or None if only the element order is
    known, equal to the source's. `written`: target of a Reshape from source to result, if known; its zeros copy dims
    unless `literal`.
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
        self.literal = False
        self.crossed = False  # a run crosses axes of the source
        self.read: list[Size] | None = None  # input dims of a final Reshape with a target of its own

    def apply(self, node: Node) -> None:
        """Append an operator to the map; declines if the result cannot be expressed."""
        step = _TRANSFERS[node.op]
        if node.op not in SAME_ORDER:
            self.m.require(self.axes is not None, APART if self.source else _RANK)
            step(self, node)
            self.written = None
            return
        step(self, node)

    def end(self, node: Node) -> None:
        """Append a final Reshape, to any dims."""
        self.m.require(self.axes is not None and not self.is_open, APART)
        self.read = [length(a) for a in self.known()]
        self.axes = [[p for a in self.known() for p in a] or [Part(1)]]

    def runs(self) -> list[Run]:
        """Return all runs in source order."""
        return [run for runs in self.source for run in runs]

    def _neighbours(self) -> list[Run]:
        """Return the runs without those of one element, which separate no others."""
        return [r for r in self.runs() if r.size != 1 or r.pick is not None]

    def is_in_order(self) -> bool:
        """Whether the result has all elements in source order."""
        if self.axes is None:
            return True
        runs = [r for r in self.runs() if r.size != 1]
        return [p.run for a in self.axes for p in real(a)] == runs and all(r.pick is None for r in runs)

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

    def _merge(self, runs: Sequence[Run], merged: Run) -> Run:
        """Replace neighbouring runs by a merged run."""
        self.crossed |= not any(set(runs) <= set(home) for home in self.source)
        self.replace(runs[0], merged)
        for run in runs[1:]:
            self.replace(run)
        return merged

    # -- steps that keep the order ---------------------------------------------------------------------------

    def _reshape(self, node: Node) -> None:
        m, given = self.m, node.input(1)
        target: list[int] | None = given.array.tolist() if given is not None and given.constant else None
        m.require(given is None or target is None or given.array.ndim == 1, "no list of dims")
        in_order = self.is_in_order()
        if node.attr("allowzero", 0) and target is not None and 0 in target:
            m.require(in_order, APART)
            self.axes, self.written, self.literal = None, target, True
            return
        if target is not None and self.is_open:
            self._grow(1 + max((i for i, t in enumerate(target) if t == 0), default=-1))
        if target is not None:
            there = len(self.axes if self.axes is not None else self.written or target)
            m.require(all(i < there for i, t in enumerate(target) if t == 0), "a shape copies dims that are not there")
        written = self._resolved(target) if in_order and target is not None else None
        axes = None if self.is_open or self.axes is None else self._regrouped(target, node)
        m.require(in_order or axes is not None, APART)
        self.axes = axes if axes is not None else self._begun(node)
        self.written, self.literal, self.is_open = written, False, False

    def _begun(self, node: Node) -> list[list[Part]] | None:
        """Return the axes of a result with only its order known; they are the source runs from now on."""
        dims = self.m.shape(node.output)
        if dims is None or 0 in dims:
            return None
        self.source, self.crossed = [[whole(self.size(d))] for d in dims], True
        return [runs[0].parts[:] for runs in self.source]

    def _resolved(self, target: list[int]) -> list[int] | None:
        """Return `target` of the result as a target of the source; None if too much is unknown."""
        found, inferred = list(target), False
        for i in (i for i, t in enumerate(target) if t == 0):
            if self.written is not None:
                if self.literal:
                    return None
                found[i] = self.written[i]
            elif self.axes is None:
                return None
            elif isinstance(size := length(self.axes[i]), int):
                if not size:
                    return None
                found[i] = size
            else:
                kept = (
                    [] if self.crossed else [p for runs in self.source[i : i + 1] for r in runs for p in real(r.parts)]
                )
                found[i], inferred = (0, inferred) if kept and real(self.axes[i]) == kept else (-1, True)
        # Runtimes reject a -1 beside a copied dim that turns out to be 0.
        return found if found.count(-1) <= 1 and not (inferred and 0 in found) else None

    def _regrouped(self, target: list[int] | None, node: Node) -> list[list[Part]] | None:
        """Return the axes of a result of these dims, with runs split as needed; None if not provable."""
        axes = self.known()
        parts = [p for a in axes for p in a]
        sizes = [t if t > 0 else length(axes[i]) if t == 0 else None for i, t in enumerate(target or ())]
        if sizes.count(None) == 1:
            i = sizes.index(None)
            sizes[i] = divide(length(parts), product(s for s in sizes if s is not None))
        if target is None or None in sizes:
            dims = self.m.shape(node.output)
            sizes = [None] if dims is None else [size_of(d) for d in dims]
        if None in sizes or 0 in sizes or any(p.size == 0 for p in parts):
            return None
        made = [self._taken(parts, size) for size in sizes if size is not None]
        return None if None in made or real(parts) else [axis for axis in made if axis is not None]

    def _taken(self, parts: list[Part], size: Size) -> list[Part] | None:
        """Remove leading parts of `size` elements from the list and return them, or None."""
        if size == 1:
            return [parts.pop(0)] if parts and parts[0].size == 1 else [Part(1)]
        axis: list[Part] = []
        while size != 1:
            while parts and parts[0].size == 1:
                parts.pop(0)
            if not parts:
                return None
            part = parts.pop(0)
            rest, behind = divide(size, part.size), divide(part.size, size)
            if rest is None and behind is None:
                following = next(iter(real(parts)), None)
                joined = self._joined(part, following) if following is not None else None
                if following is None or joined is None:
                    return None
                parts[: parts.index(following) + 1] = [joined]
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

    def _joined(self, a: Part, b: Part) -> Part | None:
        """Return a single part for two parts that are always neighbours, or None."""
        part, run, other = a, a.run, b.run
        if run is None or other is None or (run is other and not isinstance(run.pick, np.ndarray)):
            return None
        if run is other:
            at = run.parts.index(a)
            if run.parts[at + 1 : at + 2] != [b]:
                return None
            part = Part(a.size * b.size, run)
            run.parts[at : at + 2] = [part]
        else:
            order = self._neighbours()
            if run.pick is not None or other.pick is not None or order[order.index(run) + 1 :][:1] != [other]:
                return None
            part = self._merge([run, other], whole(run.size * other.size)).parts[0]
        self.axes = [[part if p is a else p for p in axis if p is not b] for axis in self.known()]
        return part

    def _split(self, part: Part, first: Size, second: Size) -> tuple[Part, Part] | None:
        run = part.run
        halves = Part(first, run), Part(second, run)
        if run is not None and run.pick is None:
            a, b = whole(first), whole(second)
            self.replace(run, a, b)
            halves = a.parts[0], b.parts[0]
        elif run is not None:
            if not isinstance(run.pick, np.ndarray):
                return None
            i = run.parts.index(part)
            run.parts[i : i + 1] = halves
        self.axes = [[q for p in axis for q in (halves if p is part else (p,))] for axis in self.known()]
        return halves

    def _flatten(self, node: Node) -> None:
        self.m.require(self.is_in_order() or not self.is_open, _RANK)
        axes, axis = self.axes, int(node.attr("axis", 1))
        self.written = None
        if axes is None or self.is_open:
            self.axes, self.is_open = self._begun(node), False
            return
        self.m.require(-len(axes) <= axis <= len(axes), _AXES)
        at = axis + len(axes) if axis < 0 else axis
        self.axes = [[p for a in side for p in a] or [Part(1)] for side in (axes[:at], axes[at:])]

    def _places(self, node: Node, added: int) -> list[int]:
        """Return the sorted axes listed by an Unsqueeze or Squeeze, counted in the larger rank."""
        given = listed_axes(node)
        self.m.require(given, _AXES)
        assert given is not None
        count = len(given) * added
        if self.is_open:
            self.m.require(min(given) >= 0, _NEGATIVE)
            self._grow(max(given) + 1 - count)
        known = self.axes if self.axes is not None else self.written
        rank = len(known) + count if known is not None else self.m.rank(node.output) if added else None
        self.m.require(rank is not None and all(-rank <= a < rank for a in given), _AXES)
        places = sorted({a % (rank or 1) for a in given})
        self.m.require(len(places) == len(given), _AXES)
        return places

    def _unsqueeze(self, node: Node) -> None:
        for i in (places := self._places(node, 1)):
            if self.axes is not None:
                self.axes.insert(i, [Part(1)])
            if self.written is not None:
                self.written.insert(i, 1)
        self._keep_written(places[0])

    def _squeeze(self, node: Node) -> None:
        places = self._places(node, 0)
        for i in reversed(places):
            if self.axes is not None:
                self.m.require(not isinstance(n := length(self.axes[i]), int) or n == 1, "an axis that is not one")
                for part in self.axes.pop(i):
                    self._drop(part)
            if self.written is not None and self.written.pop(i) != 1:
                self.written = None
        self._keep_written(places[0])

    def _keep_written(self, first: int) -> None:
        """Forget a written target with copied dims behind `first`, since a dim is copied by position."""
        if self.written is not None and not self.literal and 0 in self.written[first:]:
            self.written = None

    def _drop(self, part: Part) -> None:
        """Drop an axis of size 1; runtimes reject any other size."""
        part.size, run = 1, part.run
        if run is None or isinstance(run.pick, Value):
            return
        if run.pick is None:
            run.size = 1
            self.dims = [1 if runs == [run] else d for d, runs in zip(self.dims, self.source)]
        elif isinstance(run.pick, np.ndarray):
            run.parts.remove(part)
        else:
            start, end, step = run.pick
            if isinstance(run.size, int):
                taken = indices(start, end, step, run.size)
                start, end = (range(run.size)[taken].start, 0) if taken is not None else (start, end)
            elif step != 1 or not (end == start + 1 if start != -1 else end >= LARGEST[0]):
                return
            run.pick, run.parts = np.array([start]), []

    # -- steps that change the order ---------------------------------------------------------------------------

    def _grow(self, rank: int) -> None:
        """Assume at least `rank` axes for an unknown rank; runtimes would reject the chain otherwise."""
        while self.is_open and len(self.known()) < rank:
            self.dims.append(self.size(None))
            self.source.append([whole(self.dims[-1])])
            self.known().append(self.source[-1][0].parts[:])

    def _transpose(self, node: Node) -> None:
        self.m.require(not self.is_open or node.attr("perm"), _RANK)
        self._grow(len(node.attr("perm") or ()))
        axes, self.is_open = self.known(), False
        perm = known_order(node, len(axes))
        self.m.require(perm is not None, _ORDER)
        self.axes = [axes[i] for i in perm or ()]

    def _run(self, axis: int) -> Run | None:
        """Return the run of an axis, merging neighbouring runs; None for an axis of one element."""
        parts = real(self.known()[axis]) or [p for p in self.known()[axis] if p.run is not None][:1]
        found = list(dict.fromkeys(p.run for p in parts))
        self.m.require(None not in found, "what is copied is picked from")
        runs = [r for r in found if r is not None]
        if not runs or (len(runs) == 1 and runs[0].parts == parts):
            return runs[0] if runs else None
        order = self._neighbours()
        at = order.index(runs[0])
        together = order[at : at + len(runs)] == runs and [p for r in runs for p in r.parts] == parts
        self.m.require(together and all(r.pick is None for r in runs), APART)
        merged = self._merge(runs, whole(product(r.size for r in runs)))
        self.known()[axis] = merged.parts[:]
        return merged

    def _slice(self, node: Node) -> None:
        given = operands(node)[1:]
        self.m.require(all(v is None or v.constant for v in given), "the bounds are computed")
        self.m.require(all(v is None or v.array.ndim == 1 for v in given), "the bounds are no vectors")
        lists = [None if v is None else v.array.tolist() for v in (*given, None, None)]
        starts, ends, axes, steps = lists[:4]
        if self.is_open:
            self.m.require(axes and min(axes) >= 0, _NEGATIVE)
            self._grow(max(axes or ()) + 1)
        found = cuts(starts or (), ends or (), axes, steps, len(self.known()))
        self.m.require(found is not None, _AXES)
        for axis, start, end, step in found or ():
            self._cut(node, axis, (start, end, step))

    def _cut(self, node: Node, axis: int, cut: Cut) -> None:
        """Restrict an axis to the elements of a Slice."""
        m, run = self.m, self._run(axis)
        pick = run.pick if run is not None else None
        m.require(not isinstance(pick, Value), APART)
        size = length(self.known()[axis])
        taken = indices(*cut, size) if isinstance(size, int) else None
        count: Size | None = len(range(size)[taken]) if taken is not None and isinstance(size, int) else None
        m.require(count is not None or not isinstance(size, int), "bounds that readers take differently")
        if count == size and (cut[2] == 1 or size == 1):
            return
        m.require(run is not None, "nothing of one element")
        assert run is not None
        if isinstance(pick, np.ndarray):
            run.pick = pick[taken]
        elif pick is None:
            run.pick = cut
        elif isinstance(run.size, int):
            r = _range(pick, run.size)[taken or slice(None)]
            run.pick = (r.start, r.stop if r.stop >= 0 else -run.size - 1, r.step) if r else (0, 0, 1)
        else:
            m.require(pick[2] == cut[2] == 1, "steps along the same axis")
            m.require(min(*pick[:2], *cut[:2]) >= 0, "counts from the end along the same axis")
            start = min(pick[0] + cut[0], LARGEST[1])
            run.pick = start, min(pick[1], pick[0] + cut[1]), 1
        if count is None:
            dims = m.shape(node.output)
            count = self.size(dims[axis] if dims is not None else None)
        run.parts = [Part(count, run)]
        self.known()[axis] = run.parts[:]

    def _gather(self, node: Node) -> None:
        axis, index = int(node.attr("axis", 0)), node.inputs[1]
        self.m.require(not self.is_open or axis >= 0, _NEGATIVE)
        self._grow(axis + 1)
        rank = len(self.known())
        self.m.require(index is not None and -rank <= axis < rank, _AXES)
        assert index is not None
        if index.constant:
            self._pick(axis % rank, index.array)
            return
        dims, run = self.m.shape(index), self._run(axis % rank)
        self.m.require(dims is not None, _RANK)
        self.m.require(run is not None and run.pick is None, "what is picked is picked from, or one element")
        assert run is not None
        run.pick, run.parts = index, [Part(self.size(d), run) for d in dims or ()]
        self.known()[axis % rank : axis % rank + 1] = [[p] for p in run.parts]

    def _pick(self, axis: int, index: Array) -> None:
        """Replace an axis by the elements at constant indices, with the axes of the indices."""
        m, run, axes = self.m, self._run(axis), self.known()
        size = length(axes[axis])
        m.require(0 < index.size <= _COMPUTED, "many indices, or none")
        if isinstance(size, int):
            m.require(((-size <= index) & (index < size)).all(), _OUT_OF_RANGE)
            index = np.where(index < 0, index + size, index)
        if run is None:  # size 1
            m.require(index.size == 1, "one element is picked again and again")
            axes[axis : axis + 1] = [axes[axis] if i == 0 else [Part(1)] for i in range(index.ndim)]
            return
        before: Any = run.pick
        if isinstance(before, tuple):
            m.require(isinstance(run.size, int) and run.size <= _COMPUTED, "of an axis of unknown size, or a long one")
            assert isinstance(run.size, int)
            before = np.array(_range(before, run.size))
        m.require(not isinstance(before, Value), APART)
        run.pick = (index if before is None else before[index]).reshape(-1)
        run.parts = [Part(n, run) for n in index.shape]
        axes[axis : axis + 1] = [[p] for p in run.parts]

    def _gather_nd(self, node: Node) -> None:
        m, axes, index = self.m, self.known(), node.inputs[1]
        m.require(not node.attr("batch_dims", 0), "places in each of a batch")
        m.require(index is not None and index.constant and not self.is_open, "computed places, or an unknown rank")
        assert index is not None
        places = index.array
        n = places.shape[-1] if places.ndim else 0
        m.require(0 < n <= len(axes) and places.size <= _COMPUTED, "many indices, or none")
        sizes = [s for a in axes[:n] if isinstance(s := length(a), int)]
        if n > 1:
            m.require(len(sizes) == n and 0 not in sizes, "a dim is unknown")
            ends = np.array(sizes)
            m.require(((-ends <= places) & (places < ends)).all(), _OUT_OF_RANGE)
            strides = [prod(sizes[i + 1 :]) for i in range(n)]
            places = (np.where(places < 0, places + ends, places) * strides).sum(-1, keepdims=True)
            axes[:n] = [[p for a in axes[:n] for p in a]]
        self._pick(0, places[..., 0])

    def _copy(self, node: Node) -> None:
        """Apply Expand or Tile along inserted axes."""
        m, dims = self.m, self.m.shape(node.output)
        axes = self.known()
        m.require(dims is not None and len(dims) == len(axes) and not self.is_open, _RANK)
        for i, dim in enumerate(dims or ()):
            if length(axes[i]) != self.size(dim):
                m.require(isinstance(dim, int) and dim > 0, "the number of copies is unknown, or none")
                assert isinstance(dim, int)
                m.require(not real(axes[i]), "elements along an axis of their own are repeated")
                axes[i] = [Part(dim)]

    # -- before writing ------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Normalize the map before writing.

        Copies beside a run in an axis become indices. Indices take the result's order, with axes of size 1 beside them.
        Identity indices are dropped.
        """
        for axis in self.known():
            for i, part in enumerate(axis):
                if part.run is None and part.size != 1:
                    self._repeat(part, axis[i - 1 : i], axis[i + 1 : i + 2])
        order = {p: i for i, p in enumerate(p for a in self.known() for p in a)}
        for run in self.runs():
            if not isinstance(run.pick, np.ndarray):
                continue
            places = sorted(range(len(run.parts)), key=lambda i: order.get(run.parts[i], -1))
            run.pick = run.pick.reshape([p.size for p in run.parts]).transpose(places).reshape(-1)
            run.parts = [run.parts[i] for i in places if run.parts[i] in order]
            if run.pick.size == run.size and (run.pick == np.arange(run.size)).all():
                if not run.parts:
                    run.parts.append(Part(1))
                made = [Run(p.size, None, [p]) for p in run.parts]
                for r in made:
                    r.parts[0].run = r
                self.replace(run, *made)
        for k in range(len(self.known())):
            for a, b in [*pairwise(self.known()[k])][::-1]:
                if a.run is b.run and a.run is not None:
                    self._joined(a, b)
        self._widen()

    def _repeat(self, part: Part, before: list[Part], behind: list[Part]) -> None:
        """Express copies by indices of a neighbouring part: each element, or all elements, repeated."""
        beside = next((p for p in (*before, *behind) if p.run is not None and p.size != 1), None)
        run = beside.run if beside is not None else None
        m = self.m
        m.require(run is not None and isinstance(run.size, int), "copies beside nothing, or beside an unknown number")
        assert run is not None and beside is not None and isinstance(run.size, int) and isinstance(part.size, int)
        m.require(run.pick is None or isinstance(run.pick, np.ndarray), APART)
        flat = np.arange(run.size) if run.pick is None else run.pick
        m.require(isinstance(flat, np.ndarray) and flat.size * part.size <= _STORED, _TOO_MANY_INDICES)
        at = run.parts.index(beside) + (beside in before)
        wide = np.expand_dims(flat.reshape([p.size for p in run.parts]), at)
        run.pick = np.repeat(wide, part.size, at).reshape(-1)
        run.parts.insert(at, part)
        part.run = run

    def pick_at_once(self) -> bool:
        """Merge picks of neighbouring runs into a single pick. Returns whether any was merged."""
        flat = [p for a in self.known() for p in real(a)]
        for a, b in pairwise(self._neighbours()):
            i, j = a.pick, b.pick
            if not (isinstance(i, np.ndarray) and isinstance(j, np.ndarray) and isinstance(b.size, int)):
                continue
            parts = [*a.parts, *b.parts]
            at = flat.index(first) if (first := next(iter(real(parts)), None)) is not None else 0
            if flat[at:][: len(real(parts))] == real(parts) and i.size * j.size <= _STORED:
                merged = Run(a.size * b.size, (i[:, None] * b.size + j).reshape(-1), parts)
                for part in parts:
                    part.run = merged
                self._merge([a, b], merged)
                self.pick_at_once()
                return True
        return False

    def _widen(self) -> None:
        """Turn axes of size 1 next to constant indices into axes of the indices."""
        flat, last = [p for a in self.known() for p in a], -1
        for run in self.runs():
            if isinstance(run.pick, np.ndarray):
                own = [i for i, p in enumerate(flat) if p.run is run]
                first, end = (own[0], own[-1] + 1) if own else (last + 1, last + 1)
                while first and flat[first - 1].run is None:
                    first -= 1
                while end < len(flat) and flat[end].run is None:
                    end += 1
                if all(p.run in (None, run) for p in flat[first:end]):
                    run.parts = flat[first:end]
                    for part in run.parts:
                        part.run = run
            last = flat.index(run.parts[-1]) if run.parts and run.parts[-1] in flat else last


_TRANSFERS: Final[dict[str, Callable[[IndexMap, Node], None]]] = {
    "Expand": IndexMap._copy,
    "Flatten": IndexMap._flatten,
    "Gather": IndexMap._gather,
    "GatherND": IndexMap._gather_nd,
    "Reshape": IndexMap._reshape,
    "Slice": IndexMap._slice,
    "Squeeze": IndexMap._squeeze,
    "Tile": IndexMap._copy,
    "Transpose": IndexMap._transpose,
    "Unsqueeze": IndexMap._unsqueeze,
}
MOVERS: Final = tuple(_TRANSFERS)
PICKING: Final = tuple(op for op in MOVERS if op not in VIEWS)
