"""Slices and picks of a tensor become one Split, and a Split without its axis picks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from onnxopt.analysis import types
from onnxopt.analysis.linear import lengths_of
from onnxopt.analysis.shapes.sizes import known_order
from onnxopt.graph import Value
from onnxopt.graph.node import Node, array_of, own_producer, present, producer, sole_reader
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.rewriting import Match, one_of, op, rewrite, var
from onnxopt.rewriting.index_maps import constant_target
from onnxopt.rewriting.rule import listed_axes
from onnxopt.rewriting.spans import EXTRACTOR, taken

_CUTS: Final = ("Slice", "Gather", EXTRACTOR)
_MAX_STACKED: Final = 100  # parts


@rewrite(one_of(*_CUTS)(var("x"), ..., name="first"))
def split_of_slices(m: Match, x: Value) -> dict[Value, Value]:
    """x[:a], x[a:b], x[b:] = Split(x), for Slices, and Gathers of indices one after the other."""
    if x.constant or next(_cutters(x), None) is not m.first:
        m.skip()  # the first reader acts for all: if each asked all readers, the cost would be quadratic
    made = dict[Value, Value]()
    for (axis, size), cuts in _cuts_of(m, x).items():
        spans = sorted(cuts)
        follow = all(a[1] == b[0] < b[1] for a, b in pairwise([(0, 0), *spans]))
        if follow and len(spans) > 1 and spans[-1][1] == size:
            m.put_behind(x)
            parts = m.op.Split(x, m.ints([end - start for start, end in spans]), axis=axis, outputs=len(spans))
            made |= {node.output: part for span, part in zip(spans, parts) for node in cuts[span]}
    m.require(made, "a gap, an overlap, or not all of the axis")
    return made


def _cutters(x: Value) -> Iterator[Node]:
    """Yield the readers of `x` that may take a span."""
    return (n for n in x.users if n.op in _CUTS and n.inputs[0] is x and n.graph is x.graph)


def _cuts_of(m: Match, x: Value) -> dict[tuple[int, int], dict[tuple[int, int], list[Node]]]:
    """Return the nodes that take one span of `x`, by (axis, its length), and (start, end); not picks."""
    cuts: dict[tuple[int, int], dict[tuple[int, int], list[Node]]] = {}
    for node in _cutters(x):
        found = taken(node) if node.output.is_used else None
        if found is None or found.size is None or not found.alone:
            continue
        span, is_pick = found.bounds(node.output), found.drops or (node.op != "Slice" and m.rank(x) == 1)
        if span is not None and not is_pick:
            cuts.setdefault((found.axis, found.size), {}).setdefault(span, []).append(node)
    return cuts


@rewrite(op.Split(var("x"), ..., name="outer"))
def split_of_split(m: Match, x: Value) -> dict[Value, Value]:
    """Split(Split(x)[i]) = Split(x), with the parts of part i in its place."""
    again = [v for v in m.outer.results if sole_reader(v, "Split") is not None]
    found = taken(m.outer) if again else None
    inner = next((n for v in again if found is not None and (n := _split_again(v, found.axis))), None)
    if found is None or inner is None:
        m.skip()
    parts = [w for v in m.outer.outputs for w in (inner.outputs if v is inner.inputs[0] else [v])]
    return _cut_otherwise(m, m.outer, found.axis, parts)


def _split_again(part: Value, axis: int) -> Node | None:
    """Return the only reader of a part if it is a Split along the same axis, with known lengths; else None."""
    node = sole_reader(part, "Split")
    found = taken(node, axis) if node is not None and node.graph is part.graph and node.inputs[0] is part else None
    return node if node is not None and found is not None and len(found.spans) == len(node.outputs) else None


@rewrite(op.Concat(var("first"), ..., name="concat", reads={"Split"}))
def concat_of_parts(m: Match, first: Value) -> dict[Value, Value]:
    """Concat(b, c), where (a, b, c) = Split(x), is a part of Split(x), if nothing else reads b and c."""
    split, given, rank = producer(first, "Split"), m.concat.operands, m.rank(first) or 1
    begin, end = first.index, first.index + len(given)
    if split is None or split.graph is not m.graph or split.outputs[begin:end] != given:
        m.skip()
    if not 1 < len(given) < len(split.outputs):
        m.skip()
    parts = [*split.outputs[:begin], m.concat.output, *split.outputs[end:]]
    return _cut_otherwise(m, split, int(m.concat.attr("axis")) % rank, parts)


def _cut_otherwise(m: Match, split: Node, axis: int, parts: Sequence[Value | None]) -> dict[Value, Value]:
    """Return the results of a Split into these parts, in place of `split`; declines for another axis, or unknown
    lengths."""
    found, sizes = taken(split, axis), m.known(lengths_of(parts, axis), "a length is unknown")
    m.require(found is not None and found.size in (None, sum(sizes)), "along another axis")
    m.before = split
    made = m.op.Split(split.inputs[0], m.ints(sizes), axis=axis, outputs=len(sizes))
    return dict(zip(present(parts), made))


@rewrite(op.Split(var("x"), ..., name="split"))
def only_part(m: Match, x: Value) -> tuple[Value | None, ...]:
    """Split(x)[i] = Slice(x), if no other part is read."""
    used = [v for v in m.split.results if v.is_used]
    if len(used) != 1 or len(m.split.outputs) < 2:
        m.skip()
    found = taken(m.split)
    axis, bounds = (found.axis, found.bounds(used[0])) if found is not None else (0, None)
    start, end = m.known(bounds, "a length is unknown")
    part = m.op.Slice(x, m.ints([start]), m.ints([end]), m.ints([axis]))
    return tuple(part if v is used[0] else None for v in m.split.outputs)


@register
class SlicesToSplit(RewritePass):
    """x[:a], x[a:b], x[b:] = Split(x); a Split with a single used part is a Slice; Split of Split = Split; adjacent
    parts in one Concat are one part.

    Applies when: the axis size is known, and slices with constant bounds and step 1 (or lists of consecutive indices)
    cover the axis without gaps and overlaps. Rotary embeddings halve each head like this; scikit-learn takes all
    columns.
    """

    # After: known slices of shapes are removed, and slices of slices read the original tensor.
    info = PassInfo(
        "slices-to-split", opt_level=1, after=("shape-sources", "merge-chains", "gather-axes"), ops=(*_CUTS, "Split")
    )
    rules = (split_of_slices, split_of_split, concat_of_parts, only_part)


@rewrite(op.Split(var("x"), ..., name="split"))
def picks_of_parts(m: Match, x: Value) -> dict[Value, Value]:
    """Squeeze(Split(x)[i]) = Gather(x, i), along the split axis; Reshape(Split(x)[i]) = Reshape(Gather(x, i))."""
    parts = [v for v in m.split.results if v.is_used]
    readers = [n for v in parts if (n := sole_reader(v, "Reshape", "Squeeze")) is not None and n.graph is m.graph]
    squeezes = [n for n in readers if n.op == "Squeeze"]
    if len(readers) < max(2, len(parts)) or len(squeezes) < max(1, len(readers) - 1):
        m.skip()
    found, rank = taken(m.split), m.rank(x) or 1
    spans, axis = (found.spans, found.axis) if found is not None else ({}, 0)
    m.require(spans.keys() >= {*parts}, "the parts in front are of unknown sizes")
    axes = [[a % rank for a in listed_axes(n) or ()] for n in squeezes]
    m.require(all(given == [axis] for given in axes), "another axis goes, or several")
    m.require(all(n in squeezes or _reshapes_one(n, axis) for n in readers), "a Reshape copies a dim, or of several")
    made = dict[Value, Value]()
    for part, reader in zip(parts, readers):
        pick = m.op.Gather(x, m.ints(spans[part].start), axis=axis)
        target = array_of(reader.input(1))
        made[reader.output] = pick if reader in squeezes else m.op.Reshape(pick, m.const(target), like=reader)
    return made


def _reshapes_one(reshape: Node, axis: int) -> bool:
    """Whether a Reshape of one element along the axis copies no dim, so that the axis does not matter."""
    target = array_of(reshape.input(1))
    return target is not None and bool(target.all()) and types.length_of(reshape.inputs[0], axis) == 1


@rewrite(op.Unsqueeze(op.Gather(var("x"), var("index"), name="pick"), ..., name="reader"))
def picks_of_unsqueezed(m: Match, x: Value, index: Value) -> dict[Value, Value]:
    """Unsqueeze(Gather(x, i)) = Gather(Unsqueeze(x), i), for several i."""
    own = None if x.constant else _pick_of(m.reader)
    if own is None:
        m.skip()
    readers = [r for n in x.users if n.op == "Gather" and (r := sole_reader(n.output, "Unsqueeze")) is not None]
    picks = [(r.output, p) for r in readers if r.graph is m.graph and (p := _pick_of(r)) is not None]
    alike = {v: p.place for v, p in picks if p[1:] == own[1:]}
    if len(alike) < 2:
        m.skip()
    rank = len(m.dims(x)) + len(own.axes)
    axis = [*(i for i in range(rank - 1) if i not in own.axes), rank - 1][own.axis]
    m.put_behind(x)
    whole = m.op.Unsqueeze(x, m.ints([i + (i >= axis) for i in own.axes]))
    return {v: m.op.Gather(whole, m.ints(i), axis=axis) for v, i in alike.items()}


class _Pick(NamedTuple):
    """An index of an axis, and the axes that are added to the rest."""

    place: int
    axis: int
    axes: tuple[int, ...]


def _pick_of(reader: Node) -> _Pick | None:
    """Return the pick that an Unsqueeze alone reads, in its scope; None where both are a Gather of [i]."""
    gather, axes = own_producer(reader.inputs[0], reader, "Gather"), listed_axes(reader)
    found = taken(gather) if gather is not None and gather.graph is reader.graph else None
    if gather is None or found is None or not found.drops or not axes:
        return None
    rank = len(types.dims_of(gather.inputs[0])) - 1 + len(axes)
    places = tuple(sorted(a % rank for a in axes))
    return _Pick(found.spans[gather.output].start, found.axis, places) if places != (found.axis,) else None


@register
class AxesBeforeSplit(RewritePass):
    """Unsqueeze(Gather(x, i)) = Gather(Unsqueeze(x), i), for several i.

    Squeeze(p) for each part p, of size 1, of Split(x) = Gather(x, i), if the split axis is squeezed.

    Applies when: each used part has only such a reader; one part may have a Reshape that copies no dim. Unrolled
    recurrences pick inputs step by step, and unbind becomes picks. Axes added to or dropped from other parts are moved
    by axes-first.
    """

    # After: Slices have become a Split, and chained Unsqueezes a single one.
    info = PassInfo(
        "axes-before-split",
        opt_level=1,
        after=("slices-to-split", "merge-chains", "common-subexpressions"),
        ops=("Split", "Gather"),
    )
    rules = (picks_of_parts, picks_of_unsqueezed)


@rewrite(op.Reshape(var("x"), var("target"), name="reshape"))
def split_of_stack(m: Match, x: Value, target: Value) -> dict[Value, Value]:
    """Transpose(Reshape(x, [.., n, m, ..]))[i] = Split(Transpose(Reshape(x, [.., n m, ..])))[i], along n."""
    rank, turn = m.rank(m.reshape.output) or 0, sole_reader(m.reshape.output, "Transpose")
    if turn is not None and (turn.graph is not m.graph or turn.has_references):
        turn = None
    order = range(rank) if turn is None else known_order(turn, rank)
    found = _unstacked(m.reshape.output if turn is None else turn.output)
    if found is None or order is None:
        m.skip()
    (axis, n, picks), dims = found, m.dims(m.reshape.output)
    place = order[axis]
    width = m.known(types.length_of(m.reshape.output, place + 1), "no axis of known length follows in the Reshape")
    sizes = constant_target(m.dims(x), (*dims[:place], n * width, *dims[place + 2 :]))
    sizes = m.known(sizes, "more than one unknown dim, or none")
    whole = m.op.Reshape(x, m.ints(sizes), like=m.reshape, allowzero=None)
    perm = [i - (i > place) for i in order if i != place]
    if turn is not None and perm != sorted(perm):
        whole = m.op.Transpose(whole, like=turn, perm=perm)
    parts = m.op.Split(whole, m.ints([width] * n), axis=perm.index(place), outputs=n)
    return {gather.output: parts[i] for i, gather in picks.items()}


def _unstacked(stack: Value) -> tuple[int, int, dict[int, Node]] | None:
    """Return (axis, its length, {index: Gather}) if all readers are Gathers of different single indices of an axis, at
    least two; else None."""
    if stack.is_output or not 1 < len(stack.users) <= _MAX_STACKED:
        return None
    readers = [u for u in stack.users if u.op == "Gather" and u.graph is stack.graph and u.inputs[0] is stack]
    found = {u: t for u in readers if (t := taken(u)) is not None and t.drops}
    axes = {(t.axis, t.size) for t in found.values()}
    picks = {t.spans[u.output].start: u for u, t in found.items()}
    if len(axes) > 1 or len(picks) < len(stack.users):  # equal Gathers may be kept apart as outputs
        return None
    axis, size = axes.pop()
    return (axis, size, picks) if size is not None and size <= _MAX_STACKED else None


@register
class StacksToSplit(RewritePass):
    """Transpose(Reshape(x, [.., n, m, ..]))[i] = Split(Transpose(Reshape(x, [.., n m, ..])))[i], along n.

    Applies when: Reshape and Transpose have no other readers, each reader is a Gather of a single index of the axis,
    and n and m are known. Queries, keys and values in a single product are taken apart like this.
    """

    # After: a Gather of a single element is a Squeeze, and parts that are squeezed are picked by Gathers.
    info = PassInfo("stacks-to-split", opt_level=1, after=("axes-before-split", "index-chains"), ops=("Reshape",))
    rules = (split_of_stack,)
