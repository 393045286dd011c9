"""Gathers at positions in order, and of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.shapes.index_tensors import Count, counts, dim_of, is_size
from onnxopt.graph import Value
from onnxopt.graph.value import Dim
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.element_types import is_float
from onnxopt.proto.messages import Array, numpy_dtype
from onnxopt.rewriting import Match, const, one_of, op, rewrite, var

_STAYS: Final = "what picks stays for others, and a Slice would be a node more"


@rewrite(op.GatherND(var("x"), op.Unsqueeze(var("i"), const("axes"), shared=True), name="gather"))
def gather_of_one_axis(m: Match, x: Value, i: Value, axes: Array) -> Value:
    """GatherND(x, Unsqueeze(i, -1)) = Gather(x, i)."""
    m.require(not m.gather.attr("batch_dims", 0), "places in each of a batch")
    m.require(axes.size == 1 and axes.item() in (-1, m.rank(i)), "places along several axes")
    return m.op.Gather(x, i)


@rewrite(op.GatherND(var("x"), op.Concat(var("first"), ..., name="places", shared=True), name="gather"))
def gather_of_grid(m: Match, x: Value, first: Value) -> Value:
    """GatherND(x, (i, j) for each i and each j) = Unsqueeze(x), with axes in front, between and behind."""
    m.require(not m.gather.attr("batch_dims", 0), "a grid for each of a batch")
    places, rank = m.known(types.full_shape(m.places.output), "a dim is unknown"), m.rank(first)
    m.require(int(m.places.attr("axis")) % (rank or 1) == len(places) - 1, "no places are joined")
    m.require(places[-1] == len(m.places.inputs), "a part has several indices")
    lines = [counts(v) for v in m.places.inputs]
    return _spread(m, x, [c and c._replace(axis=c.axis + 1) for c in lines], places[:-1])


@rewrite(
    op.GatherElements(
        op.Expand(var("x"), ..., name="data", shared=True),
        op.Expand(var("i"), ..., name="places", shared=True),
        name="gather",
    )
)
def elements_of_expanded(m: Match, x: Value, i: Value) -> Value:
    """GatherElements(Expand(x), Expand(i)) = GatherND(x, i) with batch dims.

    x is repeated along the axes of the positions, and i along the axes behind the gathered one.
    """
    shapes = own, dims, given, wide = [m.dims(v) for v in (x, m.data.output, i, m.places.output)]
    m.require(all(s and None not in s for s in shapes), "a dim is unknown")
    rank = len(dims)
    m.require(len(own) == len(given) == len(wide) == rank, "an Expand adds axes")
    axis, columns = int(m.gather.attr("axis", 0)) % rank, list(zip(*shapes))
    m.require(own[axis] == dims[axis] and given[axis] == wide[axis], "the axis is repeated")
    batch = next((k for k in range(axis) if len(set(columns[k])) > 1), axis)
    repeats = all(o == 1 and g == w for o, _, g, w in columns[batch:axis])
    m.require(repeats, "another axis is repeated than those of the places")
    rest = range(axis + 1, rank)
    picked = rest and all(g == 1 and o == d == w for o, d, g, w in columns[axis + 1 :])
    m.require(picked, "a place for each element of what is picked")
    m.require(m.opset >= 12, "there is no GatherND of a batch before opset 12")
    if batch < axis:
        x = m.op.Squeeze(x, m.ints(range(batch, axis)))
    if len(rest) > 1:
        i = m.op.Squeeze(i, m.ints(rest[1:]))
    return m.op.GatherND(x, i, batch_dims=batch)


_FLAT: Final = one_of("Flatten", "Reshape")(var("x"), ..., name="flat", shared=True)


@rewrite(
    op.Gather(
        _FLAT, op.Add(op.Mul(var("a"), var("b"), shared=True), var("columns"), name="index", shared=True), name="gather"
    )
)
def gather_of_rows(m: Match, x: Value, a: Value, b: Value, columns: Value) -> Value:
    """Gather(Reshape(x, [-1]), i n + j for each i and each j) = Unsqueeze(x), x of rows of n."""
    rows, width = (a, b) if dim_of(a) is None else (b, a)
    tail = _row(m)
    dims, places = (m.known(types.full_shape(v), "a dim is unknown") for v in (x, m.index.output))
    m.require(len(dims) == 2 and dim_of(width) == dims[1], "not rows of this length")
    lines = [counts(rows), counts(columns)]
    for line, v in zip(lines, (rows, columns)):  # a sum repeats elements along an axis of size 1
        alike = line is None or m.dims(v)[line.axis] == places[line.axis]
        m.require(alike, "elements are picked again and again")
    # An excess element of a row is the first of the next, without an error; an excess row is an error.
    m.require(lines[1] is not None and places[lines[1].axis] == dims[1], "not whole rows")
    return _spread(m, x, [c and c._replace(axis=c.axis - len(tail)) for c in lines], (*places, *tail))


_PLACES: Final = op.Transpose(op.NonZero(var("mask")), name="places", shared=True)
_COLUMNS: Final = op.Split(_PLACES, ..., axis=lambda axis: axis in (1, -1), name="columns", shared=True)


@rewrite(
    op.Gather(
        _FLAT,
        op.Add(
            op.Mul(op.Squeeze(_COLUMNS.at(0), const("of_i"), shared=True), const("width")),
            op.Squeeze(_COLUMNS.at(1), const("of_j"), shared=True),
            name="index",
            shared=True,
        ),
        name="gather",
    )
)
def gather_of_found(m: Match, x: Value, mask: Value, of_i: Array, of_j: Array, width: Array) -> Value:
    """Gather(Reshape(x, [-1]), i n + j) = GatherND(x, (i, j)), i and j of what is not zero in a matrix of n columns."""
    tail = _row(m)
    index = m.index.output
    m.require(index.feeds_only(lambda u: u is m.gather or u.op == "Shape"), "Add output used elsewhere")
    dims, found = m.dims(x), m.dims(mask)
    m.require(len(dims[:2]) == len(found) == 2 and dims[2:] in ((), (1,)), "no matrices")
    # A column behind the last of x would be the first of the next row, without an error.
    m.require(isinstance(dims[1], int) and found[1] == dims[1], "rows of another length")
    m.require(width.shape in ((), (1,)) and width.item() == dims[1], "not rows of this length")
    m.require(m.places.attr("perm") in (None, [1, 0]), "not place by place")
    m.require(of_i.tolist() in ([1], [-1]) and of_j.tolist() in ([1], [-1]), "not one index for each place")
    m.require(m.opset >= 11, "there is no GatherND before opset 11")
    if [*dims[2:]] != tail:
        x = m.op["Unsqueeze" if tail else "Squeeze"](x, m.ints([2]))
    return m.op.GatherND(x, m.places.output)


def _row(m: Match) -> list[int]:
    """Return the trailing axes of size 1 of a flattened tensor."""
    flat = m.shape(m.flat.output)
    m.require(flat is not None and flat[1:] in ((), (1,)), "not one row of elements")
    m.require(m.gather.attr("axis", 0) in (0, -len(flat or ())), "along another axis")
    return [1] * (len(flat or ()) - 1)


def _axis_of(m: Match, count: Count, last: int, places: Sequence[Dim]) -> int:
    """Return the axis of `places`, behind axis `last`, along which the indices count."""
    axis = count.axis + len(places)
    if 0 <= axis < len(places) and places[axis] == 1:
        axis = last + 1  # any axis of size 1 is possible: the first
        m.require(axis < len(places) and places[axis] == 1, "axes in another order")
    m.require(last < axis < len(places), "axes in another order")
    return axis


def _cut(m: Match, x: Value, end: Value | None, axis: int) -> Value:
    """Return a Slice of x up to a computed end, for indices that nobody else reads."""
    m.require(end is not None and is_size(end) and m.dtype(end) == TensorProto.INT64, "it may end elsewhere")
    picks = m.gather.inputs[1]
    m.require(picks is not None and picks.only_user is m.gather, _STAYS)
    start, to, along = m.ints([0]), m.op.Reshape(end, m.ints([1])), m.ints([axis])
    return m.op.Slice(x, start, to, along)


def _spread(m: Match, x: Value, lines: Sequence[Count | None], places: Sequence[Dim]) -> Value:
    """Return x with axes of size 1 inserted where `places` has them between the axes counted by `lines`."""
    dims, own = m.known(types.full_shape(x), "a dim is unknown"), list[int]()
    for line, size in zip(lines, dims):
        counted = line if line is not None and not line.start else None
        count = m.known(counted, "what does not count along an axis from the first place on")
        axis = _axis_of(m, count, own[-1] if own else -1, places)
        if places[axis] != size:  # the count stops before the end of x
            x = _cut(m, x, count.end, len(own))
        own.append(axis)
    axes = [i for i in range(len(places)) if i not in own]
    m.require(all(places[i] == 1 for i in axes), "elements are picked again and again")
    return m.op.Unsqueeze(x, m.ints(axes)) if axes else x


@register
class GatherGrids(RewritePass):
    """Gather(Flatten(x), i n + j), GatherND(x, (i, j)), for each i and each j, in order = Unsqueeze(x).

    Applies when: indices are stored, or computed by Ranges along separate axes, and dims are known; a Slice is left
    where the indices may end early. Masks of language models are looked up in this way, token by token.
    Gather(Flatten(x), i n + j) = GatherND(x, (i, j)) for i and j from NonZero: the weights of a mixture of experts.
    GatherElements(Expand(x), Expand(i)) = GatherND(x, i) of a batch: neighbours in point clouds.
    GatherND(x, Unsqueeze(i, -1)) = Gather(x, i): PyTorch's indexing along the first axis.
    Not done: indices that repeat elements; rows that may be cropped, where an index would run into the next row.
    """

    info = PassInfo(
        "gather-grids",
        opt_level=1,
        after=("index-chains", "shape-arithmetic"),
        ops=("Gather", "GatherElements", "GatherND"),
    )
    rules = (gather_of_one_axis, gather_of_grid, elements_of_expanded, gather_of_rows, gather_of_found)


_EXTRACTOR: Final = "ai.onnx.ml::ArrayFeatureExtractor"
# types supported by both operators; float16 is chosen for its size
_LOOKUP_TYPES: Final = frozenset({"f4", "f8", "i4", "i8"})
_MAX_TABLE_BYTES: Final = 1 << 16  # bytes: larger tables must not grow


@rewrite(op.Cast(one_of("Gather", _EXTRACTOR)(const("table"), var("at"), name="pick"), name="cast"))
def cast_of_lookup(m: Match, table: Array, at: Value) -> Value:
    """Cast(Gather(c, i)) = Gather(Cast(c), i); so for ArrayFeatureExtractor."""
    to = numpy_dtype(m.cast.attr("to"))
    m.require({table.dtype.str[1:], to.str[1:]} <= _LOOKUP_TYPES, "not from numbers to numbers")
    m.require(is_float(to) or ((table > -(2.0**31)) & (table < 2.0**31)).all(), "a number may not fit")
    grows = table.size * to.itemsize > max(_MAX_TABLE_BYTES, table.nbytes)
    m.require(not grows and len(m.value("table").users) == 1, "the table would grow, or be stored twice")
    return m.op[m.pick.op](m.const(table.astype(to)), at, like=m.pick)


@rewrite(op.Reshape(op[_EXTRACTOR](const("table"), op.ArgMax(var("x"), name="best")), const("shape")))
def label_of_best(m: Match, x: Value, table: Array, shape: Array) -> Value:
    """Reshape(ArrayFeatureExtractor(c, ArgMax(x)), [-1]) = Gather(c, ArgMax(x, keepdims = 0))."""
    m.require(shape.reshape(-1).tolist() == [-1] and m.rank(x) == 2, "not one label for each row")
    m.require(m.best.attr("axis") in (1, -1), "not the best of each row")
    m.require(table.shape[-1:] == (table.size,), "several rows of labels, or none")
    best = m.best.output if not m.best.keeps_dims else m.op.ArgMax(x, like=m.best, keepdims=0)
    labels = m.value("table") if table.ndim == 1 else m.const(table.reshape(-1))
    return m.op.Gather(labels, best, axis=0)


@rewrite(op.Gather(const("table"), one_of("ArgMax", "ArgMin")(var("x"), ..., name="best", shared=True)))
def label_that_counts(m: Match, x: Value, table: Array) -> Value:
    """Gather([0, 1, …], ArgMax(x)) = ArgMax(x), for indices within the table."""
    m.require(table.ndim == 1 and table.dtype == np.int64, "not one label of 64 bits for each place")
    m.require((table == np.arange(table.size)).all(), "the labels do not count from 0")
    return m.best.output


@register
class TableLookups(RewritePass):
    """Cast(Gather(c, i)) = Gather(Cast(c), i), c constant; gathers the label of the best class directly; labels
    that count from 0 are the indices.

    Applies when: the table is small, or does not grow, and table and inner values have no other readers.
    Classifiers of scikit-learn look up labels in this way, through floats.
    """

    info = PassInfo("table-lookups", opt_level=1, ops=("Cast", "ArgMax", "ArgMin"))
    rules = (cast_of_lookup, label_of_best, label_that_counts)
