"""Consecutive operators that move or pick elements, composed."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.graph import Value
from onnxopt.graph.node import Node, own_producer, present, producer, sole_reader
from onnxopt.operators import CUTTING, MULTIDIRECTIONAL, REDUCTIONS, SAME_ORDER, broadcasts
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.element_types import FLOATS, INTEGERS, TYPES
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Match, const, either, one_of, op, rewrite, var
from onnxopt.rewriting.compositions import alone, composed
from onnxopt.rewriting.index_maps import constant_target
from onnxopt.rewriting.index_steps import MOVERS, PICKING, VIEWS, copies
from onnxopt.rewriting.rule import listed_axes, reduced_axes


@rewrite(one_of(*VIEWS)(one_of(*VIEWS)(var("x"), ..., name="inner", shared=True), ..., name="outer"))
def view_of_view(m: Match, x: Value) -> Value:
    """f(g(x)) = Transpose(Reshape(x, s), p), or less; f and g are Reshape, Flatten, Squeeze, Unsqueeze or Transpose."""
    return composed(m)


@rewrite(
    op.Squeeze(
        op.Reshape(var("x"), op.Concat(var("first"), ..., name="target", shared=True), name="reshape"), const("axes")
    )
)
def squeeze_of_computed(m: Match, x: Value, first: Value, axes: Array) -> Value:
    """Squeeze(Reshape(x, Concat(s, 1)), last) = Reshape(x, s), for constant ones in a computed target."""
    copied, rank = copies(m, m.target.output), types.length_of(m.target.output, 0) or 0
    known = copied is not None and rank and axes.size
    m.require(known, "no axes, or a target of unknown length")
    gone = sorted({int(i) % rank for i in axes.reshape(-1)})
    m.require(max(copied or (), default=0) <= gone[0], "a dim that is copied stands behind")
    parts = _without_ones(m, gone)
    last = parts[0] if parts else m.ints([])
    return m.op.Reshape(x, m.op.Concat(*parts, axis=0) if len(parts) > 1 else last, like=m.reshape)


@rewrite(
    op.Reshape(
        op.Reshape(var("x"), op.Concat(var("lead"), const("behind"), name="target", shared=True), name="inner"),
        const("sizes"),
        name="outer",
    )
)
def reshape_of_listed(m: Match, x: Value, lead: Value, behind: Array, sizes: Array) -> Value:
    """Reshape(Reshape(x, Concat(s, c)), [0, …, n]) = Reshape(x, Concat(s, n)), where all sizes in s are copied."""
    count = m.known(types.length_of(lead, 0), "an unknown number of sizes")
    m.require(not sizes[:count].any() and not m.outer.attr("allowzero", 0), "not all sizes are copied")
    m.require(len(sizes) >= count and (sizes[count:] > 0).all() and (behind > 0).all(), "sizes behind are computed")
    m.require(sizes[count:].prod() == behind.prod(), "not as many elements behind")
    return m.op.Reshape(x, m.op.Concat(lead, m.ints(sizes[count:]), like=m.target), like=m.inner)


def _without_ones(m: Match, gone: list[int]) -> list[Value]:
    """Return the parts of a target without the elements at `gone`; declines unless all are constant ones."""
    parts, place = list[Value](), 0
    for part in present(m.target.inputs):
        size = types.length_of(part, 0) or 0
        m.require(part.constant or place + size <= gone[0], "what is computed stands behind, and may copy a dim")
        here = [i - place for i in gone if i - place in range(size)]
        m.require(not here or (part.constant and (part.array[here] == 1).all()), "what goes is computed")
        if len(here) < size:
            parts.append(m.const(np.delete(part.array, here), like=part) if here else part)
        place += size
    return parts


@register
class ReshapeChains(RewritePass):
    """Composes chains of Reshape, Flatten, Squeeze, Unsqueeze and Transpose to at most one Reshape and one
    Transpose.

    Applies when: inner results have no other readers, and a Reshape target with at most one unknown dim exists. Joined
    or split axes are adjacent in the input. Single-token decoders transpose [batch, 1, heads, width] like this;
    PyTorch's attention transposes [tokens, batch · heads, width], then splits batch and heads.
    Keeps: a Transpose between computing operators, where a Reshape saves nothing.
    Not done: a Reshape moved past a Transpose without saving a node; dims of 0.
    """

    info = PassInfo(
        "reshape-chains",
        opt_level=1,
        after=("elim-identity",),
        ops=("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"),
    )
    rules = (view_of_view, squeeze_of_computed, reshape_of_listed)


@rewrite(
    either(
        one_of(*PICKING)(one_of(*MOVERS)(var("x"), ..., name="inner", shared=True), ..., name="outer"),
        one_of(*VIEWS)(one_of(*PICKING)(var("x"), ..., name="inner", shared=True), ..., name="outer"),
    )
)
def pick_of_pick(m: Match, x: Value) -> Value:
    """f(g(x)) = Reshape(Transpose(Gather(Slice(Reshape(x, s), i:j), k), p), t), or less; f and g pick, or are views."""
    return composed(m)


@rewrite(one_of("Gather", "GatherND")(var("x"), const("index"), name="gather"))
def pick_of_all(m: Match, x: Value, index: Array) -> Value:
    """Gather(x, [0, 1, …, n - 1]) = x, or a Reshape; Gather(x, 0) = Squeeze(x); GatherND of one column = Gather."""
    dims, axis = m.shape(x) or (), int(m.gather.attr("axis", 0))
    m.require(
        m.gather.op == "GatherND" or dims[axis:][:1] == (index.size,),
        "the axis has more elements, or an unknown number",
    )
    return alone(m)


@register
class GatherAxes(RewritePass):
    """Composes chains of Gather, GatherND, Slice, Expand and Tile, with Reshapes and Transposes between them, to
    one Slice, one Gather for each axis, one Transpose, and one Reshape before and behind, each only if needed.

    Applies when: indices are constant, or computed along a single axis, and inner results have no other readers.
    PyTorch's exporters move an axis to the front, index it, and move it back: `x[:, i]`. `x[:, i, j]` becomes a Gather
    of both axes if adjacent, with constant indices. Further cases: rows and columns shifted between two Reshapes
    (Swin), and heads of keys and values repeated by Expand or Tile.
    """

    # After: identity picks are removed by then.
    info = PassInfo(
        "gather-axes",
        opt_level=1,
        after=("gather-grids", "merge-chains", "reshape-chains"),
        ops=("Expand", "Gather", "GatherND", "Slice", "Tile"),
    )
    rules = (pick_of_pick, pick_of_all)


@rewrite(op.Concat(var("first"), ..., name="outer", reads={"Concat"}))
def concat_of_concat(m: Match, first: Value) -> Value:
    """Concat(Concat(a, b), c) = Concat(a, b, c), along the same axis."""
    axis, result, given = m.outer.attr("axis"), m.outer.output, m.outer.inputs
    inputs = _joined(m.outer, axis, _FEW_PARTS)
    if inputs == given:
        inputs = _joined(m.outer, axis, _MOST_PARTS)
        reader = result.only_user
        if reader is not None and len(inputs) <= _MOST_PARTS - _FEW_PARTS and _joins_only(result, axis):
            if len(reader.inputs) + len(given) <= _MOST_PARTS:
                m.skip()  # the reader merges its parts
    if inputs == given:
        m.skip()
    return m.op.Concat(*inputs, like=m.outer)


def _joined(outer: Node, axis: int, most: int) -> list[Value | None]:
    """Return the inputs of the Concat with inner Concats replaced by their inputs, up to `most` inputs."""
    inputs: list[Value | None] = []
    stack, count = outer.inputs[::-1], len(outer.inputs)
    while stack:
        v = stack.pop()
        inner = producer(v, "Concat")
        if v is not None and inner is not None:
            if count + len(inner.inputs) - 1 <= most and _joins_only(v, axis):
                stack += inner.inputs[::-1]
                count += len(inner.inputs) - 1
                continue
        inputs.append(v)
    return inputs


_MOST_PARTS: Final = 1024  # of a Concat
_FEW_PARTS: Final = 64  # of an inner Concat, as each step writes the inputs again; the last, or a full one, takes all
_MOST_COPIES: Final = 64  # parts of a shared Concat: copies of copies double at each step


def _joins_only(v: Value, axis: int) -> bool:
    """Whether the Concat `v` is read only by Concats along its axis, so that it can be removed without many copies."""
    node, places = v.producer, sum(v.users.values())
    if node is None or (places > 1 and places * len(node.inputs) > _MOST_COPIES):
        return False
    joins = [node, *v.users]
    return not v.is_output and all(
        n.op == "Concat" and n.graph is v.graph and n.attr("axis") == axis and not n.has_references for n in joins
    )


@rewrite(op.Concat(var("first"), ..., name="concat", reads={"Split"}))
def concat_of_split(m: Match, first: Value) -> Value:
    """Concat(a, Split(x), b) = Concat(a, x, b): all parts, in order and along the same axis."""
    given, inputs, i = m.concat.inputs, list[Value | None](), 0
    while i < len(given):
        split = _split_of(m, given[i])
        if split is not None and given[i : i + len(split.outputs)] == split.outputs:
            inputs.append(split.inputs[0])
            i += len(split.outputs)
        else:
            inputs.append(given[i])
            i += 1
    if len(inputs) == len(given):
        m.skip()
    return m.op.Concat(*inputs, like=m.concat)


def _split_of(m: Match, part: Value | None) -> Node | None:
    """Return the Split along the Concat's axis whose first part this is, or None."""
    split = producer(part, "Split")
    if part is None or split is None or part.index:
        return None
    a, b, rank = split.attr("axis"), m.concat.attr("axis"), m.rank(part)
    return split if a == b or (rank is not None and a % rank == b % rank) else None


