"""Breakpoints of operators, and ranges of values: bounds, integers, absence of NaN."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from onnxopt.proto.element_types import BY_CODE
from onnxopt.proto.messages import attribute_value, tensor_to_array
from onnxopt.verification.model.dataflow import Forward
from onnxopt.verification.model.nodes import int_of, value_of
from onnxopt.verification.model.operators import BOUND, DATA, MUTUAL, STANDARD, Operator, having, operator
from onnxopt.verification.model.shapes import Shape

# Attributes of ai.onnx.ml with looked-up keys and comparands.
ML_KEYS: Final = frozenset((
    "keys_strings", "keys_int64s", "keys_floats", "keys_tensor", "cats_strings", "cats_int64s", "threshold",
    "nodes_values", "nodes_splits", "replaced_value_float", "replaced_value_int64", "stopwords", "pool_strings",
    "pool_int64s",
))  # fmt: skip
_STRINGS: Final = (AttributeProto.STRING, AttributeProto.STRINGS)
_MAX_WORDS: Final = 64
_MAX_BOUND: Final = 1e30  # larger bounds never take effect

Numbers = Callable[[str], list[float]]  # returns the elements of a small constant
_Attributes = Mapping[str, Any]
_Operands = Callable[[int], list[float]]

# (operator, operand): the breakpoints, by attributes and elements of constant operands.
_BREAKPOINTS: Final[dict[tuple[str, int], Callable[[_Attributes, _Operands], Iterable[float]]]] = {
    **{(kind, 0): lambda a, n: (0.5, 1.5, 2.5, -0.5) for kind in having("rounds")},
    **{(kind, 0): lambda a, n: (0.0,) for kind in ("Relu", "Abs", "Sign", "LeakyRelu", "PRelu")},
    ("PRelu", 1): lambda a, n: (0.0,),
    ("HardSwish", 0): lambda a, n: (-3.0, 3.0),
    ("HardSigmoid", 0): lambda a, n: [
        (y - a.get("beta", 0.5)) / a.get("alpha", 0.2) for y in (0, 1) if a.get("alpha", 0.2)
    ],
    ("IsNaN", 0): lambda a, n: (math.nan,),
    ("IsInf", 0): lambda a, n: (math.inf, -math.inf),
    ("OneHot", 0): lambda a, n: [sign * depth for depth in n(1) for sign in (1, -1)],
    ("Clip", 0): lambda a, n: [*(a[end] for end in ("min", "max") if end in a), *n(1), *n(2)],
    ("ThresholdedRelu", 0): lambda a, n: (a.get("alpha", 1.0),),
    ("Shrink", 0): lambda a, n: (a.get("lambd", 0.5), -a.get("lambd", 0.5)),
    ("QuantizeLinear", 0): lambda a, n: [
        scale * (bound - zero) for scale in n(1)[:1] for zero in (n(2) or [0.0])[:1] for bound in (-128, 0, 127, 255)
    ],
    ("TfIdfVectorizer", 0): lambda a, n: a.get("pool_int64s", ()),
    ("NegativeLogLikelihoodLoss", 1): lambda a, n: [a["ignore_index"]] if "ignore_index" in a else (),
    ("SoftmaxCrossEntropyLoss", 1): lambda a, n: [a["ignore_index"]] if "ignore_index" in a else (),
    ("NonMaxSuppression", 1): lambda a, n: n(4),  # the score threshold
}


def breakpoints(node: NodeProto, k: int, numbers: Numbers) -> list[float]:
    """Return the breakpoints of operand `k` of a node. `numbers`: returns the elements of a constant operand."""
    kind, found = node.op_type, list[float]()
    if kind in MUTUAL:
        found = _comparands(node, k, numbers)
    elif (kind, k) in _BREAKPOINTS:
        given = {a.name: attribute_value(a) for a in node.attribute if not a.ref_attr_name}
        found += _BREAKPOINTS[kind, k](given, lambda i: numbers(node.input[i]) if i < len(node.input) else [])
    takes_nan = kind in ("IsNaN", "Equal")
    return [n for n in found if abs(n) < _MAX_BOUND or (math.isnan(n) and takes_nan) or kind == "IsInf"]


def _comparands(node: NodeProto, k: int, numbers: Numbers) -> list[float]:
    found = [n for i, name in enumerate(node.input) if i != k for n in numbers(name)]
    is_own = node.op_type == "Equal" and len({*node.input}) == 1  # NaN is not equal to itself
    return [*found, math.nan] if is_own else found


def keys(node: NodeProto) -> list[float]:
    """Return the numbers that an operator of ai.onnx.ml looks up or compares with."""
    found = (attribute_value(a) for a in node.attribute if a.name in ML_KEYS and a.type not in _STRINGS)
    return [*dict.fromkeys(float(n) for value in found for n in np.ravel(value))]


def words(node: NodeProto, constants: Iterable[bytes]) -> list[str]:
    """Return strings that matter to an operator: looked up, removed, compared with, or containing a delimiter.

    constants: strings of constant operands.
    """
    found = [s for a in node.attribute if a.name in ML_KEYS for s in (*a.strings, *a.t.string_data)]
    texts = [s.decode(errors="replace") for s in (*found, *constants)[:_MAX_WORDS]]
    return [*texts, *_variants(node, texts)]


def _variants(node: NodeProto, texts: Sequence[str]) -> list[str]:
    """Return further strings for an operator that splits strings or changes the case."""
    if node.op_type == "StringSplit":
        mark = next((a.s.decode(errors="replace") for a in node.attribute if a.name == "delimiter"), "") or " "
        return [mark.join("abcd"), mark * 2 + "a"]
    if node.op_type == "StringNormalizer":
        return [*(text.swapcase() for text in texts), "Text", "TEXT"]
    return []


# -- ranges -----------------------------------------------------------------------------------------------
# Samplers of probes stay within the range: numbers impossible in any run prove nothing. Integer overflow is ignored.

_UINT8: Final = 2
_ELEMENTS: Final = 1 << 16  # in a constant; a larger constant has no range
_MOVES: Final = having("moves")
# Traits of operators with results independent of the operands' range.
_FRESH: Final = frozenset(("forgets", "others", "measures"))
# Functions that rise in every operand.
_RISING: Final[dict[str, Callable[..., float]]] = {
    "Exp": lambda x: math.exp(x) if x < 700.0 else math.inf,
    "Sigmoid": lambda x: 1 / (1 + math.exp(-x)) if x > -700.0 else 0.0,
    "Tanh": math.tanh,
    "Erf": math.erf,
    "Relu": lambda x: max(x, 0.0),
    "Round": lambda x: float(round(x)) if math.isfinite(x) else x,
    "Floor": lambda x: float(math.floor(x)) if math.isfinite(x) else x,
    "Ceil": lambda x: float(math.ceil(x)) if math.isfinite(x) else x,
    "Sign": lambda x: float((x > 0) - (x < 0)),
    "Sqrt": lambda x: math.sqrt(max(x, 0.0)),
    "Softplus": lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x))),
    "Clip": lambda x, low, high: min(max(x, low), high),
    "Min": lambda *x: min(x),
    "Max": lambda *x: max(x),
    "Sum": lambda *x: sum(x),
    "Mean": lambda *x: sum(x) / len(x),
    "Add": lambda x, y: x + y,
}
# Functions that rise or fall in each operand, between zeros of an operand.
_MONOTONE: Final[dict[str, Callable[..., float]]] = {
    "Abs": abs,
    "Neg": lambda x: -x,
    "Sub": lambda x, y: x - y,
    "Mul": lambda x, y: 0.0 if x == 0 or y == 0 else x * y,
    "Div": lambda x, y: x / y if math.isfinite(y) else 0.0,
}
_BENDS: Final = having("bends")
_WHOLE: Final = (having("bends", "affine") | {"Sum"}) - {"Div"}  # integers from integers
_MAX_EXACT: Final = 2.0**53  # below, float64 represents all integers
_ROUNDING: Final = 1e-5  # relative to a bound; computed numbers may exceed it by as much


class Range(NamedTuple):
    """Bounds of the elements of a value."""

    low: float = -math.inf
    high: float = math.inf
    integer: bool = False  # all elements are integers
    nan: bool = True  # elements may be NaN
    elements: Shape = ()  # of a vector computed from shapes, if known

    @property
    def never_negative(self) -> bool:
        """Whether no element is negative."""
        return self.low >= 0

    @property
    def is_bounded(self) -> bool:
        """Whether both bounds are finite."""
        return self.low > -math.inf and self.high < math.inf

    @property
    def is_finite(self) -> bool:
        """Whether no element is infinite or NaN."""
        return self.is_bounded and not self.nan

    def takes(self, low: float, high: float) -> bool:
        """Return whether numbers from `low` to `high` are in the range, up to rounding."""
        slack = _ROUNDING * max((abs(n) for n in (self.low, self.high) if math.isfinite(n)), default=0.0)
        return low >= self.low - slack and high <= self.high + slack

    def cut(self, values: Any) -> Any:
        """Return a float array clipped to the bounds, rounded if the range is of integers."""
        found = np.clip(values, self.low, self.high)
        whole = np.round(found) if self.integer else found
        return np.asarray(whole, values.dtype)


ANY: Final = Range()


def of_type(code: int) -> Range | None:
    """Return the range of an integer or boolean type; None for floats."""
    known = BY_CODE.get(code)
    if known is None or known.kind not in "iub":
        return None
    return Range(0.0, 1.0, True, False) if known.kind == "b" else Range(known.low, known.high, True, False)


class Ranges(Forward[Range]):
    """Forward analysis of ranges."""

    MUST: ClassVar = True
    PASSES: ClassVar = 1

    def analyse(self, graph: GraphProto) -> None:
        """Analyse a main graph, with arbitrary inputs of the declared types."""
        known = ((i.name, of_type(i.type.tensor_type.elem_type)) for i in graph.input)
        self.facts.update((name, fact) for name, fact in known if fact is not None)
        self.walk(graph)

    def join(self, a: Range, b: Range) -> Range | None:
        return joined(a, b)

    def of(self, name: str) -> Range | None:
        if (fact := self.facts.get(name)) is not None or name not in self.constants:
            return fact
        fact = self.facts[name] = _of_constant(self.constants[name])
        return fact

    def transfer(self, node: NodeProto, reads: Sequence[Range | None]) -> Sequence[Range | None]:
        row = operator(node.op_type, node.domain)
        if not row.traits.isdisjoint(_FRESH):
            fact = Range(row.low, row.high, row.integer, nan=False)
        else:
            known = _operands(node, row, reads)
            found = self._made(node, known) if known and node.domain in STANDARD else ANY
            fact = common(found, Range(row.low, row.high, row.integer, row.nan))
        is_said = fact != ANY
        return [fact if is_said and (k == 0 or node.op_type == "Split") else None for k in range(len(node.output))]

    def _made(self, node: NodeProto, known: Sequence[Range]) -> Range:
        kind, first = node.op_type, known[0]
        if kind == "Cast":
            return _cast(node, first)
        if kind in _MOVES:
            return self._moved(node, known)
        if kind in ("QuantizeLinear", "DequantizeLinear"):
            return self._quantized(node, known)
        if kind in _RISING or kind in _MONOTONE:
            return _computed(kind, known, is_square=kind == "Mul" and node.input[0] == node.input[1])
        traits = operator(kind).traits
        if "within" in traits:
            return first._replace(integer=first.integer and "exact" in traits)
        nan = not all(r.is_finite for r in known)
        return Range(0.0, nan=nan) if _is_never_negative(node, known) else Range(nan=nan or "like" not in traits)

    def _quantized(self, node: NodeProto, known: Sequence[Range]) -> Range:
        """Return the range of the zero point's type (QuantizeLinear), or of the scaled distance from it."""
        if node.op_type == "QuantizeLinear":
            zero = node.input[2] if len(node.input) > 2 else ""
            code = int_of(node, "output_dtype") or _UINT8
            if zero:
                code = self.constants[zero].data_type if zero in self.constants else 0
            return of_type(code) or ANY
        apart = _computed("Sub", [known[0], known[2]]) if len(known) > 2 else known[0]
        return _computed("Mul", [apart, known[1]])._replace(integer=False)

    def _moved(self, node: NodeProto, known: Sequence[Range]) -> Range:
        """Return the range over all operands that elements come from; Pad without a value adds zeros."""
        if node.op_type == "Pad":
            value = value_of(node, "value", 0.0)  # of older opsets
            known = known if len(known) > 1 else [*known, Range(value, value, value.is_integer(), False)]
        elif node.op_type == "Where":
            known = known[1:]
        elif node.op_type != "Concat":
            return known[0]
        return functools.reduce(joined, known)


