"""Elements that are picked one by one are picked together."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.kernels import evaluate
from onnxopt.analysis.shapes.sizes import listed_by, order_of
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.operators import PICKS
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.protos import Array
from onnxopt.rewriting import Match, const, either, one_of, op, rewrite, var
from onnxopt.rewriting.axis_runs import constant_target
from onnxopt.rewriting.forms import operands

_PICKS: Final = 1 << 12  # indices that are stored
_STEPS: Final = 8
_LONG: Final = 64  # elements of a part
_ENDS: Final = (1 << 31) - 1  # the end of a Slice that goes all the way


@rewrite(op.Unsqueeze(op.Gather(var("x"), const("index"), name="gather", shared=True), const("axes")))
def unsqueeze_of_gather(m: Match, x: Value, index: Array, axes: Array) -> Value:
    """Unsqueeze(Gather(x, i, axis), axis) = Gather(x, [i], axis)."""
    rank, axis = m.rank(x), int(m.gather.attr("axis"))
    # One element is picked again sooner than it is told who else reads it; more are copied only once.
    m.require(
        rank == 1 or m.gather.output.only_user is m.anchor, "what is gathered is used elsewhere, and may be large"
    )
    m.require(index.ndim == 0 and axes.size == 1, "more than one element or axis")
    place = int(axes.reshape(-1)[0])
    m.require(rank is not None or min(place, axis) >= 0, "negative axes of an unknown rank")
    n = rank or max(place, axis) + 1
    m.require(place % n == axis % n, "another axis")
    return m.op.Gather(x, m.const(index.reshape(1)), like=m.gather)


@rewrite(
    op.Squeeze(op.Slice(var("x"), const("start"), const("end"), const("axis"), const("step").opt()), const("axes"))
)
def squeeze_of_slice(
    m: Match, x: Value, start: Array, end: Array, axis: Array, axes: Array, step: Array | None = None
) -> Value:
    """Squeeze(Slice(x, i, i + 1, axis), axis) = Gather(x, i, axis)."""
    m.require(start.size == axes.size == axis.size == 1 and (step is None or step.item() == 1), "more than one element")
    rank, place, first, last = m.rank(x), int(axis.item()), int(start.item()), int(end.item())
    same = place == int(axes.item()) or (rank and place % rank == int(axes.item()) % rank)
    m.require(same or rank == 1, "another axis")
    m.require(last == first + 1 if first != -1 else last >= _ENDS, "more than one element")
    return m.op.Gather(x, m.ints(first), axis=place)


@rewrite(op.Gather(op.Transpose(var("x"), name="turned", shared=True), var("index"), name="gather"))
def gather_of_transpose(m: Match, x: Value, index: Value) -> Value:
    """Gather(Transpose(x, p), i, a) = Gather(x, i, p[a]) of one index, where the other axes stay in their order."""
    rank = m.rank(x)
    m.require(m.rank(index) == 0 and rank is not None, "more than one index, or an unknown rank")
    perm = list(order_of(m.turned, rank or 0))
    m.require(sorted(perm) == list(range(rank or 0)), "no order of the axes that there are")
    axis = perm.pop(int(m.gather.attr("axis")))
    m.require(perm == sorted(perm), "the other axes change places")
    return m.op.Gather(x, index, axis=axis)


@rewrite(
    either(
        op.Slice(
            op.Shape(var("x"), name="shape_node"),
            const("start"),
            const("end"),
            const("axis").opt(),
            const("step").opt(),
        ),
        op.Gather(op.Shape(var("x"), name="shape_node"), const("indices")),
    )
)
def part_of_shape(
    m: Match,
    x: Value,
    start: Array | None = None,
    end: Array | None = None,
    axis: Array | None = None,
    step: Array | None = None,
    indices: Array | None = None,
) -> Value:
    """Shape(x)[i:j] = Gather(Shape(x), [i, …, j - 1]) = Shape(x, i to j), if nobody else reads the Shape."""
    rank = m.rank(x)
    m.require(m.opset >= 15 and rank is not None, "Shape takes all dims before opset 15, or their number is unknown")
    m.require(not any(map(_joins_computed, m.anchor.output.users)), "joined with others, which one Shape may list")
    listed = np.arange(rank or 0)[listed_by(m.shape_node)]
    if indices is None and start is not None and end is not None:
        m.require(start.size == end.size == 1 and (step is None or step.item() == 1), "more than one axis, or steps")
        taken = listed[slice(start.item(), end.item())]
    else:
        m.require(indices is not None and indices.ndim == 1, "a number, and no list")
        assert indices is not None
        m.require(((-listed.size <= indices) & (indices < listed.size)).all(), "a dim that is not there")
        taken = listed[indices]
    m.require(taken.size and (taken == np.arange(taken[0], taken[0] + taken.size)).all(), "not one after the other")
    return m.op.Shape(x, start=int(taken[0]), end=int(taken[-1]) + 1)


def _joins_computed(node: Node) -> bool:
    return node.op == "Concat" and sum(v is not None and not v.constant for v in node.inputs) > 1


@rewrite(op.Concat(var("first"), ..., name="concat", reads={"Gather"}))
def concat_of_picks(m: Match, first: Value) -> Value:
    """Concat(Gather(x, [i]), Gather(x, [j]), …) = Gather(x, [i, j, …]), along their axis."""
    rank = m.rank(first)
    if not rank:  # of no axes is what never runs
        m.skip()
    axis = int(m.concat.attr("axis")) % rank
    parts = _parts(m, axis, shared=True)
    if len(parts) > 1:  # more than one node takes its place
        parts = _parts(m, axis, shared=False)
    if len(parts) == len(m.concat.inputs):
        m.skip()
    inputs = [p if isinstance(p, Value) else m.op.Gather(p[0], m.ints(p[1]), axis=axis) for p in parts]
    return m.op.Concat(*inputs, like=m.concat) if len(inputs) > 1 else inputs[0]


def _parts(m: Match, axis: int, shared: bool) -> list[tuple[Value, list[int]] | Value]:
    """What is joined; of a tensor that is picked from again and again, all indices. `shared`: also where other Concats
    read what is picked."""
    parts: list[tuple[Value, list[int]] | Value] = []
    for v in m.concat.inputs:
        if v is None:
            m.skip()
        picked = _picked(m, v, axis, shared)
        last = parts[-1] if parts else None
        if picked is None:
            parts.append(v)
        elif isinstance(last, tuple) and last[0] is picked[0]:
            parts[-1] = last[0], last[1] + picked[1]
        else:
            parts.append(picked)
    return parts


def _picked(m: Match, v: Value, axis: int, shared: bool) -> tuple[Value, list[int]] | None:
    """What nobody else reads of a tensor whose length along the axis is known: the tensor, and the indices."""
    node = v.producer
    if node is None or node.op != "Gather" or node.has_references:
        return None
    if v.only_user is not m.concat and not (shared and v.feeds_only(lambda u: u.op == "Concat")):
        return None
    x, given = node.inputs[0], node.inputs[1]
    if x is None or given is None or x.constant or not given.constant or given.array.ndim != 1:
        return None
    dims = m.shape(x)
    size = dims[axis] if dims is not None and axis < len(dims) else None
    if dims is None or not isinstance(size, int) or node.attr("axis") % len(dims) != axis:
        return None
    indices = given.array
    if ((indices < -size) | (indices >= size)).any():
        return None
    return x, (indices % size).tolist()


@rewrite(op.Concat(var("first"), ..., name="concat", reads={"Shape"}))
def concat_of_dims(m: Match, first: Value) -> Value:
    """Concat(Shape(x, i to j), Shape(x, j to k), …) = Shape(x, i to k), …, where nobody else reads these."""
    parts: list[tuple[Value, int, int] | Value] = []
    for v in m.concat.inputs:
        if v is None:
            m.skip()
        listed = _listed(m, v)
        last = parts[-1] if parts else None
        if listed is not None and isinstance(last, tuple) and last[0] is listed[0] and last[2] == listed[1]:
            parts[-1] = (*last[:2], listed[2])
        else:
            parts.append(v if listed is None else listed)
    if len(parts) == len(m.concat.inputs):
        m.skip()
    # What stands alone is read as it was.
    alone = {p: v for v in m.concat.inputs if v is not None and (p := _listed(m, v)) is not None}
    inputs = [p if isinstance(p, Value) else alone.get(p) or m.op.Shape(p[0], start=p[1], end=p[2]) for p in parts]
    return m.op.Concat(*inputs, like=m.concat) if len(inputs) > 1 else inputs[0]


def _listed(m: Match, v: Value) -> tuple[Value, int, int] | None:
    """Whose dims these are, from which to which, if only the Concat reads them, once."""
    node = v.producer
    x = node.inputs[0] if node is not None and node.op == "Shape" and not node.has_references else None
    rank = m.rank(x) if x is not None else None
    if node is None or x is None or rank is None or v.only_user is not m.concat or v.users[m.concat] > 1:
        return None
    start, stop, _ = listed_by(node).indices(rank)
    return (x, start, stop) if start < stop else None


@rewrite(op.Gather(var("x"), const("indices"), name="gather"))
def gather_of_all(m: Match, x: Value, indices: Array) -> Value:
    """Gather(x, [0, 1, …, n - 1]) = x where the axis has n elements."""
    n = indices.size
    counted = np.where(indices < 0, indices + n, indices)
    m.require(indices.ndim == 1 and (counted == np.arange(n)).all(), "not all, or not in order")
    dims, axis = m.shape(x) or (), int(m.gather.attr("axis"))
    there = -len(dims) <= axis < len(dims)  # else it is in a body that never runs
    m.require(there and dims[axis] == n, "the axis has more elements, or an unknown number")
    return x


@rewrite(
    op.Reshape(
        one_of("Expand", "Tile")(op.Unsqueeze(var("x"), const("axes"), shared=True), ..., name="copies"),
        ...,
        name="reshape",
    )
)
def repeat_of_elements(m: Match, x: Value, axes: Array) -> Value:
    """Reshape(Expand(Unsqueeze(x, k), n at k), axes k - 1 and k as one) = Gather(x, [0, 0, …, 1, 1, …]; k - 1), or
    Gather(x, [0, 1, …, 0, 1, …]; k), axes k and k + 1 as one: each element n times, or all of them n times."""
    dims, wide, made = m.shape(x), m.shape(m.copies.output), m.shape(m.reshape.output)
    m.require(dims is not None and wide is not None and made is not None, "the dims are unknown")
    assert dims is not None and wide is not None and made is not None
    m.require(axes.size == 1 and len(wide) == len(dims) + 1, "more than one axis is added")
    k = int(axes.reshape(-1)[0]) % len(wide)
    n = wide[k]
    m.require(isinstance(n, int) and n > 1, "the number of copies is unknown, or one")
    assert isinstance(n, int)
    m.require(None not in made and (*wide[:k], *wide[k + 1 :]) == dims, "other axes are repeated, too")
    lengths = {a: d for a, d in enumerate(dims) if a in (k - 1, k) and isinstance(d, int)}
    joined = [(a, d) for a, d in lengths.items() if (*dims[:a], d * n, *dims[a + 1 :]) == made]
    m.require(joined, "other axes become one, or one of unknown length")
    axis, size = joined[0]
    m.require(0 < size * n <= _PICKS, "an index for each would be large, or none")
    once = np.arange(size, dtype=np.int64)
    return m.op.Gather(x, m.const(np.repeat(once, n) if axis < k else np.tile(once, n)), axis=axis)


@rewrite(op.Reshape(var("moved"), const("target"), name="reshape"))
def concat_of_moved(m: Match, moved: Value, target: Array) -> Value:
    """Reshape(Transpose(Slice(Reshape(Concat(a, b, c), …), …), …), [-1]) = Concat(c, a, b), elements of vectors."""
    chain, joined = _moves(m.reshape)
    if len(chain) < 2 or joined is None or m.rank(joined.output) != 1:
        m.skip()  # one step is the Reshape of a vector to what it is
    places = _elements(m, joined)
    where = np.arange(len(places))
    for node in reversed(chain):
        given = [where, *(v.array if v is not None else None for v in node.inputs[1:])]
        found = evaluate(node, given, m.opset)
        m.require(found is not None, "a step that no runtime takes")
        assert found is not None
        where = found[0]
    m.require(where.ndim == 1 and where.size, "no vector is left")
    parts: list[Value] = []
    constants: list[Any] = []
    order, at = [places[i] for i in where.tolist()], 0
    while at < len(order):
        part, i = order[at]
        if part.constant:
            at += 1
            constants.append(part.array[i])
            if at < len(order) and order[at][0].constant:
                continue
            parts.append(m.const(np.array(constants, part.array.dtype)))
            constants = []
            continue
        size = _length(m, part)
        m.require(order[at : at + size] == [(part, j) for j in range(size)], "a part is torn")
        at += size
        parts.append(part)
    return m.op.Concat(*parts, axis=0) if len(parts) > 1 else parts[0]


@rewrite(op.Concat(var("first"), ..., name="concat", reads={"Neg", "Unsqueeze"}))
def concat_of_strided(m: Match, first: Value) -> Value:
    """Concat(Unsqueeze(-x[1::2]), Unsqueeze(x[0::2])) = Concat(-b, a), a and b the columns of x in pairs: a Split."""
    rank = m.rank(first)
    if rank is None or rank < 2:
        m.skip()
    parts = [_strided(v, m.concat, rank) for v in m.concat.inputs]
    found = [p for p in parts if p is not None]
    if len(found) < max(2, len(parts)):
        m.skip()
    x, axis, n, _, _ = found[0]
    if any(p[:3] != (x, axis, n) for p in found) or len({p[3] for p in found}) < len(found):
        m.skip()
    m.require(int(m.concat.attr("axis")) % rank == axis + 1, "joined along another axis")
    dims = m.shape(x)
    length = dims[axis] if dims is not None else None
    m.require(isinstance(length, int) and length % n == 0 and n <= _LONG, "no whole number of groups is known")
    assert dims is not None and isinstance(length, int)
    target = constant_target(dims, (*dims[:axis], length // n, n, *dims[axis + 1 :]))
    m.require(target is not None and m.opset >= 5, "more than one unknown dim")
    groups = m.op.Reshape(x, m.ints(target))
    columns = m.op.Split(groups, m.ints([1] * n), axis=axis + 1, outputs=n)
    made = [m.op.Neg(columns[i]) if turned else columns[i] for _, _, _, i, turned in found]
    return m.op.Concat(*made, like=m.concat)


def _strided(v: Value | None, reader: Node, rank: int) -> tuple[Value, int, int, int, bool] | None:
    """(x, axis, n, i, is it turned) of Unsqueeze(x[i::n], axis + 1), or of its Neg, that only `reader` reads."""
    turned = False
    axes: int | None = None
    after = reader
    while v is not None and v.producer is not None and v.only_user is after and after.inputs.count(v) == 1:
        node = v.producer
        given = [a.array.reshape(-1).tolist() if a is not None and a.constant else None for a in operands(node)[1:]]
        if node.op == "Unsqueeze" and axes is None and len(given) == 1 and given[0] and len(given[0]) == 1:
            axes = int(given[0][0]) % rank
        elif node.op == "Neg" and not turned:
            turned = True
        elif node.op == "Slice" and axes is not None and node.inputs[0] is not None:
            return _every(node, given, rank, axes, turned)
        else:
            return None
        v, after = node.inputs[0], node
    return None


def _every(
    node: Node, given: list[Any], rank: int, place: int, turned: bool
) -> tuple[Value, int, int, int, bool] | None:
    if len(given) != 4 or not all(g is not None and len(g) == 1 for g in given):
        return None
    (start,), (end,), (axis,), (step,) = given
    axis %= rank - 1
    x = node.inputs[0]
    dims = types.shape(x) if x is not None else None
    length = dims[axis] if dims is not None else None
    if x is None or x.constant or not isinstance(length, int) or not 0 <= start < step or axis + 1 != place:
        return None
    return (x, axis, step, start, turned) if end > length - step + start else None


def _moves(node: Node | None) -> tuple[list[Node], Node | None]:
    """What moves the elements of a vector about, the last first, and the Concat that makes the vector."""
    chain: list[Node] = []
    while node is not None and node.op in PICKS and len(node.outputs) == 1 and len(chain) < _STEPS:
        x = node.inputs[0]
        fixed = all(v is None or v.constant for v in node.inputs[1:]) and not node.has_references
        if x is None or not fixed or (chain and node.output.only_user is not chain[-1]):
            return [], None
        chain.append(node)
        node = x.producer
    apart = node is None or node.op != "Concat" or node.output.only_user is not (chain[-1] if chain else None)
    return chain, None if apart else node


def _elements(m: Match, concat: Node) -> list[tuple[Value, int]]:
    """Each element of a vector: of which part, and which of it."""
    parts = [v for v in concat.inputs if v is not None]
    return [(v, i) for v in parts for i in range(_length(m, v))]


def _length(m: Match, v: Value) -> int:
    dims = m.shape(v)
    length = dims[0] if dims else None
    m.require(isinstance(length, int) and length <= _LONG, "a part of unknown length, or a long one")
    assert isinstance(length, int)
    return length


@register
class IndexChains(RewritePass):
    """Concat(Gather(x, [i]), Gather(x, [j])) = Gather(x, [i, j]) = x where these are all; Unsqueeze(Gather(x, i)) =
    Gather(x, [i]); Squeeze(Slice(x, i, i + 1)) = Gather(x, i), also of what is transposed; dims of one tensor, one
    after the other, are one Shape. Elements that are copied along an axis of their own, which then becomes one with
    theirs, are one Gather; elements of vectors that are joined and moved about are joined in that order at once;
    columns that are sliced by steps and joined again are a Split.

    Applies when: the indices are constant, the length of the axis is known, and nobody else reads what is gathered.
    Targets of Reshape are written like that: one dim of a Shape after the other. Heads of keys and values that several
    queries share are repeated like that: runtimes copy them twice then. PyTorch lists the widths of a border from the
    last axis on, and turns them around.
    """

    info = PassInfo(
        "index-chains",
        opt_level=1,
        after=("merge-chains",),
        ops=("Concat", "Gather", "Reshape", "Slice", "Squeeze", "Unsqueeze"),
    )
    rules = (
        unsqueeze_of_gather,
        squeeze_of_slice,
        gather_of_transpose,
        part_of_shape,
        concat_of_picks,
        concat_of_dims,
        gather_of_all,
        repeat_of_elements,
        concat_of_moved,
        concat_of_strided,
    )
