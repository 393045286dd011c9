"""Heads of attention: split and joined inside Attention, and grouped keys."""

from __future__ import annotations

from typing import Final

import numpy as np

from onnxopt.graph import Value
from onnxopt.graph.value import Shape
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Match, Pattern, const, either, op, rewrite, var
from onnxopt.rewriting.attention import scores_of

# Attention with heads side by side in each row, the layout of the products around it.

_TURNED = [0, 2, 1, 3]  # exchanges [batch, rows, heads, width] and [batch, heads, rows, width]


def _heads_first(x: str) -> Pattern:
    return op.Transpose(var(x), name=f"{x}_turned")


@rewrite(
    op.Transpose(
        op.Attention(_heads_first("q"), _heads_first("k"), _heads_first("v"), ..., name="attention"), name="back"
    )
)
def attention_of_rows(m: Match, q: Value, k: Value, v: Value) -> Value:
    """Attention(qᵀ, kᵀ, vᵀ)ᵀ = Attention(q, k, v) of rows with the heads side by side, where ᵀ turns rows and heads."""
    turned = m.q_turned, m.k_turned, m.v_turned, m.back
    m.require(all(list(n.attr("perm") or ()) == _TURNED for n in turned), "not rows and heads are exchanged")
    m.require(all(x is None for x in m.attention.inputs[4:6]), "it has a past")
    sizes = [(m.shape(x) or ())[2:] for x in (q, k, v)]
    known = all(len(s) == 2 and all(isinstance(n, int) and n > 0 for n in s) for s in sizes)
    m.require(known, "the heads, or their width, are unknown")
    (heads, _), (keys, _), (_, width) = sizes
    rows = [m.op.Reshape(x, m.ints([0, 0, s[0] * s[1]])) for x, s in zip((q, k, v), sizes)]  # type: ignore[operator]
    made = m.op.Attention(*rows, *m.attention.inputs[3:], like=m.attention, q_num_heads=heads, kv_num_heads=keys)
    return m.op.Reshape(made, m.ints([0, 0, heads, width]))


@register
class AttentionHeads(RewritePass):
    """Attention(qᵀ, kᵀ, vᵀ)ᵀ = Attention(q, k, v) of rows with adjacent heads: four Transposes less.

    Applies when: queries, keys, values and the result are transposed, and the transposed values have no other readers.
    Keeps: an Attention with a past, whose layout is heads first in either form.
    """

    info = PassInfo("attention-heads", opt_level=3, after=("fuse-attention",), ops=("Attention",))
    rules = (attention_of_rows,)


# Keys and values shared by several query heads are read directly, not copied for each head.

_PROBABILITIES: Final = op.Softmax(var("x"), name="softmax")


