"""Steps that leave the elements in their order are one Reshape, whatever they are called."""

from __future__ import annotations

import numpy as np

from onnxopt.graph import Shape, Value
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.protos import Array
from onnxopt.rewriting import Match, const, falsy, one_of, op, rewrite, var

_KEEP_ORDER = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")


@rewrite(op.Transpose(var("x"), name="transpose"))
def transpose_of_ones(m: Match, x: Value) -> Value:
    """Transpose(x) = Reshape(x) where all axes that move past each other, but one, have one element."""
    before, after = x.producer, m.transpose.output.only_user
    merges = before is not None and before.op in _KEEP_ORDER and x.only_user is m.transpose
    if not merges and (after is None or after.op not in _KEEP_ORDER or after.inputs[0] is not m.transpose.output):
        m.skip()  # as it is one node either way, it stays what runtimes know how to merge into products
    dims = m.shape(x)
    m.require(dims is not None, "the rank is unknown")
    assert dims is not None
    perm = m.transpose.attr("perm") or list(range(len(dims)))[::-1]
    moving = [i for i in perm if dims[i] != 1]
    m.require(moving == sorted(moving), "axes of more than one element change places")
    m.require(m.opset >= 5 and 0 not in dims, "there is no Reshape for it")
    # A 0 copies a dim that stays; what is unknown and moves is -1, which no empty dim may stand beside.
    target = [d if isinstance(d, int) else 0 if i == j else -1 for i, j in enumerate(perm) for d in (dims[j],)]
    m.require(-1 not in target or (target.count(-1) == 1 and 0 not in target), "more than one unknown dim")
    result: Value = m.op.Reshape(x, m.const(np.array(target, np.int64)))
    return result


@rewrite(op.Unsqueeze(op.Reshape(var("x"), const("target"), name="reshape", allowzero=falsy), const("axes")))
def unsqueeze_of_reshape(m: Match, x: Value, target: Array, axes: Array) -> Value:
    """Unsqueeze(Reshape(x, target), axes) = Reshape(x, target with ones at the axes)."""
    m.require(target.ndim == 1 and axes.size > 0, "no axes, or no target")
    rank = target.size + axes.size
    at = {int(i) % rank for i in axes.reshape(-1)}
    rest = iter(target.tolist())
    wide = [1 if i in at else next(rest) for i in range(rank)]
    m.require(0 not in wide[min(at) :], "a zero copies the dim in its place")
    result: Value = m.op.Reshape(x, m.const(np.array(wide, np.int64)), like=m.reshape)
    return result


@rewrite(op.Flatten(one_of(*_KEEP_ORDER)(var("x"), ..., name="inner"), name="flatten"))
def flatten_of_reshape(m: Match, x: Value) -> Value:
    """Flatten(Reshape(x)) = Reshape(x, rows, columns)."""
    return _reshaped_like(m, x, m.flatten.output)


def _reshaped_like(m: Match, x: Value, v: Value) -> Value:
    """Reshape(x, dims of v), of which one may be unknown."""
    dims = m.shape(v)
    m.require(dims is not None and m.opset >= 5, "there is no Reshape for it")
    target = [d if isinstance(d, int) else -1 for d in dims or ()]
    m.require(target.count(-1) <= 1 and 0 not in target, "more than one unknown dim")
    result: Value = m.op.Reshape(x, m.const(np.array(target, np.int64)))
    return result


_ONES = one_of("Squeeze", "Unsqueeze")


@rewrite(_ONES(_ONES(var("x"), const("a"), name="inner"), const("b"), name="outer"))
def ones_elsewhere(m: Match, x: Value, a: Array, b: Array) -> Value:
    """Unsqueeze(Squeeze(x, a), b) = Reshape(x, dims of the result), and so the other way round."""
    if m.inner.op == m.outer.op:
        m.skip()
    return _reshaped_like(m, x, m.outer.output)


@rewrite(op.Reshape(op.Reshape(var("x"), var("inner"), shared=True), var("target"), name="outer"))
def reshape_there_and_back(m: Match, x: Value, inner: Value, target: Value) -> Value:
    """Reshape(Reshape(x, s), dims of x and ones) = Squeeze(x) or Unsqueeze(x), whatever computes the dims."""
    if target.constant:
        m.skip()  # that is a Reshape of a Reshape
    dims, wanted = m.shape(x), m.shape(m.outer.output)
    m.require(dims is not None and wanted is not None, "a rank is unknown")
    assert dims is not None and wanted is not None
    m.require(None not in dims and None not in wanted, "a dim is unknown")
    ones = _ones(dims, wanted)
    if ones is not None:
        return m.op.Squeeze(x, m.const(np.array(ones, np.int64))) if ones else x
    ones = _ones(wanted, dims)
    m.require(ones is not None, "not provably the dims that were there")
    result: Value = m.op.Unsqueeze(x, m.const(np.array(ones, np.int64)))
    return result


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


@rewrite(op.Transpose(op.Unsqueeze(op.Transpose(var("x"), name="first"), const("axes"), name="middle"), name="last"))
def transposes_around_unsqueeze(m: Match, x: Value, axes: Array) -> Value:
    """Transpose(Unsqueeze(Transpose(x, p), a), q) = Unsqueeze(x, b), transposed once if it has to be."""
    first, last = m.first.attr("perm"), m.last.attr("perm")
    rank = len(first or ()) or m.rank(x)
    m.require(rank is not None, "the rank is unknown")
    p = first or list(range(rank or 0))[::-1]
    n = len(p) + axes.size
    q = last or list(range(n))[::-1]
    new = {int(i) % n for i in axes.reshape(-1)}
    rest = iter(p)
    middle = [None if i in new else next(rest) for i in range(n)]  # the axes of x, None for those that are new
    order = [middle[i] for i in q]
    moved = [i for i in order if i is not None]
    turned = x if moved == sorted(moved) else m.op.Transpose(x, perm=moved)
    places = [i for i, axis in enumerate(order) if axis is None]
    result: Value = m.op.Unsqueeze(turned, m.const(np.array(places, np.int64)), like=m.middle)
    return result


@register
class ReshapeChains(RewritePass):
    """Transpose where only axes of one element move, Flatten, Squeeze, Unsqueeze and Reshape in a row are one step.

    Applies when: they are next to each other, nobody else reads the result in between, and one target with at most one
    unknown dim says it all. A decoder that is run one token at a time turns [batch, 1, heads, width] like that.
    Keeps: a Transpose between operators that compute, where a Reshape would save nothing.
    """

    info = PassInfo("reshape-chains", opt_level=1, after=("elim-identity",))
    rules = (
        transpose_of_ones,
        unsqueeze_of_reshape,
        flatten_of_reshape,
        ones_elsewhere,
        reshape_there_and_back,
        transposes_around_unsqueeze,
    )
