"""Steps that leave the elements in their order are one Reshape, whatever they are called."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxopt.analysis.shapes.sizes import order_of
from onnxopt.graph import Node, Shape, Value
from onnxopt.operators import SAME_ORDER
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.protos import Array
from onnxopt.rewriting import Match, const, one_of, op, rewrite, var
from onnxopt.rewriting.axis_runs import Moved, after, before_transpose, behind_transpose, constant_target
from onnxopt.rewriting.forms import operands
from onnxopt.rewriting.parts import parts_beside


@rewrite(op.Transpose(var("x"), name="transpose"))
def transpose_of_ones(m: Match, x: Value) -> Value:
    """Transpose(x) = Reshape(x), or x, where all axes that move past each other, but one, have one element."""
    before, after = x.producer, m.transpose.output.only_user
    merges = before is not None and before.op in SAME_ORDER and x.only_user is m.transpose
    if after is not None and after.op in SAME_ORDER and after.inputs[0] is m.transpose.output:
        merges = True
    dims = m.shape(x)
    perm = order_of(m.transpose, len(dims or ()))
    m.require(dims is None or sorted(perm) == list(range(len(dims))), "no order of the axes that there are")
    stays = dims is not None and [dims[i] for i in perm] == list(dims)
    if not merges and not stays:
        m.skip()  # as it is one node either way, it stays what runtimes know how to merge into products
    m.require(dims is not None, "the rank is unknown")
    assert dims is not None
    moving = [i for i in perm if dims[i] != 1]
    m.require(moving == sorted(moving), "axes of more than one element change places")
    if stays:
        return x
    m.require(m.opset >= 5 and 0 not in dims, "there is no Reshape for it")
    # A 0 copies a dim that stays; what is unknown and moves is -1, which no empty dim may stand beside.
    target = [d if isinstance(d, int) else 0 if i == j else -1 for i, j in enumerate(perm) for d in (dims[j],)]
    m.require(-1 not in target or (target.count(-1) == 1 and 0 not in target), "more than one unknown dim")
    return m.op.Reshape(x, m.ints(target))


@rewrite(
    op.Reshape(
        one_of(*SAME_ORDER)(var("x"), ..., name="inner"),
        const("shape"),
        name="outer",
    )
)
def reshape_of_reshape(m: Match, x: Value, shape: Array) -> Value:
    """Reshape(Reshape(x, s), t) = Reshape(x, t), where t copies no dim of s that is not known."""
    m.require(shape.ndim == 1, "no list of dims")
    target = m.value("shape")
    if not m.outer.attr("allowzero", 0) and (shape == 0).any():
        written = _without_copies(m, shape)
        if written is None:
            return _reshaped_like(m, x, m.outer.output)
        target = m.const(written, hint=target.name)
    return m.op.Reshape(x, target, like=m.outer)


def _without_copies(m: Match, shape: Array) -> Array | None:
    """`shape` where a 0, which copies a dim of the inner result, is what the inner Reshape writes there; None where it
    writes nothing, or one dim too many is to be inferred."""
    given = m.inner.input(1) if m.inner.op == "Reshape" else None
    if given is None or not given.constant or given.array.ndim != 1:
        return None
    if m.inner.attr("allowzero", 0) and (given.array == 0).any():
        return None
    m.require((shape[given.array.size :] != 0).all(), "the outer shape copies dims that are not there")
    copied = [given.array[i] if t == 0 else t for i, t in enumerate(shape)]
    return np.array(copied, np.int64) if copied.count(-1) <= 1 else None


@rewrite(op.Unsqueeze(op.Reshape(var("x"), const("target"), name="reshape", shared=True), const("axes"), name="outer"))
def unsqueeze_of_reshape(m: Match, x: Value, target: Array, axes: Array) -> Value:
    """Unsqueeze(Reshape(x, target), axes) = Reshape(x, target with ones at the axes), whoever else reads the inner."""
    m.require(target.ndim == 1 and axes.size > 0, "no axes, or no target")
    rank = target.size + axes.size
    at = {int(i) % rank for i in axes.reshape(-1)}
    rest = iter(target.tolist())
    wide = [1 if i in at else next(rest) for i in range(rank)]
    if 0 in wide[min(at) :] and not m.reshape.attr("allowzero", 0):  # it copies the dim in its place
        return _reshaped_like(m, x, m.outer.output)
    return m.op.Reshape(x, m.ints(wide), like=m.reshape)


@rewrite(op.Squeeze(op.Reshape(var("x"), const("target"), name="reshape", shared=True), const("axes"), name="outer"))
def squeeze_of_reshape(m: Match, x: Value, target: Array, axes: Array) -> Value:
    """Squeeze(Reshape(x, target), axes) = Reshape(x, target without the axes), whoever else reads the inner one."""
    m.require(target.ndim == 1 and target.size > 0 and axes.size > 0, "no axes, or no target")
    gone = {int(i) % target.size for i in axes.reshape(-1)}
    if 0 in target[min(gone) :] or any(target[i] != 1 for i in gone):
        return _reshaped_like(m, x, m.outer.output)
    rest = [t for i, t in enumerate(target.tolist()) if i not in gone]
    return m.op.Reshape(x, m.ints(rest), like=m.reshape)


@rewrite(
    op.Squeeze(
        op.Reshape(var("x"), op.Concat(var("first"), ..., name="target", shared=True), name="reshape"), const("axes")
    )
)
def squeeze_of_computed(m: Match, x: Value, first: Value, axes: Array) -> Value:
    """Squeeze(Reshape(x, Concat(s, 1)), last) = Reshape(x, s): the axes that are ones in a computed target."""
    copied, length = _copies(m, m.target.output), m.shape(m.target.output)
    rank = length[0] if length else None
    m.require(copied is not None and isinstance(rank, int) and axes.size, "no axes, or a target of unknown length")
    assert copied is not None and isinstance(rank, int)
    gone = {int(i) % rank for i in axes.reshape(-1)}
    m.require(not any(i > min(gone) for i in copied), "a dim that is copied stands behind")
    parts, place = list[Value](), 0
    for part in m.target.inputs:
        assert part is not None
        size = (m.shape(part) or (0,))[0]
        assert isinstance(size, int)
        m.require(part.constant or place + size <= min(gone), "what is computed stands behind, and may copy a dim")
        here = [i - place for i in sorted(gone) if place <= i < place + size]
        m.require(not here or (part.constant and (part.array[here] == 1).all()), "what goes is computed")
        if len(here) < size:
            parts.append(m.const(np.delete(part.array, here), like=part) if here else part)
        place += size
    m.require(parts, "nothing is left")
    return m.op.Reshape(x, m.op.Concat(*parts, axis=0) if len(parts) > 1 else parts[0], like=m.reshape)


@rewrite(op.Flatten(one_of(*SAME_ORDER)(var("x"), ..., name="inner"), name="flatten"))
def flatten_of_reshape(m: Match, x: Value) -> Value:
    """Flatten(Reshape(x)) = Reshape(x, rows, columns)."""
    return _reshaped_like(m, x, m.flatten.output)


def _reshaped_like(m: Match, x: Value, v: Value) -> Value:
    """Reshape(x, dims of v), of which one may be unknown."""
    dims = m.shape(v)
    m.require(dims is not None and m.opset >= 5, "there is no Reshape for it")
    target = [d if isinstance(d, int) else -1 for d in dims or ()]
    m.require(target.count(-1) <= 1 and 0 not in target, "more than one unknown dim")
    return m.op.Reshape(x, m.ints(target))


@rewrite(op.Squeeze(op.Unsqueeze(var("x"), const("a"), name="inner", shared=True), const("b"), name="outer"))
def squeeze_of_some(m: Match, x: Value, a: Array, b: Array) -> Value:
    """Squeeze(Unsqueeze(x, a), b) = Unsqueeze(x, a without b), or Squeeze(x, b without a)."""
    rest = _left_over(m, x, a, b)
    m.require(rest is not None, "not provably some of the axes")
    kind, axes = rest or ("", [])
    return m.op[kind](x, m.ints(axes))


def _left_over(m: Match, x: Value, a: Array, b: Array) -> tuple[str, list[int]] | None:
    """What Squeeze at `b` leaves of Unsqueeze at `a`; None where that is nothing, or both."""
    rank = m.rank(x)
    if rank is None and ((a < 0).any() or (b < 0).any()):
        return None
    put, taken = ({int(i) + ((rank or 0) + a.size) * (i < 0) for i in axes.reshape(-1)} for axes in (a, b))
    if taken < put:
        return "Unsqueeze", [i - sum(j < i for j in taken) for i in sorted(put - taken)]
    if put < taken:
        return "Squeeze", [i - sum(j < i for j in put) for i in sorted(taken - put)]
    return None


_ONES = one_of("Squeeze", "Unsqueeze")


@rewrite(_ONES(_ONES(var("x"), const("a"), name="inner"), const("b"), name="outer"))
def ones_elsewhere(m: Match, x: Value, a: Array, b: Array) -> Value:
    """Unsqueeze(Squeeze(x, a), b) = Reshape(x, dims of the result), and so the other way round."""
    if m.inner.op == m.outer.op:
        m.skip()
    m.require(not _goes_alone(m, x, a), "the Squeeze takes back what is put there before")
    return _reshaped_like(m, x, m.outer.output)


def _goes_alone(m: Match, x: Value, axes: Array) -> bool:
    """Is one of the two what a Squeeze and the Unsqueeze before it leave? As a Reshape it would be hidden."""
    if m.inner.op == "Unsqueeze":
        return _left_over(m, x, axes, m.value("b").array) is not None
    before = x.producer
    if before is None or before.op != "Unsqueeze":
        return False
    given = operands(before)
    source, put = given[0], given[1] if len(given) > 1 else None
    if source is None or put is None or not put.constant:
        return False
    same = sorted(put.array.reshape(-1).tolist()) == sorted(axes.reshape(-1).tolist())
    return same or _left_over(m, source, put.array, axes) is not None


@rewrite(op.Reshape(op.Reshape(var("x"), var("inner"), shared=True), var("target"), name="outer"))
def reshape_there_and_back(m: Match, x: Value, inner: Value, target: Value) -> Value:
    """Reshape(Reshape(x, s), dims of x and ones) = Squeeze(x) or Unsqueeze(x), whatever computes the dims."""
    dims, wanted = m.shape(x), m.shape(m.outer.output)
    m.require(dims is not None and wanted is not None, "a rank is unknown")
    assert dims is not None and wanted is not None
    m.require(None not in dims and None not in wanted, "a dim is unknown")
    ones = _ones(dims, wanted)
    if ones is not None:
        return m.op.Squeeze(x, m.ints(ones)) if ones else x
    ones = _ones(wanted, dims)
    m.require(ones is not None, "not provably the dims that were there")
    return m.op.Unsqueeze(x, m.ints(ones))


def _ones(dims: Shape, rest: Shape) -> list[int] | None:
    """Axes of one element without which `dims` are `rest`; None where there are none such."""
    axes, left = [], list(rest)
    for i, d in enumerate(dims):
        if left and left[0] == d:
            left.pop(0)
        elif d == 1:
            axes.append(i)
        else:
            return None
    return None if left else axes


@rewrite(
    op.Transpose(
        op.Unsqueeze(op.Transpose(var("x"), name="first", shared=True), const("axes"), name="middle"), name="last"
    )
)
def transposes_around_unsqueeze(m: Match, x: Value, axes: Array) -> Value:
    """Transpose(Unsqueeze(Transpose(x, p), a), q) = Unsqueeze(x, b), transposed once if it has to be."""
    first, last = m.first.attr("perm"), m.last.attr("perm")
    rank = len(first or ()) or m.rank(x)
    m.require(rank is not None, "the rank is unknown")
    p = first or list(range(rank or 0))[::-1]
    n = len(p) + axes.size
    q = last or list(range(n))[::-1]
    new = {int(i) % n for i in axes.reshape(-1)}
    m.require(sorted(q) == list(range(n)) and len(new) == axes.size, "no order of the axes that there are")
    rest = iter(p)
    middle = [None if i in new else next(rest) for i in range(n)]  # the axes of x, None for those that are new
    order = [middle[i] for i in q]
    moved = [i for i in order if i is not None]
    in_order = moved == sorted(moved)
    m.require(in_order or m.first.output.only_user is m.middle, "the first Transpose is used elsewhere")
    turned = x if in_order else m.op.Transpose(x, perm=moved)
    places = [i for i, axis in enumerate(order) if axis is None]
    return m.op.Unsqueeze(turned, m.ints(places), like=m.middle)


@rewrite(
    one_of(*SAME_ORDER)(
        op.Transpose(one_of(*SAME_ORDER)(var("x"), ..., name="inner"), name="transpose"), ..., name="outer"
    )
)
def reshapes_around_transpose(m: Match, x: Value) -> Value:
    """Reshape(Transpose(Reshape(x, s), p), t) = Transpose(Reshape(x, u), q), or Reshape(Transpose(x, q), t)."""
    dims, between, wanted = (m.shape(v) for v in (x, m.inner.output, m.outer.output))
    m.require(dims is not None and between is not None and wanted is not None, "a rank is unknown")
    assert dims is not None and between is not None and wanted is not None
    target = m.inner.input(1) if m.inner.op == "Reshape" else None
    if target is not None and target.constant and x.only_user is m.inner and _is_reshape(x):
        m.skip()  # it takes the place of what is before it first, whose target may be computed
    perm = order_of(m.transpose, len(between))
    first = before_transpose(between, perm, wanted)
    last = behind_transpose(dims, between, perm)
    m.require(not _is_beside_alike(m, x), "what is beside it is turned alike, and may be turned together with it")
    given = m.outer.input(1) if m.outer.op == "Reshape" and not m.outer.attr("allowzero", 0) else None
    if given is not None and last is not None:
        before, now, copied = tuple(between[i] for i in perm), tuple(dims[i] for i in last), _copies(m, given)
        if copied is None or any(before[i : i + 1] != now[i : i + 1] for i in copied):
            given = None
    return _one_of_each(m, x, first, None if last is None else Moved(wanted, last), m.transpose, given)


@rewrite(op.Transpose(one_of(*SAME_ORDER)(op.Transpose(var("x"), name="first"), ..., name="middle"), name="last"))
def transposes_around_reshape(m: Match, x: Value) -> Value:
    """Transpose(Reshape(Transpose(x, p), t), q) = Transpose(Reshape(x, u), r), or Reshape(Transpose(x, r), u)."""
    dims, between, wanted = (m.shape(v) for v in (x, m.middle.output, m.last.output))
    m.require(dims is not None and between is not None and wanted is not None, "a rank is unknown")
    assert dims is not None and between is not None and wanted is not None
    p, q = order_of(m.first, len(dims)), order_of(m.last, len(between))
    first = before_transpose(dims, p, between)
    last = behind_transpose(tuple(dims[i] for i in p), between, q)
    return _one_of_each(
        m,
        x,
        None if first is None else Moved(first.dims, after(first.perm, q)),
        None if last is None else Moved(wanted, after(p, last)),
        m.first,
    )


def _copies(m: Match, target: Value) -> list[int] | None:
    """Where a target says 0, which copies a dim; None where that is not known. What is computed is what it says."""
    maker = target.producer
    found, place = list[int](), 0
    for part in maker.inputs if maker is not None and maker.op == "Concat" else [target]:
        length = m.shape(part) if part is not None else None
        if part is None or length is None or len(length) != 1 or not isinstance(length[0], int):
            return None
        found += [place + i for i in range(length[0]) if part.constant and not part.array[i]]
        place += length[0]
    return found


def _is_reshape(x: Value) -> bool:
    return x.producer is not None and x.producer.op in SAME_ORDER


def _is_beside_alike(m: Match, x: Value) -> bool:
    """Does another part, or product, of the same tensor take the same Reshape and Transpose and stay as it is then?
    Heads are turned together where they are turned alike (merge-parallel), which saves more."""
    for part in parts_beside(x):
        reshape = part.only_user if part is not x else None
        turned = reshape.output.only_user if reshape is not None and reshape.op == "Reshape" else None
        if turned is not None and turned.op == "Transpose" and turned.attr("perm") == m.transpose.attr("perm"):
            reader = turned.output.only_user
            if reader is None or reader.op not in SAME_ORDER:
                return True
    return False


def _one_of_each(
    m: Match, x: Value, first: Moved | None, last: Moved | None, like: Node, given: Value | None = None
) -> Value:
    """A Reshape, as `first` says, and a Transpose; or a Transpose and a Reshape, as `last` says, where only the target
    of this is constant, or computed already. In front it merges with the Reshape of rows, and a product reads the
    Transpose itself."""
    m.require(first or last, "what a Reshape joins or splits is not provably side by side where it could go")
    m.require(m.opset >= 5, "there is no Reshape for it")
    dims = m.shape(x) or ()
    target = constant_target(dims, first.dims) if first is not None else None
    if first is not None and target is not None:
        return _turned(m, m.op.Reshape(x, m.ints(target)), first.perm, like)
    target = constant_target(tuple(dims[i] for i in last.perm), last.dims) if last is not None else None
    if target is None and last is not None and given is not None:
        return m.op.Reshape(_turned(m, x, last.perm, like), given)
    m.require(target is not None, "more than one unknown dim")
    assert last is not None
    return m.op.Reshape(_turned(m, x, last.perm, like), m.ints(target))


def _turned(m: Match, x: Value, perm: Sequence[int], like: Node) -> Value:
    return x if list(perm) == sorted(perm) else m.op.Transpose(x, like=like, perm=list(perm))


@register
class ReshapeChains(RewritePass):
    """Transpose where only axes of one element move, Flatten, Squeeze, Unsqueeze and Reshape in a row are one step;
    Reshapes around a Transpose, or Transposes around a Reshape, are one of each.

    Applies when: they are next to each other, nobody else reads the result in between, and one target with at most one
    unknown dim says it all. A decoder that is run one token at a time turns [batch, 1, heads, width] like that. Two
    Reshapes meet where one can pass the Transpose: the axes that it joins or splits stay side by side. PyTorch's
    attention turns [tokens, batch · heads, width], and splits batch and heads then.
    Keeps: a Transpose between operators that compute, where a Reshape would save nothing; heads that are turned as
    others of the same tensor are, with which they may be turned together.
    Not done: a Reshape past a Transpose where no node goes; dims of 0.
    """

    info = PassInfo(
        "reshape-chains",
        opt_level=1,
        after=("elim-identity",),
        ops=("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"),
    )
    rules = (
        transpose_of_ones,
        reshape_of_reshape,
        unsqueeze_of_reshape,
        squeeze_of_reshape,
        squeeze_of_computed,
        flatten_of_reshape,
        squeeze_of_some,
        ones_elsewhere,
        reshape_there_and_back,
        transposes_around_unsqueeze,
        reshapes_around_transpose,
        transposes_around_reshape,
    )