@rewrite(
    op.MatMul(
        either(op.Where(op.IsNaN(var("guarded")), 0, _PROBABILITIES, name="guard"), _PROBABILITIES),
        op.Gather(var("v"), const("heads"), name="values"),
    )
)
def grouped_heads(m: Match, x: Value, v: Value, heads: Array, guarded: Value | None = None) -> Value:
    """Softmax(q k[:, heads]ᵀ + mask) v[:, heads] = Softmax(q' kᵀ + mask') v.

    In q' the queries sharing a head are additional rows, likewise in mask'.
    """
    m.require(m.softmax.attr("axis") in (-1, 3), "the softmax is not over the keys")
    m.require(guarded in (None, m.softmax.output), "zeros in place of NaN of something else")
    s = m.known(scores_of(x), "not the scores of queries and keys")
    m.require(all(part.only_user is not None for part in s.through), "scores are used elsewhere")
    shapes = m.shape(s.q), m.shape(s.turned), m.shape(v), m.shape(m.values.output)
    m.require(all(d is not None and len(d) == 4 for d in shapes), "not batches of heads")
    queries = shapes[0] or ()
    (batch, many, rows, width), turned, (_, few, _, size), values = (d or () for d in shapes)
    m.require(
        turned[:2] == values[:2] == (batch, many) and batch is not None, "batches or heads may differ, and broadcast"
    )
    m.require(all(isinstance(n, int) and n for n in (many, few, width, size)), "sizes that are not known")
    assert isinstance(many, int) and isinstance(few, int)
    m.require(
        m.values.attr("axis") in (1, -3) and is_regular(heads, few), "not as many queries for each head, in order"
    )
    keys = _few(m, s.turned, few)
    group = many // few
    scores = m.op.MatMul(
        m.op.Reshape(s.q, m.ints([0, few, group * rows if isinstance(rows, int) else -1, width])), keys
    )
    for old, part in zip(s.through, s.through[1:]):
        node = part.producer
        assert node is not None
        reads = [scores if i is old else None if i is None else _for_group(m, i, queries, group) for i in node.inputs]
        scores = m.op[node.op](*reads, like=node)
    p = m.op.Softmax(scores, axis=-1)
    if guarded is not None:
        p = m.op.Where(m.op.IsNaN(p), m.guard.inputs[1], p)
    return m.op.Reshape(m.op.MatMul(p, v), m.ints([0, many, rows if isinstance(rows, int) else -1, size]))


def _few(m: Match, turned: Value, few: int) -> Value:
    """Return the keys, with the last axes swapped, before heads were copied."""
    node, axis, perm = turned.producer, 1, None
    if node is not None and node.op == "Transpose" and turned.only_user is not None and node.inputs[0] is not None:
        perm = list(node.attr("perm") or ())
        m.require(len(perm) == 4, "not batches of heads")
        node, axis = node.inputs[0].producer, perm[1]
    m.require(node is not None and node.op == "Gather", "the keys are not copied for each head")
    assert node is not None
    source, heads = node.inputs
    m.require(node.output.only_user is not None, "something else reads the copied keys")
    same = source is not None and heads is not None and heads.constant and node.attr("axis") % 4 == axis
    m.require(same and is_regular(heads.array, few), "not as many queries for each head, in order")  # type: ignore[union-attr]
    dims = m.shape(source) if source is not None else None
    m.require(dims is not None and len(dims) == 4 and dims[axis] == few, "keys and values have other heads")
    assert source is not None
    return source if perm is None else m.op.Transpose(source, perm=perm)


def is_regular(heads: Array, few: int) -> bool:
    """Whether the indices 0 to `few` - 1 occur in order, each equally often."""
    return heads.ndim == 1 and heads.size > few and np.array_equal(heads, np.repeat(np.arange(few), heads.size // few))


def _for_group(m: Match, value: Value, sizes: Shape, group: int) -> Value:
    """Return an operand of the scores for all queries sharing a head: a single row, or tiled."""
    dims = m.shape(value)
    m.require(dims is not None and len(dims) <= 4, "a mask of unknown rank")
    rank = len(dims or ())
    full = (1,) * (4 - rank) + tuple(dims or ())
    m.require(full[0] in (1, sizes[0]) and full[1] == 1, "a mask for each head")
    m.require(full[2] in (1, sizes[2]), "the mask may widen the scores")
    return value if full[2] == 1 else m.op.Tile(value, m.ints([*[1] * (rank - 2), group, 1]))


@register
class GroupHeads(RewritePass):
    """Queries that share a head of keys and values become rows of one product, without copies of the head.

    Applies when: a Gather of keys and of values with constant indices repeats each head equally often, in order; inner
    values have no other readers; masks are equal for all heads. A mask with a row for each query is tiled, once for all
    its readers.
    Keeps: biases for each head; heads picked in another order.
    Not done: an empty batch, which runtimes cannot reshape if the number of queries is not constant.
    """

    # After: an Attention reads shared heads directly.
    info = PassInfo("group-heads", opt_level=2, after=("fuse-attention",), ops=("Gather",))
    rules = (grouped_heads,)