@rewrite(op.Concat(var("first"), ..., name="concat", reads={"Unsqueeze"}))
def stack(m: Match, first: Value) -> Value:
    """Concat(Unsqueeze(a, k), Unsqueeze(b, k), …; k) = Reshape(Concat(a, b, …; k)), axis k as two."""
    rank = m.rank(first)
    axis = int(m.concat.attr("axis")) % rank if rank else 0
    if not rank or axis == rank - 1:  # elements of a and b would interleave
        m.skip()
    parts = _stacked(m, rank, axis)
    is_cut = any(user.op in CUTTING for user in m.concat.output.users)
    m.require(not is_cut, "it is cut, and what cuts it may read what was joined")
    dims = m.dims(parts[0])
    m.require(None not in dims and all(m.shape(v) == dims for v in parts), "not provably the same shape")
    size = dims[axis]
    joined = (*dims[:axis], size * len(parts) if isinstance(size, int) else None, *dims[axis + 1 :])
    target = constant_target(joined, (*dims[:axis], len(parts), *dims[axis:]))
    m.require(target is not None and m.opset >= 5, "more than one unknown dim")
    return m.op.Reshape(m.op.Concat(*parts, like=m.concat, axis=axis), m.ints(target))


def _stacked(m: Match, rank: int, axis: int) -> list[Value]:
    """Return the joined values without the axis; declines unless several Unsqueezes become unused."""
    given = present(m.concat.inputs)
    parts = [_unsqueezed(v, rank, axis) or _squeezed(m, v, axis) for v in given]
    gone = {n for v in given if (n := own_producer(v, m.concat, "Unsqueeze")) is not None}
    merges = sole_reader(m.concat.output, "Reshape") is not None
    m.require(len(gone) + merges > 1, "others read what is unsqueezed")
    return parts