def _is_never_negative(node: NodeProto, known: Sequence[Range]) -> bool:
    """Return whether a power, or a result with the sign of its operands, is never negative."""
    if node.op_type == "Pow":
        is_even = len(known) > 1 and known[1].low == known[1].high and known[1].low % 2 == 0
        return is_even or known[0].never_negative
    is_signed = "signed" in operator(node.op_type).traits and all(r.never_negative for r in known)
    return is_signed and all(a.f >= 0 for a in node.attribute)


def _operands(node: NodeProto, row: Operator, reads: Sequence[Range | None]) -> list[Range]:
    """Return the ranges of the operands that results are computed from."""
    if node.op_type == "Clip":
        return _clipped(node, reads)
    return [r or ANY for k, (name, r) in enumerate(zip(node.input, reads)) if name and row.role(k) in (DATA, BOUND)]


def _clipped(node: NodeProto, reads: Sequence[Range | None]) -> list[Range]:
    """Return the ranges of operand and bounds; a missing bound is infinite, and in older opsets an attribute."""
    given = {a.name: a.f for a in node.attribute}
    ends = given.get("min", -math.inf), given.get("max", math.inf)
    bounds = [Range(n, n, not given, False) for n in ends]
    found = [r or ANY if name else bounds[k - 1] for k, (name, r) in enumerate(zip(node.input, reads))]
    return [*found, *bounds[len(found) - 1 :]]


