"""Attention with heads side by side in each row, the layout of the products around it."""

from __future__ import annotations

from onnxopt.graph import Value
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.rewriting import Match, Pattern, op, rewrite, var

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
