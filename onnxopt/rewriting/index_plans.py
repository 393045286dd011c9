"""Operators for an index map: a Reshape, picks, a Transpose and a Reshape, as few as possible."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np

from onnxopt.analysis.shapes.sizes import product
from onnxopt.graph import Value
from onnxopt.rewriting.index_maps import APART, IndexMap, Part, Run, constant_target, flat, length, real
from onnxopt.rewriting.index_steps import copied, places, single_index
from onnxopt.rewriting.match import Match

_STORED: Final = 1 << 12  # indices stored without replacing others
_TOO_MANY_INDICES: Final = "an index for each element would be large"
_TARGET: Final = "more than one unknown dim"


class Step:
    """An operator to write: attributes, and inputs after the first (lists of integers, arrays, or values)."""

    def __init__(self, op: str, inputs: Sequence[Any] = (), attributes: Any = None) -> None:
        self.op, self.inputs, self.attributes = op, inputs, attributes


class _Item:
    """An axis of the source or of its Reshape, and the run picked from it."""

    def __init__(self, parts: list[Part], size: Any, picked: Run | None = None) -> None:
        self.parts, self.size, self.picked = parts, size, picked

    def axes(self) -> list[list[Part]]:
        """Return the axes after the pick: one for each axis of indices, else one."""
        is_indexed = self.picked is not None and not isinstance(self.picked.pick, tuple)
        return [[p] for p in self.parts] if is_indexed else [self.parts]


def plan(m: Match, found: IndexMap) -> list[Step]:
    """Return the fewest operators for a map. A Reshape comes first where it merges with a Reshape to rows, or a product
    reads the Transpose behind it."""
    if found.axes is not None:
        in_order = found.is_in_order()
        _settle(found)
        plans = [_plan(m, found, _by_axis(found))]
        if plans[0] is None or len(plans[0]) > 1:  # a plan of a single operator cannot be improved
            plans.insert(0, _plan(m, found, _by_run(found)))
            if _pick_at_once(found):
                plans += [_plan(m, found, items) for items in (_by_run(found), _by_axis(found))]
        known = [p for p in plans if p is not None and _tells(found, p)]
        if known and (found.written is None or not all(known)):
            return min(known, key=lambda steps: (len(steps), [s.op for s in steps].count("Reshape")))
        m.require(in_order, _TARGET)
    m.require(not found.squeezed, "the size of an axis, which only the Squeeze says")
    return [_reshape(m, _in_order(m, found))]


def _tells(found: IndexMap, steps: Sequence[Step]) -> bool:
    """Whether a Squeeze that says the size of an axis is written again: later runs would not know the size."""
    ops = {s.op for s in steps}
    return not found.squeezed or ("Squeeze" in ops and "Reshape" not in ops)


# -- normal form ----------------------------------------------------------------------------------------------------


def _settle(found: IndexMap) -> None:
    """Normalize the map before writing.

    Copies beside a run in an axis become indices; so does a Slice of one element without its axis. Indices take the
    result's order, with axes of size 1 beside them. Identity indices are dropped.
    """
    _index_copies(found)
    _reuse_ones(found)
    if any(run.pick is not None for run in found.runs()):
        _settle_picks(found)
    for k in range(len(found.known())):
        for a, b in [*pairwise(found.known()[k])][::-1]:
            if a.run is b.run and a.run is not None:
                found.joined(a, b)
    _widen(found)


def _settle_picks(found: IndexMap) -> None:
    """Normalize the indices of runs."""
    order = {p: i for i, p in enumerate(flat(found.known()))}
    for run in found.runs():
        if (index := _index_for(run, order)) is not None:
            run.pick, run.parts = np.array([index]), []
        if run.is_listed:
            _sort(run, order)
            if run.pick.size == run.size and (run.pick == np.arange(run.size)).all():
                found.replace(run, *_unpicked(run))


def _index_copies(found: IndexMap) -> None:
    for axis in found.known():
        for i, part in enumerate(axis):
            if part.run is None and part.size != 1:
                _repeat(found.m, part, axis[i - 1 : i], axis[i + 1 : i + 2])


def _reuse_ones(found: IndexMap) -> None:
    """Let axes of size 1 of the source, dropped on the way, stand for those inserted before the same elements."""
    parts, spare = flat(found.known()), dict[Part | None, Part]()
    following: Part | None = None
    for run in reversed(found.runs()):
        if run.size != 1:
            following = next(iter(run.parts), None)
        elif run.pick is None and not set(run.parts) & set(parts):
            spare.setdefault(following, run.parts[0])
    following, taken = None, dict[Part, Part]()
    for part in reversed(parts):
        if part.size != 1:
            following = part
        elif part.run is None and following in spare:
            taken[part] = spare.pop(following)
    if taken:
        found.axes = [[taken.get(p, p) for p in axis] for axis in found.known()]


def _index_for(run: Run, order: dict[Part, int]) -> int | None:
    """Return the index for a Slice of one element, whose axis the result does not have, or None. Never negative: an
    index of neighbouring runs is computed from it."""
    if not isinstance(run.pick, tuple) or not isinstance(run.size, int) or order.keys() & run.parts:
        return None
    return single_index(run) if length(run.parts) == 1 else None


def _sort(run: Run, order: dict[Part, int]) -> None:
    """Put the axes of a run's indices in the order of the result, without axes that the result does not have."""
    places = sorted(range(len(run.parts)), key=lambda i: order.get(run.parts[i], -1))
    run.pick = run.pick.reshape([p.size for p in run.parts]).transpose(places).reshape(-1)
    run.parts = [run.parts[i] for i in places if run.parts[i] in order]


