"""Two steps of the same kind become one."""

from __future__ import annotations

from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.element_types import FLOATS, INTEGERS, TYPES
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.operators import REDUCTIONS
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.protos import Array
from onnxopt.rewriting import Match, const, keeps_shape, one_of, only_read_by, op, rewrite, var
from onnxopt.rewriting.forms import listed_axes
from onnxopt.rewriting.guards import reduced_axes


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
                m.skip()  # who reads it takes its parts
    if inputs == given:
        m.skip()
    return m.op.Concat(*inputs, like=m.outer)


def _joined(outer: Node, axis: int, most: int) -> list[Value | None]:
    """What is joined, and in place of other Concats what these join, until these are so many."""
    inputs: list[Value | None] = []
    stack, count = outer.inputs[::-1], len(outer.inputs)
    while stack:
        v = stack.pop()
        inner = v.producer if v is not None else None
        if v is not None and inner is not None and inner.op == "Concat":
            if count + len(inner.inputs) - 1 <= most and _joins_only(v, axis):
                stack += inner.inputs[::-1]
                count += len(inner.inputs) - 1
                continue
        inputs.append(v)
    return inputs


_MOST_PARTS: Final = 1024  # of one Concat,
_FEW_PARTS: Final = 64  # and of one in a chain, as each step writes them again: the last, or a full one, takes all
_MOST_COPIES: Final = 64  # of the parts of one Concat that several read: copies of copies double at each step


def _joins_only(v: Value, axis: int) -> bool:
    """Do only Concats along its own axis read the Concat `v`, which goes then, without too many copies of its parts?"""
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
    """The Split, along the axis of the Concat, whose first part this is."""
    split = part.producer if part is not None and part.index == 0 else None
    if part is None or split is None or split.op != "Split":
        return None
    a, b, rank = split.attr("axis"), m.concat.attr("axis"), m.rank(part)
    return split if a == b or (rank is not None and a % rank == b % rank) else None


@rewrite(op.Unsqueeze(op.Unsqueeze(var("x"), const("a"), name="inner", shared=True), const("b"), name="outer"))
def unsqueeze_of_unsqueeze(m: Match, x: Value, a: Array, b: Array) -> Value:
    """Unsqueeze(Unsqueeze(x, a), b) = Unsqueeze(x, a and b), whoever else reads the inner one."""
    rank = m.rank(x)
    m.require(rank is not None or ((a >= 0).all() and (b >= 0).all()), "negative axes of an unknown rank")
    middle, last = (rank or 0) + a.size, (rank or 0) + a.size + b.size
    inner = sorted(int(i) % middle if i < 0 else int(i) for i in a.reshape(-1))
    outer = sorted(int(i) % last if i < 0 else int(i) for i in b.reshape(-1))
    axes, before = list(outer), 0
    for i in inner:  # where the inner axes are once the outer ones are in
        while before < len(outer) and outer[before] <= i + before:
            before += 1
        axes.append(i + before)
    return m.op.Unsqueeze(x, m.ints(sorted(axes)), like=m.outer)


@rewrite(op.Squeeze(op.Squeeze(var("x"), const("a"), shared=True), const("b"), name="outer"))
def squeeze_of_squeeze(m: Match, x: Value, a: Array, b: Array) -> Value:
    """Squeeze(Squeeze(x, a), b) = Squeeze(x, a and b), whoever else reads the inner one."""
    rank = m.rank(x)
    m.require(a.size and b.size, "a list of no axes, which runtimes read as all")
    m.require(rank is not None or ((a >= 0).all() and (b >= 0).all()), "negative axes of an unknown rank")
    inner = sorted(int(i) + (rank or 0) * (i < 0) for i in a.reshape(-1))
    axes = list(inner)
    for j in b.reshape(-1):  # where the outer axes are as long as the inner ones are in
        place = int(j) + ((rank or 0) - a.size) * (j < 0)
        for i in inner:
            place += i <= place
        axes.append(place)
    return m.op.Squeeze(x, m.ints(sorted(axes)), like=m.outer)


