"""Decomposed activations become standard operators."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from onnx import TensorProto

from onnxopt.graph import Value
from onnxopt.pipeline import PassInfo, RewritePass, option, register
from onnxopt.proto.element_types import FLOATS, of
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Call, Match, Pattern, const, either, one_of, op, rewrite, var, widens
from onnxopt.rewriting.near_zero import told_from_zero
from onnxopt.rewriting.rule import FOLDS, is_number, known_axes

_ROUNDING: Final = 2.0**-22  # of a float32 attribute, perhaps written with seven digits


def near(m: Match, x: Value, constant: Array, wanted: float) -> None:
    """Decline unless `constant` is a single number, of no higher rank than x, equal to `wanted` within rounding."""
    m.require(is_number(m, constant, x), "a constant is not one number")
    m.require(math.isclose(float(constant.item()), wanted, rel_tol=of(constant.dtype).epsilon), "other constants")


def half_of_product(factor: Pattern) -> tuple[Call, ...]:
    """Return patterns of x * factor / 2 in any order; `half` is the constant."""
    x, half = var("x"), const("half")
    product = op.Mul(x, factor)
    return op.Mul(product, half), op.Mul(op.Mul(x, half), factor), op.Mul(x, op.Mul(factor, half)), op.Div(product, 2)


def half_and_half(function: Pattern) -> tuple[Call, ...]:
    """Return patterns of x (function / 2 + 1 / 2) and x / 2 + x / 2 * function."""
    x, half = var("x"), const("half")
    part = op.Mul(x, half, name="part")
    return op.Mul(x, op.Add(op.Mul(function, half), 0.5)), op.Add(op.Mul(part, function), part)


_ERF: Final = op.Erf(either(op.Div(var("x"), const("k")), op.Mul(var("x"), const("r"))))
_SERIES: Final = op.Mul(op.Add(var("x"), op.Mul(op.Pow(var("x"), 3), const("cubic"))), const("root"))
_GATE: Final = either(_ERF, op.Tanh(_SERIES))


@rewrite(either(*half_of_product(op.Add(_GATE, 1, name="gate", shared=True)), *half_and_half(_GATE)))
def gelu(
    m: Match,
    x: Value,
    half: Array | None = None,
    k: Array | None = None,
    r: Array | None = None,
    cubic: Array | None = None,
    root: Array | None = None,
) -> Value:
    """x (1 + erf(x / √2)) / 2 = x (1/2 + erf(x / √2) / 2) = x/2 + x/2 erf(x / √2) = Gelu(x).

    With tanh(√(2/π) (x + 0.044715 x³)) in place of erf(x / √2): Gelu(x, approximate = tanh).
    """
    gate = m.bindings.nodes.get("gate")  # each of its readers may be another Gelu of x
    m.require(gate is None or gate.output.feeds_only(lambda u: u.op == "Mul"), "Add output used elsewhere")
    guard(m, x, 20, "Gelu")
    for constant, wanted in (
        (half, 0.5),
        (k, math.sqrt(2)),
        (r, math.sqrt(0.5)),
        (cubic, 0.044715),
        (root, math.sqrt(2 / math.pi)),
    ):
        if constant is not None:
            near(m, x, constant, wanted)
    return m.op.Gelu(x) if cubic is None else m.op.Gelu(x, approximate="tanh")


_TURNED: Final = either(op.Neg(var("x")), op.Mul(var("x"), -1))
_ONE_AND_EXP: Final = op.Add(op.Exp(_TURNED), 1)


@rewrite(either(op.Div(1, _ONE_AND_EXP), op.Reciprocal(_ONE_AND_EXP), op.Div(var("x"), _ONE_AND_EXP)))
def sigmoid(m: Match, x: Value) -> Value:
    """1 / (1 + exp(-x)) = Sigmoid(x), x / (1 + exp(-x)) = x Sigmoid(x)."""
    m.require(m.dtype(x) in FLOATS, "not floating point")
    m.require(not told_from_zero(m.anchor.output), "runtimes round small ones to 0, whose logarithm is infinite")
    made = m.op.Sigmoid(x)
    return m.op.Mul(x, made) if m.anchor.inputs[0] is x else made


@rewrite(op.Div(var("x"), op.Add(op.Abs(var("x")), 1)))
def softsign(m: Match, x: Value) -> Value:
    """x / (1 + |x|) = Softsign(x)."""
    m.require(m.dtype(x) == TensorProto.FLOAT, "not float32")
    return m.op.Softsign(x)


_GREATER: Final = one_of("Greater", "GreaterOrEqual")(var("x"), 0, name="side", shared=True)
_LESS: Final = one_of("Less", "LessOrEqual")(var("x"), 0, name="side", shared=True)
_SLOPED: Final = op.Mul(var("x"), const("slope"))


@rewrite(either(op.Where(_GREATER, var("x"), _SLOPED), op.Where(_LESS, _SLOPED, var("x")), op.Max(var("x"), _SLOPED)))
def leaky_relu(m: Match, x: Value, slope: Array) -> Value:
    """Where(x > 0, x, a x) = LeakyRelu(x, alpha = a); so is Max(x, a x), where 0 < a < 1."""
    between = m.anchor.op == "Where" or ((slope > 0).all() and (slope < 1).all())
    m.require(between, "the slope is not between 0 and 1")
    m.require(m.dtype(x) == TensorProto.FLOAT, "not float32")
    m.require(is_number(m, slope, x), "a slope for each element")
    m.require(np.isfinite(slope).all(), "an infinite slope")
    return m.op.LeakyRelu(x, alpha=float(slope.item()))


_BELOW_ZERO: Final = op.Mul(op.Relu(_TURNED), const("slope"))


@rewrite(either(op.Sub(op.Relu(var("x")), _BELOW_ZERO), op.Add(op.Relu(var("x")), _BELOW_ZERO)))
def prelu(m: Match, x: Value, slope: Array) -> Value:
    """Relu(x) - a Relu(-x) = PRelu(x, a)."""
    dims = m.shape(x)
    m.require(m.opset >= 7 and m.dtype(x) == TensorProto.FLOAT, "not float32, or before opset 7")
    m.require(np.isfinite(slope).all(), "an infinite slope")
    m.require(dims is not None and not widens(m, x, m.value("slope")), "a slope may be for more than x")
    return m.op.PRelu(x, m.const(slope if m.anchor.op == "Sub" else -slope, like=slope))


def saturating(*same: Pattern) -> Pattern:
    """Return the pattern of a (exp(x) - 1), perhaps of values equal to x below zero.

    JAX clips larger values, whose exponential might be infinite.
    """
    power = op.Exp(either(var("x"), op.Min(var("x"), 0, shared=True), *same))
    less_one = either(op.Sub(power, 1), op.Add(power, -1))
    return either(op.Mul(less_one, const("alpha")), less_one)


@rewrite(
    either(
        op.Where(_GREATER, var("x"), saturating(op.Where(_GREATER, var("other"), var("x"), shared=True))),
        op.Where(_LESS, saturating(op.Where(_LESS, var("x"), var("other"), shared=True)), var("x")),
        op.Add(op.Relu(var("x")), op.Min(saturating(), 0)),
    )
)
def elu(m: Match, x: Value, other: Value | None = None, alpha: Array | None = None) -> Value:
    """Where(x > 0, x, a (exp(x) - 1)) = Relu(x) + Min(a (exp(x) - 1), 0) = Elu(x, alpha = a)."""
    m.require(m.dtype(x) == TensorProto.FLOAT, "not float32")
    m.require(alpha is None or (is_number(m, alpha, x) and 0 < alpha.item() < math.inf), "no finite factor above 0")
    m.require(other is None or not widens(m, x, other), "the choice that is not taken may widen x")
    return m.op.Elu(x, alpha=1.0 if alpha is None else float(alpha.item()))


@rewrite(op.Mul(op.Elu(var("x"), name="elu"), const("gamma")))
def selu(m: Match, x: Value, gamma: Array) -> Value:
    """c Elu(x, alpha = a) = Selu(x, alpha = a, gamma = c)."""
    m.require(m.dtype(x) == TensorProto.FLOAT, "not float32")
    m.require(is_number(m, gamma, x) and np.isfinite(gamma).all(), "a factor for each element")
    alpha = float(m.elu.attr("alpha"))
    m.require(abs(alpha * gamma.item()) <= np.finfo(np.float32).max, "runtimes multiply both, and that overflows")
    return m.op.Selu(x, alpha=alpha, gamma=float(gamma.item()))


_CLIPPED: Final = op.Clip(op.Add(var("x"), const("b")), 0, const("top"))


@rewrite(either(op.Div(_CLIPPED, const("top")), op.Mul(_CLIPPED, const("part"))))
def hard_sigmoid(m: Match, x: Value, b: Array, top: Array, part: Array | None = None) -> Value:
    """Clip(x + b, 0, h) / h = HardSigmoid(x, alpha = 1/h, beta = b/h)."""
    m.require(m.dtype(x) == TensorProto.FLOAT, "not float32")
    one = is_number(m, top, x) and is_number(m, b, x) and top.item() > 0
    m.require(one and math.isfinite(top.item()), "bounds for each element")
    m.require(math.isfinite(b.item()), "the term is not finite")
    if part is not None:
        near(m, x, part, 1 / top.item())
    return m.op.HardSigmoid(x, alpha=1 / top.item(), beta=b.item() / top.item())


@rewrite(op.Clip(op.Add(either(op.Mul(var("x"), const("a")), op.Div(var("x"), const("h"))), const("b")), 0, 1))
def hard_sigmoid_of_line(m: Match, x: Value, b: Array, a: Array | None = None, h: Array | None = None) -> Value:
    """Clip(a x + b, 0, 1) = HardSigmoid(x, alpha = a, beta = b)."""
    m.require(m.dtype(x) == TensorProto.FLOAT, "not float32")
    given = [c for c in (a, h, b) if c is not None]
    one = all(is_number(m, c, x) and np.isfinite(c).all() and c.all() for c in given)
    m.require(one, "no finite number each")
    alpha = a.item() if a is not None else 1 / h.item() if h is not None else 1.0
    return m.op.HardSigmoid(x, alpha=alpha, beta=b.item())


_RAMP: Final = op.Clip(op.Add(var("x"), 3), 0, 6)


@rewrite(
    either(
        op.Div(op.Mul(var("x"), _RAMP), 6),
        op.Mul(op.Div(var("x"), 6), _RAMP),
        op.Mul(op.Mul(var("x"), _RAMP), const("part")),
        op.Mul(op.Mul(var("x"), const("part")), _RAMP),
    )
)
def hard_swish_of_clip(m: Match, x: Value, part: Array | None = None) -> Value:
    """x Clip(x + 3, 0, 6) / 6 = HardSwish(x), before opset 14 x HardSigmoid(x; 1/6, 1/2)."""
    m.require(m.dtype(x) in FLOATS, "not floating point")
    m.require(m.dtype(x) != TensorProto.DOUBLE, "of float64 runtimes have no HardSwish")
    if part is not None:
        near(m, x, part, 1 / 6)
    if m.opset >= 14:
        return m.op.HardSwish(x)
    m.require(m.opset >= 6 and m.dtype(x) == TensorProto.FLOAT, "of halves runtimes have no HardSigmoid")
    return m.op.Mul(x, m.op.HardSigmoid(x, alpha=1 / 6, beta=0.5))


@rewrite(op.Mul(var("x"), op.HardSigmoid(var("x"), name="gate")))
def hard_swish(m: Match, x: Value) -> Value:
    """x HardSigmoid(x; 1/6, 1/2) = HardSwish(x)."""
    guard(m, x, 14, "HardSwish")
    fits = math.isclose(m.gate.attr("alpha"), 1 / 6, rel_tol=_ROUNDING) and m.gate.attr("beta") == 0.5
    m.require(fits, "other constants")
    return m.op.HardSwish(x)


@rewrite(op.Mul(var("x"), op.Sigmoid(either(op.Mul(var("x"), const("alpha")), var("x")))))
def swish_of_sigmoid(m: Match, x: Value, alpha: Array | None = None) -> Value:
    """x Sigmoid(a x) = Swish(x, alpha = a)."""
    if m.options is not None and not m.options.swish:
        m.skip()
    guard(m, x, 24, "Swish")
    m.require(alpha is None or is_number(m, alpha, x), "a factor for each element")
    factor: dict[str, Any] = {} if alpha is None else {"alpha": float(alpha.item())}
    result: Value = m.op.Swish(x, **factor)
    return result


@rewrite(op.ReduceMean(var("x"), ..., name="mean"))
def global_average_pool(m: Match, x: Value) -> Value:
    """ReduceMean(x, all axes but batch and channels) = GlobalAveragePool(x)."""
    if m.options is not None and not m.options.pooling:
        m.skip()
    rank = m.rank(x)
    m.require(rank is not None and rank > 2 and m.dtype(x) in FLOATS, "not an image of floats")
    axes = known_axes(m, m.mean)
    spatial = axes is not None and sorted(a % (rank or 1) for a in axes) == list(range(2, rank or 0))
    m.require(spatial and m.mean.keeps_dims, "not the mean over the image, dims kept")
    return m.op.GlobalAveragePool(x)


def guard(m: Match, x: Value, opset: int, name: str) -> None:
    m.require(m.opset >= opset, f"{name} is there from opset {opset} on")
    m.require(m.dtype(x) in FLOATS, "not floating point")


@register
@dataclass(eq=False, repr=False)
class FuseActivation(RewritePass):
    """Gelu (opset 20, by erf and by tanh), HardSwish (opset 14), Sigmoid, Elu and others in place of their formulas.

    Swish (opset 24) and GlobalAveragePool only with the options `swish` and `pooling`: onnxruntime has a faster
    operator of its own for the former, found by its formula, and takes up to twice as long for the latter.

    Applies when: the constants match, and inner values have no other readers.
    Not done: Sigmoid read by a logarithm, divisor, sign or similar, which distinguishes zeros from small numbers.
    """

    info = PassInfo("fuse-activation", opt_level=3, after=("simplify-arithmetic",), before=FOLDS)
    swish: bool = option(False, "Swish too")
    pooling: bool = option(False, "GlobalAveragePool too")
    rules = (
        gelu,
        sigmoid,
        softsign,
        leaky_relu,
        prelu,
        elu,
        selu,
        hard_sigmoid,
        hard_sigmoid_of_line,
        hard_swish_of_clip,
        hard_swish,
        swish_of_sigmoid,
        global_average_pool,
    )