def _unpicked(run: Run) -> list[Run]:
    """Return whole runs for a run with identity indices."""
    made = [Run(p.size, None, [p]) for p in run.parts or [Part(1)]]
    for r in made:
        r.parts[0].run = r
    return made


def _repeat(m: Match, part: Part, before: list[Part], behind: list[Part]) -> None:
    """Express copies by indices of a neighbouring part: each element, or all elements, repeated."""
    beside = next((p for p in (*before, *behind) if p.run is not None and p.size != 1), None)
    run = beside.run if beside is not None else None
    m.require(run is not None and isinstance(run.size, int), "copies beside nothing, or beside an unknown number")
    assert run is not None and beside is not None
    m.require(run.pick is None or run.is_listed, APART)
    picked = places(run)
    m.require(picked.size * part.size <= _STORED, _TOO_MANY_INDICES)
    at = run.parts.index(beside) + (beside in before)
    wide = np.expand_dims(picked.reshape([p.size for p in run.parts]), at)
    run.pick = np.repeat(wide, part.size, at).reshape(-1)
    run.parts.insert(at, part)
    part.run = run


def _widen(found: IndexMap) -> None:
    """Turn axes of size 1 next to constant indices into axes of the indices."""
    parts, last = flat(found.known()), -1
    for run in found.runs():
        if run.is_listed:
            span = _span(parts, run, last)
            if all(p.run in (None, run) for p in span):
                run.parts = span
                for part in span:
                    part.run = run
        last = parts.index(run.parts[-1]) if run.parts and run.parts[-1] in parts else last


def _span(parts: list[Part], run: Run, last: int) -> list[Part]:
    """Return the parts of a run, or the place behind `last`, with inserted axes on both sides."""
    own = [i for i, p in enumerate(parts) if p.run is run]
    first, end = (own[0], own[-1] + 1) if own else (last + 1, last + 1)
    while first and parts[first - 1].run is None:
        first -= 1
    while end < len(parts) and parts[end].run is None:
        end += 1
    return parts[first:end]


