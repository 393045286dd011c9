"""Constant factors before and behind a product, folded into its constant weights."""

from __future__ import annotations

import numpy as np

from onnxopt.graph import Value
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.element_types import is_float
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Match, const, ends_formula, one_of, op, quantized, rewrite, var


def row(m: Match, z: Array, size: int, rank: int | None) -> Array:
    """Return `z` as a factor for each of `size` elements of the last axis; declines for other shapes."""
    m.require(rank is not None and z.ndim <= rank, "the rank is unknown, or would rise")
    m.require(all(d == 1 for d in z.shape[:-1]) and z.size in (1, size), "not one factor per element of the last axis")
    m.require(np.isfinite(z).all() and z.all(), "a factor is zero or not finite")
    return z.reshape(-1).astype(np.float64)


def weights(m: Match, x: Value, w: Array) -> None:
    m.require(w.ndim == 2 and is_float(w), "the weights are no matrix of floats")
    m.require(len(m.value("w").users) == 1, "the weights are shared, and would be there twice")
    m.require(not quantized(m, x), "the product is quantized")


@rewrite(op.Mul(op.MatMul(var("x"), const("w"), name="product"), const("z")))
def fold_factor(m: Match, x: Value, w: Array, z: Array) -> Value:
    """(x W) z = x (W z), z along the columns."""
    weights(m, x, w)
    factor = row(m, z, w.shape[1], m.rank(x))
    return m.op.MatMul(x, m.const(w.astype(np.float64) * factor, like=w), like=m.product)


@rewrite(op.Div(op.MatMul(var("x"), const("w"), name="product"), const("z")))
def fold_divisor(m: Match, x: Value, w: Array, z: Array) -> Value:
    """(x W) / z = x (W / z), z along the columns."""
    weights(m, x, w)
    factor = row(m, z, w.shape[1], m.rank(x))
    return m.op.MatMul(x, m.const(w.astype(np.float64) / factor, like=w), like=m.product)


@rewrite(
    one_of("Div", "Mul")(
        op.Add(op.MatMul(var("x"), const("w"), name="product"), const("b"), name="sum"), const("z"), name="scaled"
    )
)
def fold_factor_of_sum(m: Match, x: Value, w: Array, b: Array, z: Array) -> Value:
    """(x W + b) z = x (W z) + b z, z along the columns: the scale of a layer, beside what is not scaled."""
    if z.size == 1:
        m.skip()  # scale-propagation handles single numbers more generally
    weights(m, x, w)
    columns = w.shape[1]
    m.require(all(d == 1 for d in b.shape[:-1]) and b.size in (1, columns), "what is added is no bias")
    factor = row(m, z, columns, m.rank(x))
    if m.scaled.op == "Div":
        factor = 1 / factor
    product = m.op.MatMul(x, m.const(w.astype(np.float64) * factor, like=w), like=m.product)
    return m.op.Add(product, m.const(b.astype(np.float64) * factor, like=b), like=m.sum)


@rewrite(op.MatMul(op.Mul(var("x"), const("z"), name="scaling", shared=True), const("w"), name="product"))
def fold_scaled_rows(m: Match, x: Value, z: Array, w: Array) -> Value:
    """(x z) W = x (z W), z along the rows of W; all readers of x z are such products."""
    m.require(not ends_formula(x, z), "it ends a normalization or Gelu, which runtimes run as one operator")
    scaled = m.scaling.output
    m.require(not scaled.is_output, "what is scaled is an output")
    alike = all(
        u.op == "MatMul" and u.inputs[0] is scaled and u.inputs[1] is not None and u.inputs[1].constant
        for u in scaled.users
    )
    m.require(alike, "what is scaled is used elsewhere")
    weights(m, x, w)
    factor = row(m, z, w.shape[0], m.rank(x))
    m.require(factor.size == 1 or (m.shape(x) or [None])[-1] == factor.size, "it may widen rows of one element")
    wide = w.astype(np.float64) * (factor if factor.size == 1 else factor[:, None])
    return m.op.MatMul(x, m.const(wide, like=w), like=m.product)


@rewrite(
    op.MatMul(
        op.Mul(var("x"), const("z"), name="scaling"),
        op.Mul(var("y"), const("u")),
        name="product",
    )
)
def join_factors(m: Match, x: Value, z: Array, y: Value, u: Array) -> Value:
    """(x z) (y u) = (x zu) y, for scalars z and u, as in attention with queries and keys scaled by a root each."""
    m.require(z.dtype == u.dtype and z.dtype in (np.float32, np.float64), "half precision is scaled in two steps")
    m.require(z.size == u.size == 1, "a factor for each element")
    m.require(z.ndim <= (m.rank(x) or 0) and u.ndim <= (m.rank(y) or 0), "a rank is unknown, or would rise")
    factor = z.reshape(()).astype(np.float64) * u.reshape(())
    m.require(np.isfinite(factor) and factor.astype(z.dtype), "a factor is zero or not finite")
    return m.op.MatMul(m.op.Mul(x, m.const(factor, like=z), like=m.scaling), y, like=m.product)


@register
class MatMulScaleFolding(RewritePass):
    """(x z) W = x (z W), (x W + b) z = x (W z) + b z, (x z) (y u) = (x zu) y: merges scales.

    Applies when: the factor is a single number, or has an element for each element of the last axis; the inner value
    has no other readers. Unlike scale-propagation, which follows a factor through data movement, this pass examines a
    product and its factor, and merges the scales of queries and keys, as in LLaMA, DINOv2, HuBERT and SAM.
    Not done: shared weights, which would be stored twice; factors of zero; quantized products; the end of a decomposed
    normalization or Gelu, which runtimes fuse (4 % of T5's time, 5 % of ViT's).
    """

    # After: separate weights would hide common subexpressions.
    info = PassInfo("matmul-scale-folding", opt_level=2, after=("common-subexpressions",), ops=("MatMul",))
    rules = (fold_factor, fold_divisor, fold_factor_of_sum, fold_scaled_rows, join_factors)
