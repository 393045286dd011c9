"""Neutral operands, and bounds without effect."""

from __future__ import annotations

from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis.constants import one_element
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.element_types import is_float, of
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Match, const, either, one_of, only_read_by, op, rewrite, var, widens

_NEUTRAL: Final = {"Add": 0, "And": 1, "Div": 1, "Mul": 1, "Or": 0, "Pow": 1, "Sub": 0}


def _neutral(op_type: str, like: Array) -> float:
    """Return the neutral operand of an operator; of Max and Min the lowest and the highest number of the type."""
    if op_type in _NEUTRAL:
        return _NEUTRAL[op_type]
    low, high = (-np.inf, np.inf) if is_float(like) else (of(like.dtype).low, of(like.dtype).high)
    return low if op_type == "Max" else high


def _may_be_neutral(c: Value) -> bool:
    """Whether all elements of a constant are the neutral operand of some operator."""
    element = one_element(c.glance())
    return element is not None and any(element == _neutral(kind, element) for kind in ("Add", "Mul", "Max", "Min"))


_CONSTANT: Final = var("c", constant=True, when=_may_be_neutral)


@rewrite(
    either(
        one_of("Add", "And", "Max", "Min", "Mul", "Or")(var("x"), _CONSTANT, name="node"),
        one_of("Div", "Pow", "Sub")(var("x"), _CONSTANT, name="node"),
    )
)
def neutral_operand(m: Match, x: Value, c: Value) -> Value:
    """x * 1 = x / 1 = x ** 1 = x - 0 = x + (-0) = (x and true) = (x or false) = Max(x, -inf) = Min(x, inf) = x."""
    kind, element = m.node.op, one_element(c.glance())
    if element is None or element != _neutral(kind, element):
        m.skip()
    m.require(not widens(m, x, c), "the constant may raise the rank of the result")
    if kind in ("Add", "Sub") and is_float(element):
        m.require(np.signbit(element) == (kind == "Add"), "a zero of this sign turns others over")
    powers = kind != "Pow" or m.dtype(x) not in (0, TensorProto.INT64)
    m.require(powers, "runtimes compute powers of long integers as floats")
    return x


@register
class NeutralOperands(RewritePass):
    """Removes arithmetic and logic with a neutral operand.

    Applies when: the constant is the operation's neutral element, and changes neither rank nor shape.
    Keeps: type, shape and bits.
    Not done: 0 - x, 1 / x; x + 0.0, which turns -0.0 into 0.0 (see `simplify-arithmetic`).
    """

    info = PassInfo("neutral-operands", opt_level=1, ops=("Add", "And", "Div", "Max", "Min", "Mul", "Or", "Pow", "Sub"))
    rules = (neutral_operand,)


# min(max(x, a), b) is monotone, hence g(f(x)) = min(max(x, g(a)), g(b)), for overlapping ranges or not, and also where
# a > b, with the result b for every x. NaN stays NaN.


def bounds(m: Match, node: Node, low: Array | None, high: Array | None, like: Array) -> tuple[Array, Array]:
    """Return both bounds of a Clip or Relu; an absent bound is the largest finite number (Clip-11)."""
    if node.op == "Relu":
        return np.zeros((), like.dtype), np.array(np.inf if is_float(like) else of(like.dtype).high, like.dtype)
    low = np.array(of(like.dtype).low, like.dtype) if low is None else low
    high = np.array(of(like.dtype).high, like.dtype) if high is None else high
    m.require(low.size == high.size == 1, "a bound is no number")
    m.require(not np.isnan(low).any() and not np.isnan(high).any(), "a bound is NaN")
    negative = any((np.signbit(b) & (b == 0)).any() for b in (low, high))
    m.require(not negative, "a bound is -0.0: zeros would change sign")
    return low.reshape(()), high.reshape(())


_CLIP: Final = op.Clip(var("x"), const("a").opt(), const("b").opt(), name="inner", shared=True)
_BOUNDED: Final = either(_CLIP, op.Relu(var("x"), name="inner", shared=True))


@rewrite(either(op.Clip(_BOUNDED, const("c").opt(), const("d").opt(), name="outer"), op.Relu(_CLIP, name="outer")))
def bounds_of_bounds(
    m: Match, x: Value, a: Array | None = None, b: Array | None = None, c: Array | None = None, d: Array | None = None
) -> Value:
    """Clip(Clip(x, a, b), c, d) = Clip(x, Clip(a, c, d), Clip(b, c, d)); Relu is a Clip from 0."""
    only_read_by(m, m.inner, "Clip", "Relu")
    like = m.known(next((v for v in (a, b, c, d) if v is not None), None), "no bound is known")
    least, most = bounds(m, m.outer, c, d, like)
    low, high = (np.minimum(np.maximum(v, least), most) for v in bounds(m, m.inner, a, b, like))
    m.require(not is_float(low) or low.any() or high.any(), "all is zero: bounds of zero would let -0.0 pass")
    # case: Both bounds become zero
    # pass: clip-chains
    # skip: bounds_of_bounds "all is zero: bounds of zero would let -0.0 pass"
    # <ir_version: 8, opset_import: ["" : 17]>
    # g (float[N, 7] x) => (float[N, 7] y) <float a = {-0.5}> { h = Clip (x, "", a)  y = Relu (h) }
    return m.op.Clip(x, m.const(low, like=low), m.const(high, like=high), like=m.outer)


@register
class ClipChains(RewritePass):
    """Clip(Clip(x, a, b), c, d) = Clip(x, a', b'); Relu is a Clip from zero.

    Applies when: the bounds are constant, and the inner value has no other readers.
    Keeps: NaN, which no bound stops; infinities if a bound is absent: a Clip turns them into the largest number.
    Not done: Max and Min, which in runtimes may turn -0.0 into 0.0 (see `simplify-arithmetic`).
    """

    info = PassInfo("clip-chains", opt_level=1, ops=("Clip",))
    rules = (bounds_of_bounds,)