@rewrite(op.Squeeze(op.Gather(var("x"), const("index"), name="gather"), const("axes"), name="squeeze"))
def squeeze_of_gather(m: Match, x: Value, index: Array, axes: Array) -> Value:
    """Squeeze(Gather(x, [i], axis), axis) = Gather(x, i, axis)."""
    rank, axis = m.rank(x), int(m.gather.attr("axis"))
    m.require(rank is not None, "the rank is unknown")
    m.require(index.shape == (1,) and axes.size == 1, "more than one element or axis")
    m.require(int(axes.reshape(-1)[0]) % (rank or 1) == axis % (rank or 1), "another axis")
    return m.op.Gather(x, m.const(index.reshape(())), like=m.gather)


@rewrite(op.Gather(var("x"), const("index"), name="gather"))
def gather_of_single(m: Match, x: Value, index: Array) -> Value:
    """Gather(x, 0, axis) = Squeeze(x, axis) where the axis has one element."""
    if index.ndim or int(index) not in (0, -1):
        m.skip()
    dims, axis = m.shape(x), int(m.gather.attr("axis"))
    known = dims is not None and -len(dims) <= axis < len(dims)
    m.require(known and (dims or ())[axis] == 1, "the axis has more elements, or an unknown number")
    m.require(not x.constant, "a constant, which folds")
    return m.op.Squeeze(x, m.ints([axis % len(dims or ())]))


def _without(m: Match, target: Array, axes: Array) -> Array:
    """A target of Reshape without `axes`, which are ones in it."""
    m.require(axes.size > 0 and target.ndim == 1 and target.size > 0, "no axes, or no target")
    dropped = {int(i) % target.size for i in axes.reshape(-1)}
    m.require(all(target[i] == 1 for i in dropped), "the axis is not a written one")
    m.require(not (target == 0).any(), "a zero copies the dim in its place")
    return np.array([t for i, t in enumerate(target.tolist()) if i not in dropped], np.int64)


@rewrite(op.Squeeze(op.Concat(var("first"), ..., name="concat"), const("axes"), name="squeeze"))
def squeeze_of_concat(m: Match, first: Value, axes: Array) -> Value:
    """Squeeze(Concat(Reshape(x, s), …), axes) = Concat(Reshape(x, s without the axes), …)."""
    rank, axis = m.rank(first), int(m.concat.attr("axis"))
    m.require(rank is not None, "the rank is unknown")
    axis, dropped = axis % (rank or 1), {int(i) % (rank or 1) for i in axes.reshape(-1)}
    m.require(axis not in dropped, "the axis is the one that is joined along")
    parts: list[Value] = []
    for v in m.concat.inputs:
        reshape = v.producer if v is not None and v.only_user is m.concat else None
        m.require(reshape is not None and reshape.op == "Reshape", "a part is no Reshape")
        assert v is not None and reshape is not None
        x, shape = [*reshape.inputs, None][:2]
        m.require(shape is not None and shape.constant and x is not None, "the target of a Reshape is computed")
        assert shape is not None and x is not None
        dims, target, allowzero = m.shape(x), shape.array.reshape(-1).tolist(), bool(reshape.attr("allowzero", 0))
        # What became a constant just now says more than what is known of the result.
        going = dims is not None and len(dims) == len(target) and keeps_shape(dims, target, allowzero)
        m.require(not (going or types.same_shape(x, v)), "a part is a Reshape that is going to go")
        parts.append(m.op.Reshape(x, m.const(_without(m, shape.array, axes)), like=reshape))
    return m.op.Concat(*parts, like=m.concat, axis=axis - sum(i < axis for i in dropped))


@rewrite(
    op.Unsqueeze(
        one_of("Add", "Mul")(var("x"), op.Unsqueeze(var("y"), const("inner")), name="node"),
        const("outer"),
    )
)
def unsqueeze_of_broadcast(m: Match, x: Value, y: Value, inner: Array, outer: Array) -> Value:
    """Unsqueeze(x + Unsqueeze(y, a), 0) = x + Unsqueeze(y, 0 and a): broadcasting raises the rank of x by itself."""
    left, right = m.rank(x), m.rank(y)
    m.require(left is not None and right is not None, "a rank is unknown")
    middle = (right or 0) + inner.size
    m.require(middle >= (left or 0), "the result has more axes than what is unsqueezed")
    m.require(outer.reshape(-1).tolist() in ([0], [-middle - 1]), "not in front")
    axes = [0, *(int(i) % middle + 1 for i in inner.reshape(-1))]
    wide = m.op.Unsqueeze(y, m.ints(axes))
    return m.op[m.node.op](x, wide, like=m.node)