def _unsqueezed(v: Value | None, rank: int, axis: int) -> Value | None:
    """Return x if the value, of this rank, is Unsqueeze(x) along the axis; else None."""
    node = producer(v, "Unsqueeze")
    return node.inputs[0] if node is not None and [a % rank for a in listed_axes(node) or ()] == [axis] else None


def _squeezed(m: Match, v: Value, axis: int) -> Value:
    """Return a constant without the axis, of size 1; declines for others."""
    m.require(v.constant and v.constant_type()[1][axis] == 1, "a part is not unsqueezed")
    return m.const(v.array.squeeze(axis), like=v)


_ARG: Final = ("ArgMax", "ArgMin")
_REDUCE = one_of(*_ARG, *REDUCTIONS)(var("x"), ..., name="reduce")


@rewrite(one_of(*SAME_ORDER)(_REDUCE, ..., name="outer"))
def reduce_with_ones(m: Match, x: Value) -> Value:
    """Unsqueeze(Reduce(x, axes), axes) = Reduce(x, axes) with keepdims=1; Squeeze likewise with keepdims=0.

    Also for a Reshape or Flatten with the same result.
    """
    dims, reduce = m.dims(x), m.reduce
    m.require(dims, "the rank is unknown")
    rank, kept = len(dims), not reduce.keeps_dims
    axes = [int(reduce.attr("axis")) % rank] if reduce.op in _ARG else reduced_axes(m, reduce, rank)
    if m.outer.op in ("Squeeze", "Unsqueeze"):
        given = listed_axes(m.outer)
        m.require((m.outer.op == "Unsqueeze") == kept and given is not None, "the dims are so already, or computed")
        m.require(axes == sorted(i % rank for i in given or ()), "other axes")
    else:
        made = tuple(1 if i in axes else d for i, d in enumerate(dims) if kept or i not in axes)
        m.require(None not in made and m.shape(m.outer.output) == made, "not provably the dims that are there then")
    return m.op[reduce.op](*reduce.inputs, like=reduce, keepdims=int(kept))


