"""Breakpoints: numbers at which an operator's behaviour changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from onnxopt.verification.model.constants import numbers as numbers_of
from onnxopt.verification.model.operators import MUTUAL, having

if TYPE_CHECKING:
    from onnx import NodeProto

# Attributes of ai.onnx.ml with looked-up keys and comparands.
ML_KEYS: Final = frozenset((
    "keys_strings", "keys_int64s", "keys_floats", "keys_tensor", "cats_strings", "cats_int64s", "threshold",
    "nodes_values", "nodes_splits", "replaced_value_float", "replaced_value_int64", "stopwords", "pool_strings",
    "pool_int64s",
))  # fmt: skip
_FIXED: Final[dict[str, tuple[float, ...]]] = {
    **dict.fromkeys(having("rounds"), (0.5, 1.5, 2.5, -0.5)),
    **dict.fromkeys(("Relu", "Abs", "Sign", "LeakyRelu", "PRelu"), (0.0,)),
    "HardSwish": (-3.0, 3.0),
    "IsNaN": (math.nan,),
    "IsInf": (math.inf, -math.inf),
}
_OF_ALL_OPERANDS: Final = ("PRelu",)
_QUANTIZED: Final = (-128, 0, 127, 255)
_LOSSES: Final = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
_SCORE: Final = 4  # operand of NonMaxSuppression: the score threshold
_MAX_BOUND: Final = 1e30  # larger bounds never take effect

Numbers = Callable[[str], list[float]]  # returns the elements of a small constant


def breakpoints(node: NodeProto, k: int, numbers: Numbers) -> Iterator[float]:
    """Yield the breakpoints of operand `k` of a node. `numbers`: returns the elements of a constant operand."""
    for number in _breakpoints(node, k, numbers):
        is_nan = math.isnan(number) and node.op_type in ("IsNaN", "Equal")
        if abs(number) < _MAX_BOUND or is_nan or node.op_type == "IsInf":
            yield number


def _breakpoints(node: NodeProto, k: int, numbers: Numbers) -> Iterable[float]:
    kind = node.op_type
    if kind in MUTUAL:
        return _of_others(node, k, numbers)
    if k == 1:
        return _second(node, numbers)
    if kind in _FIXED and (k == 0 or kind in _OF_ALL_OPERANDS):
        return _FIXED[kind]
    return _COMPUTED[kind](node, numbers) if k == 0 and kind in _COMPUTED else ()


def _of_others(node: NodeProto, k: int, numbers: Numbers) -> Iterator[float]:
    if node.op_type == "Equal" and len({*node.input}) == 1:  # NaN is not equal to itself
        yield math.nan
    for name in (name for i, name in enumerate(node.input) if i != k):
        yield from numbers(name)


def _second(node: NodeProto, numbers: Numbers) -> Iterable[float]:
    if node.op_type in _OF_ALL_OPERANDS:
        return _FIXED[node.op_type]
    if node.op_type in _LOSSES:
        return [a.i for a in node.attribute if a.name == "ignore_index"]
    if node.op_type == "NonMaxSuppression" and len(node.input) > _SCORE:
        return numbers(node.input[_SCORE])
    return ()


def _clip(node: NodeProto, numbers: Numbers) -> list[float]:
    found = [a.f for a in node.attribute if a.name in ("min", "max")]
    return found + [n for name in node.input[1:] for n in numbers(name)]


def _hard_sigmoid(node: NodeProto, numbers: Numbers) -> Sequence[float]:
    alpha, beta = _attribute(node, "alpha", 0.2), _attribute(node, "beta", 0.5)
    return (-beta / alpha, (1 - beta) / alpha) if alpha else ()


def _shrink(node: NodeProto, numbers: Numbers) -> Sequence[float]:
    bound = _attribute(node, "lambd", 0.5)
    return bound, -bound


def _quantize(node: NodeProto, numbers: Numbers) -> list[float]:
    scales, zeros = ([*numbers(name)] for name in (*node.input[1:3], "", "")[:2])
    zero = zeros[0] if zeros else 0.0
    return [scale * (bound - zero) for scale in scales[:1] for bound in _QUANTIZED]


_COMPUTED: Final[dict[str, Callable[[NodeProto, Numbers], Iterable[float]]]] = {
    "Clip": _clip,
    "HardSigmoid": _hard_sigmoid,
    "ThresholdedRelu": lambda node, numbers: (_attribute(node, "alpha", 1.0),),
    "Shrink": _shrink,
    "QuantizeLinear": _quantize,
    "TfIdfVectorizer": lambda node, numbers: [n for a in node.attribute if a.name == "pool_int64s" for n in a.ints],
}


def keys(node: NodeProto) -> list[float]:
    """Return the numbers that an operator of ai.onnx.ml looks up or compares with."""
    found: dict[float, None] = {}
    for a in (a for a in node.attribute if a.name in ML_KEYS):
        found.update(dict.fromkeys((*a.floats, *a.ints, *(numbers_of(a.t) if a.type == a.TENSOR else ()))))
        found.update(dict.fromkeys([a.f] if a.type == a.FLOAT else [a.i] if a.type == a.INT else []))
    return list(found)


def words(node: NodeProto, constants: Iterable[bytes]) -> list[str]:
    """Return strings that matter to an operator: looked up, removed, compared with, or containing a delimiter.

    constants: strings of constant operands.
    """
    found = [s for a in node.attribute if a.name in ML_KEYS for s in (*a.strings, *a.t.string_data)]
    texts = [s.decode(errors="replace") for s in (*found, *constants)[:_MAX_WORDS]]
    if node.op_type == "StringSplit":
        mark = next((a.s.decode(errors="replace") for a in node.attribute if a.name == "delimiter"), "") or " "
        texts += [mark.join("abcd"), mark * 2 + "a"]
    elif node.op_type == "StringNormalizer":
        texts += [*(text.swapcase() for text in texts), "Text", "TEXT"]
    return texts


_MAX_WORDS: Final = 64


def _attribute(node: NodeProto, name: str, default: float) -> float:
    return next((a.f for a in node.attribute if a.name == name), default)