def _pick_at_once(found: IndexMap) -> bool:
    """Merge picks of neighbouring runs into a single pick. Returns whether any was merged."""
    order = real(flat(found.known()))
    for a, b in pairwise(found.neighbours()):
        if not (a.is_listed and b.is_listed and isinstance(b.size, int)):
            continue
        parts = [*a.parts, *b.parts]
        own = real(parts)
        at = order.index(own[0]) if own else 0
        if order[at:][: len(own)] == own and a.pick.size * b.pick.size <= _STORED:
            merged = Run(a.size * b.size, (a.pick[:, None] * b.size + b.pick).reshape(-1), parts)
            for part in parts:
                part.run = merged
            found.merge([a, b], merged)
            _pick_at_once(found)
            return True
    return False


# -- axes to pick from ----------------------------------------------------------------------------------------------


def _by_axis(found: IndexMap) -> list[_Item] | None:
    """Return the axes of the source as items; None if a pick crosses axes or takes part of an axis."""
    if found.crossed or any(len(runs) > 1 and any(r.pick is not None for r in runs) for runs in found.source):
        return None
    return [
        _Item(
            flat(r.parts for r in runs),
            product(r.size for r in runs),
            next((r for r in runs if r.pick is not None), None),
        )
        for runs in found.source
    ]


def _by_run(found: IndexMap) -> list[_Item] | None:
    """Return the axes of a leading Reshape: runs that stay together merged, axes of size 1 behind their predecessor."""
    if found.is_open:
        return None
    items: list[_Item] = []
    place = {p: (axis, i) for axis, parts in enumerate(found.known()) for i, p in enumerate(real(parts))}
    for run in found.neighbours():
        if run.pick is None and items and _continues(items[-1], run, place):
            items[-1].parts += run.parts
            items[-1].size = items[-1].size * run.size
        else:
            items.append(_Item(run.parts[:], run.size, run if run.pick is not None else None))
    _add_ones(items, found.known())
    return items


def _add_ones(items: list[_Item], axes: Sequence[list[Part]]) -> None:
    """Insert the axes of size 1 that no indices give, each behind its predecessor in the result."""
    last: Part | None = None
    for parts in axes:
        own = real(parts)
        if not own and (parts[0].run is None or parts[0].run.pick is None):
            at = next((i for i, item in enumerate(items) if last in item.parts), -1)
            items.insert(at + 1, _Item([parts[0]], 1))
        last = own[-1] if own else parts[0]


def _continues(item: _Item, run: Run, place: dict[Part, tuple[int, int]]) -> bool:
    """Whether a whole run follows the item's parts in the same axis of the result."""
    if item.picked is not None:
        return False
    axis, i = place[item.parts[-1]]
    return place.get(run.parts[0]) == (axis, i + 1)


# -- operators ------------------------------------------------------------------------------------------------------


def _plan(m: Match, found: IndexMap, items: Sequence[_Item] | None) -> list[Step] | None:
    """Return Reshape, picks, Transpose and Reshape for these items; None if they do not suffice, or a target is
    unknown."""
    if items is None:
        return None
    steps: list[Step] = []
    dims = [i.size for i in items]
    if found.dims != dims:
        target = constant_target(found.dims, dims)
        if target is None:
            return None
        steps.append(_reshape(m, target))
    steps += _picks(items)
    axes = [*chain.from_iterable(item.axes() for item in items)]
    perm = _order(axes, flat(found.known()))
    if perm != sorted(perm):
        steps.append(Step("Transpose", (), {"perm": perm}))
        axes = [axes[i] for i in perm]
    last = _last(m, found, axes)
    return None if last is None else steps + last


