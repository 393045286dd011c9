"""A matrix product and what is added to it are one Gemm."""

from __future__ import annotations

from onnxopt.graph import Value
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.protos import FLOATS
from onnxopt.rewriting import Match, op, quantized, rewrite, var


@rewrite(op.Add(op.MatMul(var("x"), var("w"), name="product"), var("b")))
def fold_matmul_add(m: Match, x: Value, w: Value, b: Value) -> Value:
    """x W + b = Gemm(x, W, b) for matrices."""
    m.require(m.rank(x) == 2 and m.rank(w) == 2, "not matrices")
    m.require(m.dtype(x) in FLOATS, "not a floating point product")
    m.require(m.opset >= 11, "Gemm has no optional bias before opset 11")
    m.require(not quantized(m, x) and not quantized(m, w), "the product is quantized")
    rows, columns = (m.shape(x) or ())[0], (m.shape(w) or ())[1]
    dims = m.shape(b)
    m.require(dims is not None and len(dims) <= 2, "the rank of what is added is unknown or higher")
    padded = (1,) * (2 - len(dims or ())) + tuple(dims or ())
    m.require(padded[0] in (1, rows) and padded[1] in (1, columns) and None not in padded, "it may widen the product")
    result: Value = m.op.Gemm(x, w, b)
    return result


@rewrite(op.Gemm(op.Transpose(var("x"), perm=[1, 0]), var("w"), var("b").opt(), name="gemm"))
def transpose_of_first(m: Match, x: Value, w: Value, b: Value | None) -> Value:
    """Gemm(xᵀ, W) = Gemm(x, W, transA)."""
    result: Value = m.op.Gemm(x, w, b, like=m.gemm, transA=int(not m.gemm.attr("transA")))
    return result


@rewrite(op.Gemm(var("x"), op.Transpose(var("w"), perm=[1, 0]), var("b").opt(), name="gemm"))
def transpose_of_second(m: Match, x: Value, w: Value, b: Value | None) -> Value:
    """Gemm(x, Wᵀ) = Gemm(x, W, transB)."""
    result: Value = m.op.Gemm(x, w, b, like=m.gemm, transB=int(not m.gemm.attr("transB")))
    return result


@register
class GemmFusion(RewritePass):
    """x W + b = Gemm(x, W, b); a Transpose of a matrix before a Gemm becomes its attribute.

    Applies when: both are matrices, and b broadcasts into the product.
    Not done: integers, quantized products, products used elsewhere. `flatten-rows` makes matrices of higher ranks.
    """

    info = PassInfo("gemm-fusion", opt_level=2)
    rules = (fold_matmul_add, transpose_of_first, transpose_of_second)
