"""Attention and rotary positions that are written out become the standard's operators (opset 23)."""

from __future__ import annotations

from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.element_types import element_kind
from onnxopt.graph import Value
from onnxopt.graph.value import Dim
from onnxopt.operators import PICKS
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.protos import Array
from onnxopt.rewriting import Match, Pattern, const, either, op, rewrite, var
from onnxopt.rewriting.forms import listed_axes

_REACH: Final = 12


def scores(product: Pattern) -> Pattern:
    return either(op.Mul(product, const("scale")), op.Div(product, const("divisor")), product)


_SCORES = scores(op.MatMul(var("q"), op.Transpose(var("k"), name="turned")))


@rewrite(
    op.MatMul(
        either(
            op.Softmax(op.Add(_SCORES, var("mask")), name="softmax"),
            op.Softmax(_SCORES, name="softmax"),
        ),
        var("v"),
    )
)
def attention(
    m: Match,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    scale: Array | None = None,
    divisor: Array | None = None,
) -> Value:
    """Softmax(q kᵀ z + mask) v = Attention(q, k, v, mask, scale = z)."""
    guard(m, 23, q)
    m.require(m.softmax.attr("axis") in (-1, 3), "the softmax is not over the keys")
    perm = list(m.turned.attr("perm") or ())
    m.require(len(perm) == 4, "not batches of heads")
    straight = [*perm[:2], perm[3], perm[2]]  # the order of the keys' axes before their last two were swapped
    dims = m.shape(k)
    shapes = (m.shape(q), [dims[i] for i in straight] if dims is not None and len(dims) == 4 else None, m.shape(v))
    m.require(all(s is not None and len(s) == 4 for s in shapes), "not batches of heads")
    (b1, h1, rows, d1), (b2, h2, columns, d2), (b3, h3, values, width) = (s or () for s in shapes)
    m.require(b1 == b2 == b3 and h1 == h2 == h3 and None not in (b1, h1), "batches or heads may differ, and broadcast")
    m.require(
        d1 == d2 and columns == values and None not in (d1, columns, rows), "sizes that are not known to be equal"
    )
    m.require(0 not in (b1, h1, rows, d1, width), "there is nothing, of which runtimes take no Attention")
    m.require(some_keys(columns, rows), "there may be no keys: the operator fails then, the formula gives zeros")
    if mask is not None:
        allowed = m.shape(mask)
        m.require(allowed is not None and len(allowed) >= 2, "the mask has another rank")
        full = (1,) * (4 - len(allowed or ())) + tuple(allowed or ())
        m.require(full[2:] == (rows, columns), "the mask broadcasts along queries or keys")
        m.require(full[0] in (1, b1) and full[1] in (1, h1), "the mask may widen the scores")
        m.require(
            largest(mask) is not None,
            "a mask of minus infinity, or the lowest number, for all keys: the operator gives zeros",
        )
    factor = scale if scale is not None else divisor
    m.require(factor is None or (factor.size == 1 and factor.ndim <= 4), "a scale for each element")
    z = np.float64(1.0 if factor is None else factor.item())
    z = z if divisor is None else 1.0 / z
    m.require(0 < z <= np.finfo(np.float32).max, "the scale is not positive, or none")
    keys = k if straight == [0, 1, 2, 3] else m.op.Transpose(k, like=m.turned, perm=straight)
    return m.op.Attention(q, keys, v, mask, scale=float(z))


def some_keys(columns: Dim, rows: Dim) -> bool:
    """Are there keys where there are queries? As many, or a number, or a past and a number or the queries: {1+past}."""
    if columns == rows or not isinstance(columns, str):
        return columns != 0
    added = columns.strip("{}").split("+") if columns.startswith("{") and not set("(-") & set(columns) else []
    return any(term.isdigit() or term == rows for term in added)


def largest(value: Value, reach: int = _REACH) -> float | None:
    """A bound on the magnitude of the elements, below that of the lowest number, where the operators that make them
    show one; else None."""
    if value.constant:
        array = value.array
        bound = float(np.abs(array.astype(np.float64)).max(initial=0)) if element_kind(array) in "fiu" else np.inf
        return bound if bound < np.finfo(np.float32).max else None
    node = value.producer
    if node is None or not reach:
        return None
    reach -= 1
    if node.op == "Cast":
        from onnxopt.analysis import types

        source = node.inputs[0]
        return 1.0 if source is not None and types.dtype(source) == TensorProto.BOOL else _of(source, reach)
    if node.op in PICKS or node.op in ("Neg", "Trilu"):
        return _of(node.inputs[0], reach)
    if node.op in ("Where", "Add", "Sub", "Mul"):
        a, b = (_of(v, reach) for v in node.inputs[-2:])
        if a is None or b is None:
            return None
        bound = max(a, b) if node.op == "Where" else a * b if node.op == "Mul" else a + b
        return bound if bound < np.finfo(np.float32).max else None
    return None