def joined(a: Range, b: Range) -> Range:
    elements = a.elements if a.elements == b.elements else ()
    return Range(min(a.low, b.low), max(a.high, b.high), a.integer and b.integer, a.nan or b.nan, elements)


def _of_constant(tensor: TensorProto) -> Range:
    kind = BY_CODE.get(tensor.data_type)
    if kind is None or kind.kind not in "fiub" or not 0 < math.prod(tensor.dims) <= _ELEMENTS:
        return of_type(tensor.data_type) or ANY
    try:
        array = tensor_to_array(tensor).astype(np.float64)
    except ValueError:  # data missing from the file
        return ANY
    low, high = float(array.min()), float(array.max())
    if math.isnan(low) or (kind.kind != "f" and max(-low, high) >= _MAX_EXACT):
        return of_type(tensor.data_type) or ANY
    return Range(low, high, bool((array == np.round(array)).all()), nan=False)


def _cast(node: NodeProto, first: Range) -> Range:
    limits = of_type(int_of(node, "to", 1))
    if limits is None:
        return first
    low, high = (float(math.trunc(n)) if math.isfinite(n) else n for n in first[:2])
    is_inside = limits.low <= low and high <= limits.high and not first.nan
    return Range(low, high, True, False) if is_inside and limits.high > 1 else limits


