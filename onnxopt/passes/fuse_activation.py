"""Activations that are written out become the standard's operators."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from onnxopt.graph import Value
from onnxopt.pipeline import PassInfo, RewritePass, option, register
from onnxopt.protos import FLOATS, Array
from onnxopt.rewriting import Match, Pattern, const, either, op, rewrite, var

_ROUNDING: Final = 2.0**-22  # of an attribute, which is float32 and may have been written in seven digits


def near(m: Match, x: Value, constant: Array, wanted: float) -> None:
    """Decline unless `constant` is one number, of a rank that x has, and about the nearest that its type holds."""
    import ml_dtypes

    m.require(constant.size == 1 and constant.ndim <= (m.rank(x) or 0), "a constant is not one number")
    m.require(
        math.isclose(float(constant.item()), wanted, rel_tol=float(ml_dtypes.finfo(constant.dtype).eps)),
        "other constants",
    )


def half_of_product(factor: Pattern) -> Pattern:
    """x * factor / 2, in any order; `half` is the constant."""
    x, half = var("x"), const("half")
    return either(
        op.Mul(op.Mul(x, factor), half),
        op.Mul(op.Mul(x, half), factor),
        op.Mul(x, op.Mul(factor, half)),
    )


@rewrite(
    half_of_product(
        op.Add(op.Erf(either(op.Div(var("x"), const("k")), op.Mul(var("x"), const("r")))), 1, name="gate", shared=True)
    )
)
def gelu(m: Match, x: Value, half: Array, k: Array | None = None, r: Array | None = None) -> Value:
    """x (1 + erf(x / √2)) / 2 = Gelu(x)."""
    guard(m, x, 20, "Gelu")
    of_products(m)
    near(m, x, half, 0.5)
    if k is not None:
        near(m, x, k, math.sqrt(2))
    if r is not None:
        near(m, x, r, math.sqrt(0.5))
    result: Value = m.op.Gelu(x)
    return result


@rewrite(
    half_of_product(
        op.Add(
            op.Tanh(op.Mul(op.Add(var("x"), op.Mul(op.Pow(var("x"), 3), const("cubic"))), const("root"))),
            1,
            name="gate",
            shared=True,
        )
    )
)
def gelu_by_tanh(m: Match, x: Value, half: Array, cubic: Array, root: Array) -> Value:
    """x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2 = Gelu(x, approximate = tanh)."""
    guard(m, x, 20, "Gelu")
    of_products(m)
    near(m, x, half, 0.5)
    near(m, x, cubic, 0.044715)
    near(m, x, root, math.sqrt(2 / math.pi))
    result: Value = m.op.Gelu(x, approximate="tanh")
    return result


@rewrite(op.Mul(var("x"), op.HardSigmoid(var("x"), name="gate")))
def hard_swish(m: Match, x: Value) -> Value:
    """x HardSigmoid(x; 1/6, 1/2) = HardSwish(x)."""
    guard(m, x, 14, "HardSwish")
    fits = math.isclose(m.gate.attr("alpha"), 1 / 6, rel_tol=_ROUNDING) and m.gate.attr("beta") == 0.5
    m.require(fits, "other constants")
    result: Value = m.op.HardSwish(x)
    return result


@rewrite(op.Mul(var("x"), op.Sigmoid(either(op.Mul(var("x"), const("alpha")), var("x")))))
def swish_of_sigmoid(m: Match, x: Value, alpha: Array | None = None) -> Value:
    """x Sigmoid(a x) = Swish(x, alpha = a)."""
    if m.options is not None and not m.options.swish:
        m.skip()
    guard(m, x, 24, "Swish")
    m.require(alpha is None or (alpha.size == 1 and alpha.ndim <= (m.rank(x) or 0)), "a factor for each element")
    factor = {} if alpha is None else {"alpha": float(alpha.item())}
    result: Value = m.op.Swish(x, **factor)
    return result


@rewrite(op.ReduceMean(var("x"), ..., name="mean"))
def global_average_pool(m: Match, x: Value) -> Value:
    """ReduceMean(x, all axes but batch and channels) = GlobalAveragePool(x)."""
    if m.options is not None and not m.options.pooling:
        m.skip()
    rank, given = m.rank(x), m.mean.input(1)
    m.require(rank is not None and rank > 2 and m.dtype(x) in FLOATS, "not an image of floats")
    m.require(given is None or given.constant, "the axes are computed")
    axes = given.array.reshape(-1).tolist() if given is not None else m.mean.attr("axes")
    spatial = axes is not None and sorted(a % (rank or 1) for a in axes) == list(range(2, rank or 0))
    m.require(spatial and m.mean.attr("keepdims"), "not the mean over the image, dims kept")
    result: Value = m.op.GlobalAveragePool(x)
    return result


@rewrite(op.Log(op.Softmax(var("x"), name="softmax")))
def log_softmax(m: Match, x: Value) -> Value:
    """log(Softmax(x)) = LogSoftmax(x), which also is finite where the probability is too small for a number."""
    result: Value = m.op.LogSoftmax(x, axis=m.softmax.attr("axis"))
    return result


def guard(m: Match, x: Value, opset: int, name: str) -> None:
    m.require(m.opset >= opset, f"{name} is there from opset {opset} on")
    m.require(m.dtype(x) in FLOATS, "not floating point")


def of_products(m: Match) -> None:
    """Decline where more than products, each another Gelu of x maybe, reads 1 + erf(…)."""
    m.require(m.gate.output.feeds_only(lambda u: u.op == "Mul"), "Add output used elsewhere")


@register
@dataclass(frozen=True)
class FuseActivation(RewritePass):
    """Gelu (opset 20, by erf and by tanh), HardSwish (opset 14) and LogSoftmax in place of their formulas.

    Swish (opset 24) and GlobalAveragePool only with the options `swish` and `pooling`: onnxruntime has a faster
    operator of its own for the one, which it finds by its formula, and takes up to twice as long for the other.

    Applies when: the constants are theirs, and nothing in between is used elsewhere.
    """

    # Before: a factor of the formula would travel into weights.
    info = PassInfo(
        "fuse-activation",
        opt_level=3,
        after=("simplify-arithmetic",),
        before=("conv-add-folding", "matmul-scale-folding", "scale-propagation"),
    )
    swish: bool = option(False, "Swish too")
    pooling: bool = option(False, "GlobalAveragePool too")
    rules = (gelu, gelu_by_tanh, hard_swish, log_softmax, swish_of_sigmoid, global_average_pool)
