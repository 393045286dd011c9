"""Composition of chains of Reshapes and Transposes."""

from __future__ import annotations

import numpy as np

from onnxopt.analysis.shapes.sizes import known_order
from onnxopt.graph import Value
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Match, const, one_of, op, rewrite, var
from onnxopt.rewriting.compositions import composed, copies
from onnxopt.rewriting.index_maps import VIEWS


@rewrite(one_of(*VIEWS)(one_of(*VIEWS)(var("x"), ..., name="inner", shared=True), ..., name="outer"))
def view_of_view(m: Match, x: Value) -> Value:
    """f(g(x)) = Transpose(Reshape(x, s), p), or less; f and g are Reshape, Flatten, Squeeze, Unsqueeze or Transpose."""
    return composed(m)


@rewrite(op.Transpose(var("x"), name="transpose"))
def transpose_of_ones(m: Match, x: Value) -> Value:
    """Transpose(x, p) = x, where only axes of one element change places, and the dims stay."""
    dims = m.shape(x)
    perm = known_order(m.transpose, m.rank(x))
    m.require(perm is not None, "no order of the axes that there are")
    assert dims is not None and perm is not None
    m.require([dims[i] for i in perm] == list(dims), "the dims may change")
    moving = [i for i in perm if dims[i] != 1]
    m.require(moving == sorted(moving), "axes of more than one element change places")
    return x


@rewrite(
    op.Squeeze(
        op.Reshape(var("x"), op.Concat(var("first"), ..., name="target", shared=True), name="reshape"), const("axes")
    )
)
def squeeze_of_computed(m: Match, x: Value, first: Value, axes: Array) -> Value:
    """Squeeze(Reshape(x, Concat(s, 1)), last) = Reshape(x, s), for constant ones in a computed target."""
    copied, length = copies(m, m.target.output), m.shape(m.target.output)
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
    last = parts[0] if parts else m.ints([])
    return m.op.Reshape(x, m.op.Concat(*parts, axis=0) if len(parts) > 1 else last, like=m.reshape)


@register
class ReshapeChains(RewritePass):
    """Composes chains of Reshape, Flatten, Squeeze, Unsqueeze and Transpose to at most one Reshape and one
    Transpose.

    Applies when: inner results have no other readers, and a Reshape target with at most one unknown dim exists. Joined
    or split axes are adjacent in the input. Single-token decoders transpose [batch, 1, heads, width] like this;
    PyTorch's attention transposes [tokens, batch · heads, width], then splits batch and heads.
    Keeps: a Transpose between computing operators, where a Reshape saves nothing; heads transposed like others of the
    same tensor, which merge-parallel may transpose together.
    Not done: a Reshape moved past a Transpose without saving a node; dims of 0.
    """

    info = PassInfo(
        "reshape-chains",
        opt_level=1,
        after=("elim-identity",),
        ops=("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"),
    )
    rules = (view_of_view, transpose_of_ones, squeeze_of_computed)
