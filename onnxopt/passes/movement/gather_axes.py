"""What is picked along one axis is picked where it lies: nothing is turned to the front for that, and back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from operator import mul
from typing import Final

import numpy as np

from onnxopt.analysis.shapes.sizes import order_of
from onnxopt.graph import Shape, Value
from onnxopt.graph.node import Node
from onnxopt.operators import SAME_ORDER
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.protos import Array
from onnxopt.rewriting import Match, const, one_of, op, rewrite, var
from onnxopt.rewriting.axis_runs import Moved, after, before_transpose, constant_target, product

_BATCH: Final = "places in each of a batch"
_BLOCK: Final = 32  # elements that are copied at once: of 16, onnxruntime's Gather takes as long as Split and Concat
_MANY: Final = 1 << 16  # indices that are computed anew
_PLACES: Final = 1 << 12  # indices that are stored in place of nothing
_RANK: Final = "a rank is unknown"
_UNKNOWN: Final = "a dim is unknown"
_TARGET: Final = "more than one unknown dim"


@rewrite(op.GatherND(var("x"), const("index"), name="gather"))
def gather_of_column(m: Match, x: Value, index: Array) -> Value:
    """GatherND(x, [[i], [j], …]) = Gather(x, [i, j, …])."""
    m.require(not m.gather.attr("batch_dims", 0), _BATCH)
    m.require(index.ndim and index.shape[-1] == 1, "places along several axes")
    return m.op.Gather(x, m.const(index[..., 0]), axis=0)


@rewrite(op.Gather(var("x"), const("index"), name="gather"))
def gather_in_order(m: Match, x: Value, index: Array) -> Value:
    """Gather(x, [[0, 1, …], …, [… n - 1]]) = Reshape(x), where the axis has n elements."""
    if index.ndim < 2 or not 0 < index.size <= _MANY:
        m.skip()
    dims, axis = m.shape(x), int(m.gather.attr("axis"))
    m.require(dims is not None and -len(dims) <= axis < len(dims), _RANK)
    assert dims is not None
    axis %= len(dims)
    m.require(dims[axis] == index.size, "the axis has more elements, or an unknown number")
    flat = index.reshape(-1)
    counted = np.where(flat < 0, flat + flat.size, flat)
    m.require((counted == np.arange(flat.size)).all(), "not all elements, or not in order")
    target = constant_target(dims, (*dims[:axis], *index.shape, *dims[axis + 1 :]))
    m.require(target is not None and m.opset >= 5, _TARGET)
    return m.op.Reshape(x, m.ints(target))


@rewrite(op.Concat(var("first"), ..., name="concat", reads={"Split"}))
def concat_of_parts(m: Match, first: Value) -> Value:
    """Concat(b, a) = Gather(x, [places of b, places of a]), a and b the parts of x along that axis."""
    split = first.producer
    x = split.inputs[0] if split is not None and split.op == "Split" and not split.has_references else None
    if split is None or x is None:
        m.skip()
    dims, parts = m.shape(x), split.outputs
    m.require(dims, _RANK)
    assert dims is not None
    axis = int(split.attr("axis") or 0) % len(dims)
    m.require(int(m.concat.attr("axis")) % len(dims) == axis, "joined along another axis")
    used = [v for v in parts if v is not None and v.is_used]
    m.require(all(v in parts for v in m.concat.inputs), "other tensors are joined, too")
    m.require(all(v.feeds_only(lambda u: u is m.concat) for v in used), "a part is read elsewhere")
    block = prod(d for d in dims[axis + 1 :] if isinstance(d, int))
    m.require(block >= _BLOCK, "a Gather would copy a few elements at a time")
    sizes = [(m.shape(v) or ())[axis : axis + 1] if v is not None else () for v in parts]
    places: dict[Value, list[int]] = {}
    at = 0
    for v, size in zip(parts, sizes):
        length = size[0] if size else None
        m.require(isinstance(length, int) and at + length <= _PLACES, "parts of unknown length, or long ones")
        assert isinstance(length, int)
        if v is not None:
            places[v] = list(range(at, at + length))
        at += length
    index = [i for v in m.concat.inputs if v is not None for i in places[v]]
    m.require(len(index) <= _PLACES, "an index for each would be large")
    return m.op.Gather(x, m.ints(index), axis=axis)


@rewrite(
    op.Transpose(op.Gather(op.Transpose(var("x"), name="first", shared=True), var("index"), name="gather"), name="last")
)
def transposes_around_gather(m: Match, x: Value, index: Value) -> Value:
    """Transpose(Gather(Transpose(x, p), i, a), q) = Gather(x, i, p[a]), transposed once if it has to be."""
    rank, width = m.rank(x), m.rank(index)
    m.require(rank and width is not None, _RANK)
    perm = _order_of(m, m.first, rank or 0)
    order = _order(m, perm, int(m.gather.attr("axis")), width or 0)
    in_order = list(order) == sorted(order)
    m.require(in_order or m.first.output.only_user is m.gather, "the first Transpose is used elsewhere")
    return _picked(m, x, index, perm[int(m.gather.attr("axis"))], order)


@rewrite(
    op.Transpose(
        op.Gather(
            one_of(*SAME_ORDER)(op.Transpose(var("x"), name="first"), ..., name="inner"), var("index"), name="gather"
        ),
        name="last",
    )
)
def transposes_around_reshaped(m: Match, x: Value, index: Value) -> Value:
    """Transpose(Gather(Reshape(Transpose(x, p), s), i, a), q) = Gather(Reshape(x, t), i, b), transposed once if it has
    to be."""
    dims, between, width = m.shape(x), m.shape(m.inner.output), m.rank(index)
    m.require(dims is not None and between is not None and width is not None, _RANK)
    assert dims is not None and between is not None
    moved = before_transpose(dims, order_of(m.first, len(dims)), between)
    return _picked_of(m, x, index, moved, int(m.gather.attr("axis")), width or 0)


@rewrite(op.Transpose(op.GatherND(op.Transpose(var("x"), name="first"), const("index"), name="gather"), name="last"))
def transposes_around_places(m: Match, x: Value, index: Array) -> Value:
    """Transpose(GatherND(Transpose(x, p), (i, j)), q) = Gather(Reshape(x), i n + j), along both axes as one of rows of
    n."""
    m.require(not m.gather.attr("batch_dims", 0), _BATCH)
    dims = m.shape(x)
    m.require(dims is not None, _RANK)
    assert dims is not None
    m.require(index.ndim and index.shape[-1] <= len(dims) and 0 < index.size <= _MANY, "many indices, or none")
    perm, n = _order_of(m, m.first, len(dims)), index.shape[-1]
    turned = tuple(dims[i] for i in perm)
    sizes = [d for d in turned[:n] if isinstance(d, int)]
    m.require(len(sizes) == n, _UNKNOWN)
    places = np.where(index < 0, index + np.array(sizes), index)
    m.require(((places >= 0) & (places < np.array(sizes))).all(), "a place that is not there")
    strides = [*accumulate(sizes[:0:-1], mul, initial=1)][::-1]
    moved = before_transpose(dims, perm, (prod(sizes), *turned[n:]))
    flat = m.ints((places * np.array(strides)).sum(-1))
    return _picked_of(m, x, flat, moved, 0, index.ndim - 1)


def _order_of(m: Match, node: Node, rank: int) -> tuple[int, ...]:
    perm = order_of(node, rank)
    m.require(sorted(perm) == list(range(rank)), "no order of the axes that there are")
    return perm


def _order(m: Match, perm: Sequence[int], axis: int, width: int) -> tuple[int, ...]:
    """How the last Transpose puts the axes of Gather(x, index, perm[axis]), an index of `width` axes."""
    rank = len(perm)
    axis %= rank
    place = perm[axis]
    own = [i + (width - 1) * (i > place) for i in perm]  # where each axis of x is behind the Gather
    behind = [*own[:axis], *range(place, place + width), *own[axis + 1 :]]
    return after(behind, _order_of(m, m.last, len(behind)))


def _picked(m: Match, x: Value, index: Value, axis: int, order: Sequence[int]) -> Value:
    picked = m.op.Gather(x, index, axis=axis)
    return picked if list(order) == sorted(order) else m.op.Transpose(picked, perm=list(order), like=m.last)


def _picked_of(m: Match, x: Value, index: Value, moved: Moved | None, axis: int, width: int) -> Value:
    """Of the Reshape of x that says, behind a Transpose, what was picked from."""
    m.require(moved is not None, "the axes that become one are not side by side")
    assert moved is not None
    order = _order(m, moved.perm, axis, width)
    in_order = list(order) == sorted(order)
    m.require(in_order or m.gather.op == "Gather", "it would be turned all the same")
    target = constant_target(m.shape(x) or (), moved.dims)
    m.require(target is not None and m.opset >= 5, _TARGET)
    return _picked(m, m.op.Reshape(x, m.ints(target)), index, moved.perm[axis], order)


@rewrite(
    one_of(*SAME_ORDER)(
        op.Gather(one_of(*SAME_ORDER)(var("x"), ..., name="inner"), var("index"), name="gather"), ..., name="outer"
    )
)
def reshapes_around_gather(m: Match, x: Value, index: Value) -> Value:
    """Reshape(Gather(Reshape(x, s), i, a), t) = Gather(Reshape(x, u), i, b)."""
    dims, between, wanted = (m.shape(v) for v in (x, m.inner.output, m.outer.output))
    given = m.shape(index)
    m.require(dims is not None and between and wanted is not None and given is not None, _RANK)
    assert dims is not None and between is not None and wanted is not None and given is not None
    axis = int(m.gather.attr("axis")) % len(between)
    found = _parts(wanted, between[:axis], given, between[axis + 1 :])
    m.require(found is not None, "what the Reshape behind it joins or splits is not provably on one side of the axis")
    assert found is not None
    start, end = found
    picks = wanted[start:end]
    if picks != given:
        m.require(index.constant and all(isinstance(d, int) for d in picks), "the index has other axes")
        index = m.const(index.array.reshape(picks))
    target = constant_target(dims, (*wanted[:start], between[axis], *wanted[end:]))
    m.require(target is not None and m.opset >= 5, _TARGET)
    return m.op.Gather(m.op.Reshape(x, m.ints(target)), index, axis=start)


@rewrite(op.Transpose(op.Gather(var("x"), const("index"), name="gather"), name="last"))
def transpose_of_gather(m: Match, x: Value, index: Array) -> Value:
    """Transpose(Gather(x, i, a), p) = Gather(x, Transpose(i), a) where only axes of the index change places."""
    rank = m.rank(x)
    m.require(rank and index.ndim > 1 and index.size <= _MANY, "an index of one axis, or many indices")
    axis = int(m.gather.attr("axis")) % (rank or 1)
    order = _order_of(m, m.last, (rank or 0) - 1 + index.ndim)
    own = order[axis : axis + index.ndim]
    rest = (*order[:axis], *order[axis + index.ndim :])
    stays = sorted(own) == list(range(axis, axis + index.ndim)) and list(rest) == sorted(rest)
    m.require(stays, "other axes change places")
    return m.op.Gather(x, m.const(index.transpose([i - axis for i in own])), axis=axis)


@rewrite(
    one_of(*SAME_ORDER)(
        op.Gather(
            op.Gather(one_of(*SAME_ORDER)(var("x"), ..., name="inner"), const("i"), name="first"),
            const("j"),
            name="second",
        ),
        ...,
        name="outer",
    )
)
def gathers_between_reshapes(m: Match, x: Value, i: Array, j: Array) -> Value:
    """Reshape(Gather(Gather(Reshape(x, s), i, a), j, a + 1), t) = Reshape(Gather(Reshape(x, u), i n + j, a), v), rows
    of n."""
    dims, between, wanted = (m.shape(v) for v in (x, m.inner.output, m.outer.output))
    m.require(dims is not None and between and wanted is not None, _RANK)
    assert dims is not None and between is not None and wanted is not None
    a, b = (int(node.attr("axis")) % len(between) for node in (m.first, m.second))
    m.require(i.ndim == j.ndim == 1 and abs(a - b) == 1, "no two axes side by side")
    at, (rows, columns) = min(a, b), (i, j) if a < b else (j, i)
    height, width = between[at : at + 2]
    m.require(isinstance(height, int) and isinstance(width, int), _UNKNOWN)
    assert isinstance(height, int) and isinstance(width, int)
    m.require(rows.size * columns.size <= _PLACES, "an index for each would be large")
    there = all(((-n <= v) & (v < n)).all() for n, v in ((height, rows), (width, columns)))
    m.require(there, "a place that is not there")
    index = ((rows % height)[:, None] * width + columns % width).reshape(-1)
    target = constant_target(dims, (*between[:at], height * width, *between[at + 2 :]))
    behind = constant_target((*between[:at], index.size, *between[at + 2 :]), wanted)
    m.require(target is not None and behind is not None and m.opset >= 5, _TARGET)
    return m.op.Reshape(m.op.Gather(m.op.Reshape(x, m.ints(target)), m.ints(index), axis=at), m.ints(behind))


def _parts(wanted: Shape, before: Shape, index: Shape, behind: Shape) -> tuple[int, int] | None:
    """From where to where the axes of an index are among the dims of a result, that has the same elements as axes
    before, those of the index, and axes behind; None where that is not proven."""
    sizes = [product(p) for p in (before, index, behind)]
    if None in sizes or 0 in sizes:
        return None
    starts = [i for i in range(len(wanted) + 1) if product(wanted[:i]) == sizes[0]]
    exact = [(i, i + len(index)) for i in starts if wanted[i : i + len(index)] == index]
    spans = exact or [(i, j) for i in starts[:1] for j in range(i, len(wanted) + 1) if product(wanted[i:j]) == sizes[1]]
    return next((s for s in spans if product(wanted[s[1] :]) == sizes[2]), None)


@register
class GatherAxes(RewritePass):
    """Transpose(Gather(Transpose(x), i)) = Gather(x, i) along the axis itself, Reshape(Gather(Reshape(x), i)) =
    Gather(Reshape(x), i); GatherND of one column = Gather; parts of a Split that are joined in another order = Gather.

    Applies when: ranks are known, and nobody else reads the steps in between. PyTorch's exporters turn what is indexed
    to the front, and back: `x[:, i]`, and `x[:, i, j]`, which is picked of both axes as one where they lie side by side
    and the places are constant. `torch.roll` joins parts in another order: a Gather, where it
    copies 32 elements at once; of rows and columns between two Reshapes both at once, as Swin shifts its windows.
    """

    # After: what is all there, in order, is no Gather.
    info = PassInfo(
        "gather-axes",
        opt_level=1,
        after=("gather-grids", "merge-chains", "reshape-chains"),
        ops=("Concat", "Gather", "GatherND"),
    )
    rules = (
        gather_of_column,
        gather_in_order,
        concat_of_parts,
        transposes_around_gather,
        transposes_around_reshaped,
        transposes_around_places,
        reshapes_around_gather,
        gathers_between_reshapes,
        transpose_of_gather,
    )