@rewrite(op.Reshape(op.Concat(var("first"), ..., name="concat"), var("target"), name="reshape"))
def reshape_of_stack(m: Match, first: Value, target: Value) -> Value:
    """Reshape(Concat(Unsqueeze(a, k), Unsqueeze(b, k), …; k), axes k and k + 1 as one) = Concat(a, b, …; k)."""
    parts: list[Value] = []
    rank = m.rank(first)
    axis = int(m.concat.attr("axis")) % rank if rank else 0
    for v in m.concat.inputs:
        node = v.producer if v is not None else None
        if v is None or node is None or node.op != "Unsqueeze" or not rank or node.inputs[0] is None:
            m.skip()
        if [a % rank for a in listed_axes(node) or ()] != [axis]:
            m.skip()
        parts.append(node.inputs[0])
    dims, wanted = m.shape(parts[0]), m.shape(m.reshape.output)
    m.require(dims is not None and wanted is not None and None not in wanted, "the dims are unknown")
    assert dims is not None and wanted is not None
    m.require(axis < len(dims), "the new axis is the last one")
    size = dims[axis]
    m.require(isinstance(size, int), "the length of the axis is unknown")
    assert isinstance(size, int)
    joined = (*dims[:axis], size * len(parts), *dims[axis + 1 :])
    m.require(wanted == joined, "other axes become one")
    return m.op.Concat(*parts, axis=axis)


_ARG: Final = ("ArgMax", "ArgMin")
_REDUCE = one_of(*_ARG, *REDUCTIONS)(var("x"), ..., name="reduce")


@rewrite(op.Unsqueeze(_REDUCE, const("back")))
def unsqueeze_of_reduce(m: Match, x: Value, back: Array) -> Value:
    """Unsqueeze(Reduce(x, axes), axes) = Reduce(x, axes), dims kept."""
    axes, rank = _reduced(m, x, kept=False)
    m.require(axes == sorted(int(i) % rank for i in back.reshape(-1)), "other axes")
    return m.op[m.reduce.op](*m.reduce.inputs, like=m.reduce, keepdims=1)


@rewrite(op.Squeeze(_REDUCE, const("gone")))
def squeeze_of_reduce(m: Match, x: Value, gone: Array) -> Value:
    """Squeeze(Reduce(x, axes), axes) = Reduce(x, axes), dims dropped."""
    axes, rank = _reduced(m, x, kept=True)
    m.require(axes == sorted(int(i) % rank for i in gone.reshape(-1)), "other axes")
    return m.op[m.reduce.op](*m.reduce.inputs, like=m.reduce, keepdims=0)


@rewrite(op.Reshape(_REDUCE, var("target")))
def reshape_of_reduce(m: Match, x: Value, target: Value) -> Value:
    """Reshape(Reduce(x, axes), dims of x with ones at the axes) = Reduce(x, axes), dims kept."""
    axes, rank = _reduced(m, x, kept=False)
    dims = m.shape(x) or ()
    kept = tuple(1 if i in axes else dims[i] for i in range(rank))
    m.require(None not in kept and m.shape(m.anchor.output) == kept, "not provably the dims that were there")
    return m.op[m.reduce.op](*m.reduce.inputs, like=m.reduce, keepdims=1)


@rewrite(one_of("Flatten", "Reshape")(_REDUCE, ...))
def flat_reduce(m: Match, x: Value) -> Value:
    """Flatten(Reduce(x, axes)) = Reduce(x, axes), dims dropped, where no other dims become one; so is a Reshape."""
    axes, rank = _reduced(m, x, kept=True)
    dims = m.shape(x) or ()
    left = tuple(dims[i] for i in range(rank) if i not in axes)
    m.require(None not in left and m.shape(m.anchor.output) == left, "not provably the dims that are left")
    return m.op[m.reduce.op](*m.reduce.inputs, like=m.reduce, keepdims=0)


def _reduced(m: Match, x: Value, *, kept: bool) -> tuple[list[int], int]:
    """The axes that the Reduce takes, and the rank of x; declines where it keeps dims, or drops them, as it should."""
    rank, reduce = m.rank(x), m.reduce
    m.require(reduce.keeps_dims == kept, "the dims are dropped already" if kept else "the dims are kept already")
    m.require(rank, "the rank is unknown")
    if reduce.op in _ARG:
        return [int(reduce.attr("axis")) % (rank or 1)], rank or 1
    return reduced_axes(m, reduce, rank or 1), rank or 1