def common(a: Range, b: Range) -> Range:
    """Return the numbers in both ranges; any number if the ranges are disjoint."""
    low, high = max(a.low, b.low), min(a.high, b.high)
    return Range(low, high, a.integer or b.integer, a.nan or b.nan) if low <= high else ANY


def _computed(kind: str, known: Sequence[Range], *, is_square: bool = False) -> Range:
    """Return the range of a function, computed at bounds of the operands. `is_square`: of the same operand twice."""
    if kind == "Div" and known[1].low <= 0 <= known[1].high:
        return ANY
    nan = _may_be_nan(kind, known)
    corners = _corners(kind, known, is_square=is_square)
    compute = _RISING.get(kind) or _MONOTONE[kind]
    ends = [n for n in itertools.starmap(compute, corners) if not math.isnan(n)]
    return Range(min(ends), max(ends), kind in _WHOLE and all(r.integer for r in known), nan) if ends else ANY


def _may_be_nan(kind: str, known: Sequence[Range]) -> bool:
    sums = len(known) > 1 and kind not in _BENDS  # of infinities: not a number
    return kind == "Div" or any(r.nan for r in known) or (sums and not all(r.is_finite for r in known))


def _corners(kind: str, known: Sequence[Range], *, is_square: bool) -> Iterable[tuple[float, ...]]:
    """Return the bounds of the operands at which a function is least and largest."""
    if kind in _RISING:
        return zip(*(r[:2] for r in known))
    if kind == "Abs" or is_square:  # least near zero
        low, high = known[0][:2]
        return [(n,) * len(known) for n in (low, min(max(low, 0.0), high), high)]
    return itertools.product(*(r[:2] for r in known))