def _of(value: Value | None, reach: int) -> float | None:
    return None if value is None else largest(value, reach)


_HALVES = op.Split(var("x"), ..., name="halves")


@rewrite(
    op.Add(
        op.Mul(var("x"), var("cos")),
        op.Mul(op.Concat(op.Neg(_HALVES.at(1)), _HALVES.at(0), name="turned"), var("sin")),
    )
)
def rotary_embedding(m: Match, x: Value, cos: Value, sin: Value) -> Value:
    """x cos(f, f) + [-x₂, x₁] sin(f, f) = RotaryEmbedding(x, cos f, sin f), x₁ and x₂ the halves of x."""
    guard(m, 23, x)
    shape = m.shape(x)
    m.require(shape is not None and len(shape) == 4 and isinstance(shape[3], int), "not batches of heads")
    batch, _, length, width = shape or (None,) * 4
    halves = [m.shape(v) for v in m.halves.outputs if v is not None]
    m.require(len(halves) == 2 and all(h is not None and h[-1] * 2 == width for h in halves), "not two halves")  # type: ignore[operator]
    m.require(m.turned.attr("axis") in (-1, 3), "not along the last axis")
    angles = [_angles(v, function) for v, function in ((cos, "Cos"), (sin, "Sin"))]
    m.require(angles[0] is not None and angles[0] == angles[1], "the angles are not the same for both halves")
    assert angles[0] is not None
    f, rank = angles[0]
    dims = m.shape(f)
    m.require(dims is not None and len(dims) == rank and dims[0] == batch is not None, "angles for another batch")
    assert dims is not None
    m.require(rank == 3 or dims[1] == 1, "angles for each head")
    m.require(dims[-2] == length is not None, "the positions of x and of the angles may differ, and broadcast")
    f = m.op.Squeeze(f, m.ints([1])) if rank == 4 else f
    return m.op.RotaryEmbedding(x, m.op.Cos(f), m.op.Sin(f))


def _angles(value: Value, function: str) -> tuple[Value, int] | None:
    """f of Unsqueeze(Cos(Concat(f, f)), 1), or of Cos(Concat(f, f)) where it has that axis, and the rank of f."""
    call, rank = value.producer, 4
    if call is not None and call.op == "Unsqueeze" and call.inputs[0] is not None and listed_axes(call) == [1]:
        call, rank = call.inputs[0].producer, 3
    twice = call.inputs[0].producer if call is not None and call.op == function and call.inputs[0] is not None else None
    if twice is None or twice.op != "Concat" or len(twice.inputs) != 2 or twice.inputs[0] is not twice.inputs[1]:
        return None
    f = twice.inputs[0] if twice.attr("axis") in (-1, rank - 1) else None
    return (f, rank) if f is not None else None


def guard(m: Match, opset: int, x: Value) -> None:
    m.require(m.opset >= opset, f"the operator is there from opset {opset} on")
    m.require(m.dtype(x) == TensorProto.FLOAT, "not float32")


@register
class FuseAttention(RewritePass):
    """Softmax(q kᵀ z + mask) v = Attention; x cos + [-x₂, x₁] sin = RotaryEmbedding (both opset 23).

    Applies when: batches, heads and sizes are known to be equal, the mask is as large as the scores and finite, nothing
    in between is used elsewhere; for positions, the angles are given once for both halves and for each sequence.
    Keeps: masks with minus infinity, or the lowest number there is: where all keys are hidden the operator gives zeros,
    and the formula NaN, or the mean of all values; keys of another input, of which there may be none: the operator
    fails, and the formula gives zeros.
    Not done: types other than float32, groups of heads that share keys. Where there are no queries either, or the batch
    is empty, the formula gives nothing, and onnxruntime's operator fails.
    """

    info = PassInfo("fuse-attention", opt_level=3, after=("merge-parallel",), ops=("MatMul", "Neg"))
    rules = (attention, rotary_embedding)
