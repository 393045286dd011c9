"""Elementwise arithmetic in fewer steps; each rounds once less."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxopt.graph import Value
from onnxopt.pipeline import PassInfo, RewritePass, option, register
from onnxopt.protos import FLOATS, Array
from onnxopt.rewriting import Match, const, either, op, require_order_kept, rewrite, var


@rewrite(op.Mul(var("x"), either(op.Div(1, var("y")), op.Reciprocal(var("y")))))
def multiply_by_reciprocal(m: Match, x: Value, y: Value) -> Value:
    """x * (1 / y) = x / y."""
    m.require(m.dtype(x) in FLOATS, "integers divide otherwise")
    require_order_kept(m)
    result: Value = m.op.Div(x, y, like=m.anchor)
    return result


@rewrite(op.Mul(op.Mul(var("x"), const("a")), const("b")))
def product_of_factors(m: Match, x: Value, a: Array, b: Array) -> Value:
    """(x a) b = x (a b)."""
    return _combined(m, x, a, b, "Mul", np.multiply)


@rewrite(op.Add(op.Add(var("x"), const("a")), const("b")))
def sum_of_terms(m: Match, x: Value, a: Array, b: Array) -> Value:
    """(x + a) + b = x + (a + b)."""
    return _combined(m, x, a, b, "Add", np.add)


@rewrite(op.Div(op.Div(var("x"), const("a")), const("b")))
def product_of_divisors(m: Match, x: Value, a: Array, b: Array) -> Value:
    """(x / a) / b = x / (a b)."""
    return _combined(m, x, a, b, "Div", np.multiply)


def _combined(m: Match, x: Value, a: Array, b: Array, kind: str, function: np.ufunc) -> Value:
    m.require(a.dtype.kind == "f" and a.dtype == b.dtype, "not floating point")
    require_order_kept(m)
    m.require(max(a.size, b.size) >= np.broadcast(a, b).size, "the constants together are larger")
    wide = function(a.astype(np.float64), b.astype(np.float64))
    m.require(np.isfinite(wide).all() and (kind == "Add" or wide.all()), "the constant is zero or not finite")
    result: Value = getattr(m.op, kind)(x, m.const(wide, like=a), like=m.anchor)
    return result


@rewrite(op.Mul(op.Div(var("x"), const("a")), const("b")))
def factor_of_divided(m: Match, x: Value, a: Array, b: Array) -> Value:
    """(x / a) b = x (b / a)."""
    return _scaled(m, x, b, a)


@rewrite(op.Div(op.Mul(var("x"), const("a")), const("b")))
def divided_product(m: Match, x: Value, a: Array, b: Array) -> Value:
    """(x a) / b = x (a / b)."""
    return _scaled(m, x, a, b)


def _scaled(m: Match, x: Value, factor: Array, divisor: Array) -> Value:
    m.require(factor.dtype.kind == "f" and factor.dtype == divisor.dtype, "not floating point")
    require_order_kept(m)
    m.require(max(factor.size, divisor.size) >= np.broadcast(factor, divisor).size, "the constants together are larger")
    m.require(divisor.all(), "division by zero")
    wide = factor.astype(np.float64) / divisor.astype(np.float64)
    m.require(np.isfinite(wide).all() and wide.all(), "the constant is zero or not finite")
    result: Value = m.op.Mul(x, m.const(wide, like=factor))
    return result


@register
@dataclass(frozen=True)
class SimplifyArithmetic(RewritePass):
    """x * (1 / y) = x / y; factors, terms and divisors that are constant are one.

    Applies when: the values are floating point, and nobody reads the one in between.
    Keeps: integers, whose division truncates; constants that would take more room together.
    Not done: factors of zero, which hide infinities and NaN; results that are ranked.
    """

    info = PassInfo("simplify-arithmetic", opt_level=2)
    ranked: bool = option(False, "also where NonMaxSuppression or TopK ranks the result")
    rules = (
        multiply_by_reciprocal,
        product_of_factors,
        sum_of_terms,
        product_of_divisors,
        factor_of_divided,
        divided_product,
    )