@rewrite(one_of(*sorted(MULTIDIRECTIONAL))(var("first"), ..., name="node", reads={"Unsqueeze"}))
def leading_axes(m: Match, first: Value) -> Value:
    """f(Unsqueeze(x), y) = f(x, y), where the new axes are the first ones, and y has as many axes."""
    v = next(filter(_begins_with_ones, present(m.node.inputs)), None)
    if v is None or v.producer is None:
        m.skip()
    m.require(v.feeds_only(partial(_adds_axes, v)), "a reader needs the axes")
    x = v.producer.inputs[0]
    return m.op[m.node.op](*(x if w is v else w for w in m.node.inputs), like=m.node)


def _begins_with_ones(v: Value) -> bool:
    """Whether an Unsqueeze put axes in front of all others of `v`."""
    node, rank = producer(v, "Unsqueeze"), types.rank(v) or 0
    axes = listed_axes(node) if node is not None else None
    return bool(rank and axes) and sorted(a % rank for a in axes or ()) == [*range(len(axes or ()))]


def _adds_axes(v: Value, user: Node) -> bool:
    """Whether a reader of `v` broadcasts its operands, and another one has as many axes as `v`."""
    ranks = (types.rank(w) or 0 for w in present(user.inputs) if w is not v)
    opset = user.graph.opset() if user.graph is not None else 0
    return user.op in MULTIDIRECTIONAL and broadcasts(user.op, opset) and max(ranks, default=0) >= (types.rank(v) or 1)


# Types whose every value the other type represents.
_EXACT_IN: Final = {
    t.code: {to.code for to in TYPES if to.is_arithmetic and to.holds(t)}
    for t in TYPES
    if t.is_arithmetic or t.kind == "b"
}


@rewrite(op.Cast(op.Cast(var("x"), name="inner"), name="outer"))
def cast_of_cast(m: Match, x: Value) -> Value:
    """Cast(Cast(x, A), B) = Cast(x, B), where A holds every value of x's type."""
    kind, middle, last = m.dtype(x), m.inner.attr("to"), m.outer.attr("to")
    m.require(middle in _EXACT_IN.get(kind, ()), "the first Cast may lose something")
    m.require(
        last in FLOATS or middle not in FLOATS or last in {kind, *_EXACT_IN[kind]},
        "what an integer does not hold becomes anything",
    )
    m.require(last in FLOATS | INTEGERS | {TensorProto.BOOL}, "not a number")
    return m.op.Cast(x, like=m.outer)


@register
class MergeChains(RewritePass):
    """Merges two steps: Concat of Concat, of Split, of Unsqueezes; Unsqueeze, Squeeze, Reshape of Reduce; Cast of a
    lossless Cast; an Unsqueeze of leading axes, which a broadcast operand of this rank adds.

    Applies when: axes and targets are constant, and inner values have no other readers.
    """

    info = PassInfo("merge-chains", opt_level=1, ops=("Cast", "Concat", "Flatten", "Reshape", "Squeeze", "Unsqueeze"))
    rules = (concat_of_concat, concat_of_split, stack, reduce_with_ones, leading_axes, cast_of_cast)