_FAR = np.iinfo(np.int64).max


@rewrite(
    op.Slice(
        op.Slice(var("x"), const("s1"), const("e1"), const("a1"), const("t1").opt(), name="inner", shared=True),
        const("s2"),
        const("e2"),
        const("a2"),
        const("t2").opt(),
        name="outer",
    )
)
def slice_of_slice(
    m: Match,
    x: Value,
    s1: Array,
    e1: Array,
    a1: Array,
    t1: Array | None,
    s2: Array,
    e2: Array,
    a2: Array,
    t2: Array | None,
) -> Value:
    """x[s1:e1][s2:e2] = x[s1 + s2 : min(e1, s1 + e2)] along one axis; along different axes, one Slice does both."""
    only_read_by(m, m.inner, "Slice")
    rank = m.rank(x)
    m.require(rank is not None or ((a1 >= 0).all() and (a2 >= 0).all()), "negative axes of an unknown rank")
    cuts: dict[int, tuple[int, int, int]] = {}
    for s, e, a, t in ((s1, e1, a1, t1), (s2, e2, a2, t2)):
        m.require(all(v is None or v.ndim == 1 for v in (s, e, a, t)), "the bounds are no vectors")
        steps = [1] * s.size if t is None else t.tolist()
        for start, end, axis, step in zip(s.tolist(), e.tolist(), a.tolist(), steps):
            axis = axis % rank if rank else axis
            if axis not in cuts:
                cuts[axis] = start, end, step
                continue
            first, last, stride = cuts[axis]
            m.require(stride == step == 1, "steps along the same axis")
            m.require(min(first, last, start, end) >= 0, "counts from the end along the same axis")
            cuts[axis] = min(first + start, _FAR), min(last, first + end), 1
    m.require(cuts, "both take everything")  # each goes by itself
    columns = zip(*((*cut, axis) for axis, cut in cuts.items()))
    starts, ends, steps, axes = (m.ints(c) for c in columns)
    stepping = any(step != 1 for _, _, step in cuts.values())
    return m.op.Slice(x, starts, ends, axes, steps if stepping else None, like=m.outer)


@rewrite(op.Gather(op.Gather(var("x"), const("i"), name="inner", shared=True), const("j"), name="outer"))
def gather_of_gather(m: Match, x: Value, i: Array, j: Array) -> Value:
    """Gather(Gather(x, i), j) = Gather(x, i[j]), along the same axis, whoever else reads the inner one."""
    rank = m.rank(x)
    m.require(i.ndim == 1, "the indices are not a list")
    a, b = int(m.inner.attr("axis")), int(m.outer.attr("axis"))
    m.require(a == b or (rank is not None and a % rank == b % rank), "another axis")
    m.require(((-i.size <= j) & (j < i.size)).all(), "an index is out of range")
    return m.op.Gather(x, m.const(i[j]), like=m.outer)


# Every value of the first type is one of the second.
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
    """Two steps that move data are one: Concat of Concat, of Split; Unsqueeze of Unsqueeze; Squeeze of Squeeze, Gather,
    Concat; Slice of Slice, Gather of Gather; Unsqueeze, Squeeze, Reshape of Reduce; Cast of a Cast that loses nothing.

    Applies when: axes and targets are constant, and nobody else reads the result in between.
    """

    info = PassInfo(
        "merge-chains",
        opt_level=1,
        ops=("Cast", "Concat", "Flatten", "Gather", "Reshape", "Slice", "Squeeze", "Unsqueeze"),
    )
    rules = (
        concat_of_concat,
        concat_of_split,
        unsqueeze_of_unsqueeze,
        squeeze_of_squeeze,
        squeeze_of_gather,
        gather_of_single,
        squeeze_of_concat,
        reshape_of_stack,
        unsqueeze_of_broadcast,
        unsqueeze_of_reduce,
        squeeze_of_reduce,
        reshape_of_reduce,
        flat_reduce,
        slice_of_slice,
        gather_of_gather,
        cast_of_cast,
    )
