"""Numbers at which an operator changes what it does with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from onnx import NodeProto

# Those that what is an edge itself goes with one side of.
COMPARING: Final = frozenset(("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"))
_BOUNDING: Final = COMPARING | {"Min", "Max", "Mod"}
_STEPS: Final = frozenset(("Round", "Floor", "Ceil"))
_LOSSES: Final = frozenset(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"))
_KINKS: Final = frozenset(("Relu", "Abs", "Sign", "LeakyRelu", "PRelu"))
# Operators behind which a network looks the same until its values are large: a bound that is never reached is not seen.
CUTTING: Final = frozenset((
    "Clip", "HardSwish", "HardSigmoid", "QuantizeLinear", "ThresholdedRelu", "Shrink", "Min", "Max",
))  # fmt: skip
# Those behind which nothing is left of what is below zero.
MUTING: Final = frozenset(("Relu", "ThresholdedRelu"))
# Those behind which all numbers on one side of a bound are alike, and the largest or smallest of a row may be any of
# them: that is not seen where each row has some on the other side.
LEVELLING: Final = (_BOUNDING - {"Mod"}) | {
    "Relu", "Sign", "Clip", "ThresholdedRelu", "Shrink", "HardSwish", "HardSigmoid",
}  # fmt: skip
# Those behind which what some numbers are leaves no trace, as long as they are on one side of a bound, or not the
# largest.
DROPPING: Final = MUTING | CUTTING | {"Where", "ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool"}
# Those that make numbers of a row, alike for few of them.
MATRICES: Final = frozenset(("MatMul", "Gemm"))
# Attributes of ai.onnx.ml: what is looked up, and what is compared with.
ML_KEYS: Final = frozenset((
    "keys_strings", "keys_int64s", "keys_floats", "keys_tensor", "cats_strings", "cats_int64s", "threshold",
    "nodes_values", "nodes_splits", "replaced_value_float", "replaced_value_int64", "stopwords", "pool_strings",
    "pool_int64s",
))  # fmt: skip
_SCORE: Final = 4  # operand of a NonMaxSuppression: the least that counts
_LARGEST: Final = 1e30  # what is beyond is a bound that is none


def edges(node: NodeProto, k: int, numbers: Callable[[str], list[float]]) -> Iterator[float]:
    """Of what `node` reads as its operand `k`; `numbers` of the constants it reads."""
    for number in _edges(node, k, numbers):
        is_nan = math.isnan(number) and node.op_type in ("IsNaN", "Equal")
        if abs(number) < _LARGEST or is_nan or node.op_type == "IsInf":
            yield number


def _edges(node: NodeProto, k: int, numbers: Callable[[str], list[float]]) -> Iterator[float]:
    kind = node.op_type
    if kind in _BOUNDING:
        if kind == "Equal" and len({*node.input}) == 1:  # what is no number is not equal to itself
            yield math.nan
        for other in (name for i, name in enumerate(node.input) if i != k):
            yield from numbers(other)
    elif kind in _KINKS:
        yield 0.0
    elif k == 1 and kind in _LOSSES:
        yield from (a.i for a in node.attribute if a.name == "ignore_index")
    elif k == 1 and kind == "NonMaxSuppression":
        yield from numbers(node.input[_SCORE]) if len(node.input) > _SCORE else []
    elif k:
        return
    elif kind == "Clip":
        yield from (a.f for a in node.attribute if a.name in ("min", "max"))
        for name in node.input[1:]:
            yield from numbers(name)
    elif kind in _STEPS:
        yield from (0.5, 1.5, 2.5, -0.5)
    elif kind == "HardSwish":
        yield from (-3.0, 3.0)
    elif kind == "HardSigmoid":
        alpha, beta = _attribute(node, "alpha", 0.2), _attribute(node, "beta", 0.5)
        if alpha:
            yield from (-beta / alpha, (1 - beta) / alpha)
    elif kind == "ThresholdedRelu":
        yield _attribute(node, "alpha", 1.0)
    elif kind == "Shrink":
        bound = _attribute(node, "lambd", 0.5)
        yield from (bound, -bound)
    elif kind == "QuantizeLinear":
        scales, zeros = numbers(node.input[1]), numbers(node.input[2]) if len(node.input) > 2 else []
        zero = zeros[0] if zeros else 0.0
        for scale in scales[:1]:
            yield from (scale * (bound - zero) for bound in (-128, 0, 127, 255))
    elif kind == "TfIdfVectorizer":
        yield from (n for a in node.attribute if a.name == "pool_int64s" for n in a.ints)
    elif kind == "IsNaN":
        yield math.nan
    elif kind == "IsInf":
        yield from (math.inf, -math.inf)


def _attribute(node: NodeProto, name: str, default: float) -> float:
    return next((a.f for a in node.attribute if a.name == name), default)
