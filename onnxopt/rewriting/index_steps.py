"""Operators that move elements, as steps of an index map; a step declines if the result cannot be expressed."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final, TypeAlias

import numpy as np

from onnxopt.analysis.shapes.sizes import LARGEST, cuts, indices, is_picked, known_order, product
from onnxopt.analysis.shapes.symbolic import Size
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.operators import SAME_ORDER
from onnxopt.proto.messages import Array
from onnxopt.rewriting.index_maps import APART, IndexMap, Part, Run, Seen, flat, length, real, whole
from onnxopt.rewriting.match import Match
from onnxopt.rewriting.rule import canonical_operands, listed_axes

VIEWS: Final = (*SAME_ORDER, "Transpose")

_COMPUTED: Final = 1 << 16  # indices computed
# Operators on sizes without zeros if no tensor is empty.
_OF_SIZES: Final = ("Add", "Cast", "Concat", "Max", "Mul", "ReduceProd", "Size")
_RANK: Final = "a rank is unknown"
_ORDER: Final = "no order of the axes that there are"
_AXES: Final = "no axes, or computed ones, or such as are not there"
_OUT_OF_RANGE: Final = "an index that is not there"
_NEGATIVE: Final = "negative axes of an unknown rank"

Cut: TypeAlias = tuple[int, int, int]  # start, end, step of a Slice


def apply(found: IndexMap, node: Node) -> None:
    """Append an operator to the map; declines if the result cannot be expressed."""
    if node.op not in SAME_ORDER:
        found.m.require(found.axes is not None, APART if found.source else _RANK)
    _STEPS[node.op](found, node)
    if node.op not in SAME_ORDER:
        found.written = None


# -- steps that keep the order --------------------------------------------------------------------------------------


def _reshape(found: IndexMap, node: Node) -> None:
    m = found.m
    target, in_order = _target(m, node.input(1)), found.is_in_order()
    written: list[int] | None = None
    if target is not None:
        m.require(not (node.attr("allowzero", 0) and 0 in target), "a dim of 0")
        _require_copied(found, target)
        written = found.resolved(target) if in_order else None
    axes = None if found.is_open or found.axes is None else found.regrouped(target, node)
    m.require(in_order or axes is not None, APART)
    if axes is None:
        found.begin(node)
    else:
        found.axes = axes
    found.written, found.is_open = written, False


def _target(m: Match, given: Value | None) -> list[int] | None:
    """Return a constant Reshape target, or None."""
    if given is None or not given.constant:
        return None
    m.require(given.array.ndim == 1, "no list of dims")
    target: list[int] = given.array.tolist()
    return target


def copied(m: Match, target: Value) -> tuple[int, ...] | None:
    """Return the positions where a target of constants and sizes copies a dim, or None."""
    found = copies(m, target) if is_picked(target, _OF_SIZES) else None
    return None if found is None else tuple(found)


def copies(m: Match, target: Value) -> list[int] | None:
    """Return the positions of zeros in a Reshape target, each a copied dim; None if unknown. Computed entries are not
    zero."""
    maker = target.producer
    found, place = list[int](), 0
    for part in maker.inputs if maker is not None and maker.op == "Concat" else [target]:
        size = m.shape(part) if part is not None else None
        if part is None or size is None or len(size) != 1 or not isinstance(size[0], int):
            return None
        found += [place + i for i in range(size[0]) if part.constant and not part.array[i]]
        place += size[0]
    return found


def _require_copied(found: IndexMap, target: list[int]) -> None:
    """Decline if a target copies dims that the result does not have."""
    last = max((i for i, t in enumerate(target) if t == 0), default=-1)
    if found.is_open:
        found.grow(1 + last)
    there = len(found.axes if found.axes is not None else found.written or target)
    found.m.require(last < there, "a shape copies dims that are not there")


def _flatten(found: IndexMap, node: Node) -> None:
    found.m.require(found.is_in_order() or not found.is_open, _RANK)
    axes, axis = found.axes, int(node.attr("axis", 1))
    found.written = None
    if axes is None or found.is_open:
        found.begin(node)
        found.is_open = False
        return
    found.m.require(-len(axes) <= axis <= len(axes), _AXES)
    at = axis + len(axes) if axis < 0 else axis
    found.axes = [flat(side) or [Part(1)] for side in (axes[:at], axes[at:])]


def _places(found: IndexMap, node: Node, added: int) -> list[int]:
    """Return the sorted axes listed by an Unsqueeze or Squeeze, counted in the larger rank."""
    given = listed_axes(node)
    found.m.require(given, _AXES)
    assert given is not None
    count = len(given) * added
    if found.is_open:
        found.m.require(min(given) >= 0, _NEGATIVE)
        found.grow(max(given) + 1 - count)
    known = found.axes if found.axes is not None else found.written
    rank = len(known) + count if known is not None else found.m.rank(node.output) if added else None
    found.m.require(rank is not None and all(-rank <= a < rank for a in given), _AXES)
    places = sorted({a % (rank or 1) for a in given})
    found.m.require(len(places) == len(given), _AXES)
    return places


def _unsqueeze(found: IndexMap, node: Node) -> None:
    for i in (places := _places(found, node, 1)):
        if found.axes is not None:
            found.axes.insert(i, [Part(1)])
        if found.written is not None:
            found.written.insert(i, 1)
    _keep_written(found, places[0])


def _squeeze(found: IndexMap, node: Node) -> None:
    places = _places(found, node, 0)
    for i in reversed(places):
        if found.axes is not None:
            found.m.require(not isinstance(n := length(found.axes[i]), int) or n == 1, "an axis that is not one")
            for part in found.axes.pop(i):
                _drop(found, part)
        if found.written is not None and found.written.pop(i) != 1:
            found.written = None
        found.squeezed |= found.axes is None and found.written is None
    _keep_written(found, places[0])


def _keep_written(found: IndexMap, first: int) -> None:
    """Forget a written target with copied dims behind `first`, since a dim is copied by position."""
    if found.written is not None and 0 in found.written[first:]:
        found.written = None


def _drop(found: IndexMap, part: Part) -> None:
    """Drop an axis of size 1; runtimes reject any other size."""
    part.size, run = 1, part.run
    if run is None or isinstance(run.pick, Value):
        return
    if run.pick is None:
        found.squeezed |= run.size != 1
        run.size = 1
        found.dims = [1 if runs == [run] else d for d, runs in zip(found.dims, found.source)]
    elif run.is_listed:
        run.parts.remove(part)
    elif (index := single_index(run)) is not None:
        run.pick, run.parts = np.array([index]), []


def single_index(run: Run) -> int | None:
    """Return the index of the single element in a run cut by a Slice; None if the index depends on an unknown size."""
    start, end, step = run.pick
    if isinstance(run.size, int):
        taken = indices(start, end, step, run.size)
        return range(run.size)[taken].start if taken is not None else start
    is_single = end == start + 1 if start != -1 else end >= LARGEST[0]
    return start if step == 1 and is_single else None


def begin_in(found: IndexMap, seen: Seen) -> None:
    """Let the source be in a view: from the view to the value."""
    found.m.require(not found.is_open, APART)
    source: list[list[Run]] = [[] for _ in range(seen.rank)]
    for runs, axis, places in zip(found.source, found.known(), seen.to):
        if len(places) > 1:
            runs = [whole(found.size(d)) for d in seen.sizes]
            axis[:] = flat(r.parts for r in runs)
        if not places:
            axis[:] = [Part(1)]
        for i, run in zip(places, runs):
            source[i].append(run)
    found.source = [runs or [whole(1)] for runs in source]
    found.dims, found.is_seen = [product(r.size for r in runs) for runs in found.source], True


def end_in(found: IndexMap, seen: Seen) -> None:
    """Append a view."""
    found.m.require(found.axes is not None and not found.is_open, APART)
    axes: list[list[Part]] = [[] for _ in range(seen.rank)]
    for parts, places in zip(found.known(), seen.to):
        given, rest = [parts], [*parts]
        if len(places) > 1:
            given = [taken for d in seen.sizes if (taken := found.taken(rest, found.size(d))) is not None]
            found.m.require(len(given) == len(places), APART)
        for i, some in zip(places, given):
            axes[i] += some
    found.axes, found.is_seen = [parts or [Part(1)] for parts in axes], True


# -- steps that change the order ------------------------------------------------------------------------------------


def _transpose(found: IndexMap, node: Node) -> None:
    found.m.require(not found.is_open or node.attr("perm"), _RANK)
    found.grow(len(node.attr("perm") or ()))
    axes, found.is_open = found.known(), False
    perm = known_order(node, len(axes))
    found.m.require(perm is not None, _ORDER)
    found.axes = [axes[i] for i in perm or ()]


def _slice(found: IndexMap, node: Node) -> None:
    given = canonical_operands(node)[1:]
    found.m.require(all(v is None or v.constant for v in given), "the bounds are computed")
    found.m.require(all(v is None or v.array.ndim == 1 for v in given), "the bounds are no vectors")
    starts, ends, axes, steps = [None if v is None else v.array.tolist() for v in (*given, None, None)][:4]
    if found.is_open:
        found.m.require(axes and min(axes) >= 0, _NEGATIVE)
        found.grow(max(axes or ()) + 1)
    taken = cuts(starts or (), ends or (), axes, steps, len(found.known()))
    found.m.require(taken is not None, _AXES)
    for axis, start, end, step in taken or ():
        _cut(found, node, axis, (start, end, step))


def _cut(found: IndexMap, node: Node, axis: int, cut: Cut) -> None:
    """Restrict an axis to the elements of a Slice."""
    m, run = found.m, found.run(axis)
    m.require(run is None or not isinstance(run.pick, Value), APART)
    size = length(found.known()[axis])
    taken = slice(None)
    count: Size | None = None
    if isinstance(size, int):
        known = indices(*cut, size)
        m.require(known is not None, "bounds that readers take differently")
        taken = known or taken
        count = len(range(size)[taken])
    if count == size and (cut[2] == 1 or size == 1):
        return
    m.require(run is not None, "nothing of one element")
    assert run is not None
    run.pick = run.pick[taken] if run.is_listed else cut if run.pick is None else _cut_again(m, run, cut, taken)
    if count is None:
        dims = m.shape(node.output)
        count = found.size(dims[axis] if dims is not None else None)
    run.parts = [Part(count, run)]
    found.known()[axis] = run.parts[:]


def _cut_again(m: Match, run: Run, cut: Cut, taken: slice) -> Cut:
    """Return the single cut equal to a second Slice along the axis of a run. `taken`: the second Slice, if its input
    has a known size."""
    first: Cut = run.pick
    if isinstance(run.size, int):
        r = _range(first, run.size)[taken]
        return (r.start, r.stop if r.stop >= 0 else -run.size - 1, r.step) if r else (0, 0, 1)
    m.require(first[2] == cut[2] == 1, "steps along the same axis")
    m.require(min(*first[:2], *cut[:2]) >= 0, "counts from the end along the same axis")
    start = min(first[0] + cut[0], LARGEST[1])
    return start, min(first[1], first[0] + cut[1]), 1


def places(run: Run) -> Array:
    """Return the constant indices of the elements in a run of known size, flat."""
    if run.pick is None:
        return np.arange(run.size)
    return run.pick if run.is_listed else np.array(_range(run.pick, run.size))


def _range(cut: Cut, size: int) -> range:
    taken = indices(*cut, size)
    assert taken is not None  # guaranteed by the map
    return range(size)[taken]


def _gather(found: IndexMap, node: Node) -> None:
    m, axis, index = found.m, int(node.attr("axis", 0)), node.inputs[1]
    m.require(not found.is_open or axis >= 0, _NEGATIVE)
    found.grow(axis + 1)
    rank = len(found.known())
    m.require(index is not None and -rank <= axis < rank, _AXES)
    assert index is not None
    if index.constant:
        _pick(found, axis % rank, index.array)
        return
    dims, run = m.shape(index), found.run(axis % rank)
    m.require(dims is not None, _RANK)
    m.require(run is not None and run.pick is None, "what is picked is picked from, or one element")
    assert run is not None
    run.pick, run.parts = index, [Part(found.size(d), run) for d in dims or ()]
    found.known()[axis % rank : axis % rank + 1] = [[p] for p in run.parts]


def _pick(found: IndexMap, axis: int, index: Array) -> None:
    """Replace an axis by the elements at constant indices, with the axes of the indices."""
    m, run, axes = found.m, found.run(axis), found.known()
    size = length(axes[axis])
    m.require(0 < index.size <= _COMPUTED, "many indices, or none")
    if isinstance(size, int):
        m.require(((-size <= index) & (index < size)).all(), _OUT_OF_RANGE)
        index = np.where(index < 0, index + size, index)
    if run is None:  # size 1
        m.require(index.size == 1, "one element is picked again and again")
        axes[axis : axis + 1] = [axes[axis] if i == 0 else [Part(1)] for i in range(index.ndim)]
        return
    m.require(not isinstance(run.pick, Value), APART)
    if isinstance(run.pick, tuple):
        m.require(isinstance(run.size, int) and run.size <= _COMPUTED, "of an axis of unknown size, or a long one")
    run.pick = (index if run.pick is None else places(run)[index]).reshape(-1)
    run.parts = [Part(n, run) for n in index.shape]
    axes[axis : axis + 1] = [[p] for p in run.parts]


def _gather_nd(found: IndexMap, node: Node) -> None:
    m, axes, index = found.m, found.known(), node.inputs[1]
    m.require(not node.attr("batch_dims", 0), "places in each of a batch")
    m.require(index is not None and index.constant and not found.is_open, "computed places, or an unknown rank")
    assert index is not None
    places = index.array
    n = places.shape[-1] if places.ndim else 0
    m.require(0 < n <= len(axes) and places.size <= _COMPUTED, "many indices, or none")
    if n > 1:
        places = _flat_places(m, places, [length(a) for a in axes[:n]])
        axes[:n] = [flat(axes[:n])]
    _pick(found, 0, places[..., 0])


def _flat_places(m: Match, places: Array, sizes: list[Size]) -> Array:
    """Return places along several axes as places along these axes merged."""
    known = [s for s in sizes if isinstance(s, int) and s]
    m.require(len(known) == len(sizes), "a dim is unknown")
    ends = np.array(known)
    m.require(((-ends <= places) & (places < ends)).all(), _OUT_OF_RANGE)
    strides = [prod(known[i + 1 :]) for i in range(len(known))]
    merged: Array = (np.where(places < 0, places + ends, places) * strides).sum(-1, keepdims=True)
    return merged


def _copy(found: IndexMap, node: Node) -> None:
    """Apply Expand or Tile along inserted axes. A count of 1 keeps an axis, also one of unknown size."""
    m, dims = found.m, found.m.shape(node.output)
    axes = found.known()
    m.require(dims is not None and len(dims) == len(axes) and not found.is_open, _RANK)
    counts = _target(m, node.inputs[1]) if len(node.inputs) == 2 else None  # three before opset 6
    kept = [1] * (len(axes) - len(counts)) + counts if counts is not None else [0] * len(axes)
    for i, dim in enumerate(dims or ()):
        if kept[i] != 1 and length(axes[i]) != found.size(dim):
            m.require(isinstance(dim, int) and dim > 0, "the number of copies is unknown, or none")
            m.require(not real(axes[i]), "elements along an axis of their own are repeated")
            axes[i] = [Part(dim)]


_STEPS: Final[dict[str, Callable[[IndexMap, Node], None]]] = {
    "Expand": _copy,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Tile": _copy,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
MOVERS: Final = tuple(_STEPS)
PICKING: Final = tuple(op for op in MOVERS if op not in VIEWS)