def _picks(items: Sequence[_Item]) -> list[Step]:
    """Return a Slice, then Gathers from the last axis on, so that earlier axes keep their numbers."""
    picked = [(axis, item.picked) for axis, item in enumerate(items) if item.picked is not None]
    cuts = [(*run.pick, axis) for axis, run in picked if isinstance(run.pick, tuple)]
    steps = []
    if cuts:
        starts, ends, strides, axes = zip(*cuts)
        steps.append(Step("Slice", [starts, ends, axes, strides] if set(strides) != {1} else [starts, ends, axes]))
    for axis, run in reversed(picked):
        if not isinstance(run.pick, tuple):
            steps.append(Step("Gather", [run.index()], {"axis": axis}))
    return steps


def _order(axes: Sequence[list[Part]], wanted: Sequence[Part]) -> list[int]:
    """Return the permutation of axes that puts their parts in the wanted order; an axis of size 1 follows its
    predecessor."""
    place = {p: i for i, p in enumerate(wanted)}
    keys, last = [], -1
    for axis in axes:
        last = next((place[p] for p in (*real(axis), *axis) if p in place), last)
        keys.append(last)
    return sorted(range(len(axes)), key=keys.__getitem__)


def _last(m: Match, found: IndexMap, axes: Sequence[list[Part]]) -> list[Step] | None:
    """Return the operator, if any, from these axes to the axes of the result; None if there is none."""
    wanted = found.known()
    have, want = [real(a) for a in axes], [real(a) for a in wanted]
    if flat(have) != flat(want):
        return None
    if found.read is not None:
        target = _given(m, [length(a) for a in axes], found.read)
        return None if target is None else [_reshape(m, target)]
    if have == want:
        return []
    if (ones := _ones(axes, wanted)) is not None:
        return [ones]
    if found.is_open:
        return None
    sizes, dims = [length(a) for a in axes], [length(a) for a in wanted]
    to = constant_target(sizes, dims) or _given(m, sizes, dims)
    return None if to is None else [_reshape(m, to)]


def _ones(axes: Sequence[list[Part]], wanted: Sequence[list[Part]]) -> Step | None:
    """Return the Squeeze or Unsqueeze from these axes to the wanted ones, or None."""
    drops, kept = _without(axes, {*flat(wanted)})
    puts, left = _without(wanted, {*flat(axes)})
    if kept != left or (drops and puts):
        return None
    return Step("Squeeze" if drops else "Unsqueeze", [drops or puts])


def _without(axes: Sequence[list[Part]], others: set[Part]) -> tuple[list[int], list[list[Part]]]:
    """Return (axes of size 1 with no part among `others`, parts of the remaining axes)."""
    gone = [i for i, a in enumerate(axes) if not real(a) and others.isdisjoint(a)]
    return gone, [real(a) for i, a in enumerate(axes) if i not in gone]


def _reshape(m: Match, target: Sequence[int] | Value) -> Step:
    m.require(m.opset >= 5, "there is no Reshape for it")
    return Step("Reshape", [target], {"allowzero": None})


def _in_order(m: Match, found: IndexMap) -> list[int]:
    """Return the target of a single Reshape."""
    if found.written is not None:
        return found.written
    if found.is_seen and found.axes is not None and found.read is None:
        sizes = found.lengths()
    else:
        sizes = [found.size(d) for d in m.known(m.shape(m.anchor.output), "a rank is unknown")]
    target = constant_target(found.dims, sizes) or [s if isinstance(s, int) else -1 for s in sizes]
    m.require(target.count(-1) <= 1 and 0 not in sizes and (0 not in target or -1 not in target), _TARGET)
    return target


def _given(m: Match, dims: Sequence[Any], wanted: Sequence[Any]) -> Value | list[int] | None:
    """Return the anchor's own target if each copied dim is the same for a tensor of `dims`; else None."""
    target = m.anchor.input(1) if m.anchor.op == "Reshape" and not m.anchor.attr("allowzero", 0) else None
    zeros = copied(m, target) if target is not None else None
    if target is None or zeros is None or any([*dims[i : i + 1]] != [*wanted[i : i + 1]] for i in zeros):
        return None
    return [int(d) for d in target.array] if target.constant else target
