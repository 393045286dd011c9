"""Breakpoints of operators, and ranges of values: bounds, integers, absence of NaN."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from onnx import FunctionProto, GraphProto, NodeProto, TensorProto

from onnxopt.proto.element_types import BY_CODE
from onnxopt.proto.messages import tensor_to_array
from onnxopt.verification.model.dataflow import Forward
from onnxopt.verification.model.nodes import int_of
from onnxopt.verification.model.nodes import numbers as numbers_of
from onnxopt.verification.model.operators import BOUND, DATA, MUTUAL, STANDARD, having, operator

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


def _clip_bounds(node: NodeProto, numbers: Numbers) -> list[float]:
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
    "Clip": _clip_bounds,
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


# -- ranges -----------------------------------------------------------------------------------------------
# Samplers of probes stay within the range: numbers impossible in any run prove nothing. Integer overflow is ignored.

_UINT8: Final = 2
_ELEMENTS: Final = 1 << 16  # in a constant; a larger constant has no range
_MOVES: Final = having("moves")
# Traits of operators with results independent of the operands' range.
_FRESH: Final = frozenset(("forgets", "others", "measures"))
_PAIRED: Final = {"Add", "Sub", "Mul", "Div", "Sum", "Mean", "Min", "Max", "Pow", "Mod"}
_RISING: Final[dict[str, Callable[[float], float]]] = {
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
}
_KEEPING: Final = having("within")
# Non-negative operands give a non-negative result.
_SIGNED: Final = having("signed")
_ROUNDING: Final = 1e-5  # relative to a bound; computed numbers may exceed it by as much


class Range(NamedTuple):
    """Bounds of the elements of a value."""

    low: float = -math.inf
    high: float = math.inf
    integer: bool = False  # all elements are integers
    nan: bool = True  # elements may be NaN

    @property
    def never_negative(self) -> bool:
        """Whether no element is negative."""
        return self.low >= 0

    @property
    def is_bounded(self) -> bool:
        """Whether both bounds are finite."""
        return self.low > -math.inf and self.high < math.inf

    def takes(self, low: float, high: float) -> bool:
        """Return whether numbers from `low` to `high` are in the range, up to rounding."""
        slack = _ROUNDING * max((abs(n) for n in (self.low, self.high) if math.isfinite(n)), default=0.0)
        return low >= self.low - slack and high <= self.high + slack

    def cut(self, values: Any) -> Any:
        """Return a float array clipped to the bounds, rounded if the range is of integers."""
        import numpy as np

        found = np.clip(values, self.low, self.high)
        whole = np.round(found) if self.integer else found
        return np.asarray(whole, values.dtype)


ANY: Final = Range()


def ranges(
    nodes: Sequence[NodeProto],
    constants: Mapping[str, TensorProto],
    given: Mapping[str, Range] | None = None,
    functions: Iterable[FunctionProto] = (),
) -> dict[str, Range]:
    """Return the known ranges of values computed by nodes. `given`: ranges of fed values."""
    found = Ranges(functions)
    found.constants.update(constants)
    found.facts.update(given or {})
    found.follow(nodes)
    return found.facts


def of_type(code: int) -> Range | None:
    """Return the range of an integer or boolean type; None for floats."""
    known = BY_CODE.get(code)
    if known is None or known.kind not in "iub":
        return None
    return Range(0.0, 1.0, True, False) if known.kind == "b" else Range(known.low, known.high, True, False)


class Ranges(Forward[Range]):
    """Forward analysis of ranges."""

    MUST: ClassVar = True

    def analyse(self, graph: GraphProto) -> None:
        """Analyse a main graph, with arbitrary inputs of the declared types."""
        known = ((i.name, of_type(i.type.tensor_type.elem_type)) for i in graph.input)
        self.facts.update((name, fact) for name, fact in known if fact is not None)
        self.walk(graph)

    def join(self, a: Range, b: Range) -> Range | None:
        return _joined(a, b)

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
            data = [self.of(n) for k, n in enumerate(node.input) if n and row.role(k) in (DATA, BOUND)]
            found = self._made(node, [r or ANY for r in data]) if data and node.domain in STANDARD else ANY
            fact = _common(found, Range(row.low, row.high, row.integer, row.nan))
        is_said = fact != ANY
        return [fact if is_said and (k == 0 or node.op_type == "Split") else None for k in range(len(node.output))]

    def _made(self, node: NodeProto, known: Sequence[Range]) -> Range:
        kind, first = node.op_type, known[0]
        if kind in _UNARY:
            return _UNARY[kind](node, known)
        if kind in _MOVES:
            return self._moved(node, known)
        if kind in _RISING:
            low, high = _RISING[kind](first.low), _RISING[kind](first.high)
            return Range(low, high, first.integer and kind == "Relu", first.nan)
        if kind in _PAIRED:
            return _paired(node, known)
        if kind in ("QuantizeLinear", "DequantizeLinear"):
            return self._quantized(node, known)
        if kind in _KEEPING:
            return first._replace(integer=first.integer and kind not in ("ReduceMean", "GlobalAveragePool"))
        nan = any(r.nan for r in known) or any(not math.isfinite(n) for r in known for n in r[:2])
        if kind in _SIGNED and all(r.never_negative for r in known) and all(a.f >= 0 for a in node.attribute):
            return Range(0.0, nan=nan)
        return Range(nan=nan or kind not in having("like"))

    def _quantized(self, node: NodeProto, known: Sequence[Range]) -> Range:
        """Return the range of the zero point's type (QuantizeLinear), or of the scaled distance from it."""
        if node.op_type == "QuantizeLinear":
            zero = node.input[2] if len(node.input) > 2 else ""
            code = int_of(node, "output_dtype") or _UINT8
            if zero:
                code = self.constants[zero].data_type if zero in self.constants else 0
            return of_type(code) or ANY
        first, scale = known[0], known[1]
        least, most = (known[2].low, known[2].high) if len(known) > 2 else (0.0, 0.0)
        ends = [_product(m, n) for m in (first.low - most, first.high - least) for n in scale[:2]]
        return Range(min(ends), max(ends), nan=not first.is_bounded or scale.nan)

    def _moved(self, node: NodeProto, known: Sequence[Range]) -> Range:
        """Return the range over all operands that elements come from; Pad without a value adds zeros."""
        if node.op_type == "Pad":
            value = _attribute(node, "value", 0.0)  # of older opsets
            known = known if len(known) > 1 else [*known, Range(value, value, value.is_integer(), False)]
        elif node.op_type == "Where":
            known = known[1:]
        elif node.op_type != "Concat":
            return known[0]
        return functools.reduce(_joined, known)


def _joined(a: Range, b: Range) -> Range:
    return Range(min(a.low, b.low), max(a.high, b.high), a.integer and b.integer, a.nan or b.nan)


def _of_constant(tensor: TensorProto) -> Range:
    import numpy as np

    kind = BY_CODE.get(tensor.data_type)
    if kind is None or kind.kind not in "fiub" or not 0 < math.prod(tensor.dims) <= _ELEMENTS:
        return of_type(tensor.data_type) or ANY
    try:
        array = tensor_to_array(tensor).astype(np.float64)
    except ValueError:  # data missing from the file
        return ANY
    if np.isnan(array).any():
        return ANY
    return Range(float(array.min()), float(array.max()), bool((array == np.round(array)).all()), nan=False)


def _cast(node: NodeProto, known: Sequence[Range]) -> Range:
    first, to = known[0], int_of(node, "to", 1)
    limits = of_type(to)
    if limits is None:
        return first
    low, high = (float(math.trunc(n)) if math.isfinite(n) else n for n in first[:2])
    is_inside = limits.low <= low and high <= limits.high and not first.nan
    return Range(low, high, True, False) if is_inside and limits.high > 1 else limits


def _clip(node: NodeProto, known: Sequence[Range]) -> Range:
    """Return the range of a Clip with bounds as operands, or as attributes in older opsets."""
    given = {a.name: a.f for a in node.attribute}
    operands = dict(zip((k for k, name in enumerate(node.input) if name), known))
    ends = [given.get("min", -math.inf), given.get("max", math.inf)]
    first, low, high = known[0], *(operands.get(k + 1, Range(n, n, not given)) for k, n in enumerate(ends))
    least, most = (min(max(first[k], low[k]), high[k]) for k in range(2))
    return Range(least, most, first.integer and low.integer and high.integer, first.nan)


def _negated(node: NodeProto, known: Sequence[Range]) -> Range:
    return known[0]._replace(low=-known[0].high, high=-known[0].low)


def _absolute(node: NodeProto, known: Sequence[Range]) -> Range:
    ends = abs(known[0].low), abs(known[0].high)
    return known[0]._replace(low=0.0 if known[0].low <= 0 <= known[0].high else min(ends), high=max(ends))


_UNARY: Final = {"Abs": _absolute, "Cast": _cast, "Clip": _clip, "Neg": _negated}


def _common(a: Range, b: Range) -> Range:
    """Return the numbers in both ranges; any number if the ranges are disjoint."""
    low, high = max(a.low, b.low), min(a.high, b.high)
    return Range(low, high, a.integer or b.integer, a.nan or b.nan) if low <= high else ANY


def _paired(node: NodeProto, known: Sequence[Range]) -> Range:
    """Return the range of a binary operator, or of an n-ary sum, mean, minimum or maximum."""
    kind, nan = node.op_type, any(r.nan for r in known)
    is_whole = all(r.integer for r in known) and kind not in ("Div", "Mean", "Pow", "Mod")
    if kind in ("Min", "Max"):
        pick = min if kind == "Min" else max
        return Range(pick(r.low for r in known), pick(r.high for r in known), is_whole, nan)
    if kind in ("Sum", "Mean"):
        share = len(known) if kind == "Mean" else 1
        return Range(sum(r.low for r in known) / share, sum(r.high for r in known) / share, is_whole, nan)
    if len(known) < 2:
        return ANY
    low, high = _arithmetic(kind, node, *known[:2])
    nan = nan or kind in ("Div", "Pow", "Mod") or any(not math.isfinite(n) for r in known for n in r[:2])
    return Range(low, high, is_whole, nan)


def _arithmetic(kind: str, node: NodeProto, x: Range, y: Range) -> tuple[float, float]:
    if kind == "Add":
        return x.low + y.low, x.high + y.high
    if kind == "Sub":
        return x.low - y.high, x.high - y.low
    if kind == "Mul":
        ends = [_product(m, n) for m in x[:2] for n in y[:2]]
        return (0.0 if node.input[0] == node.input[1] else min(ends)), max(ends)
    if kind == "Div" and (y.low > 0 or y.high < 0):
        ends = [m / n if math.isfinite(n) else 0.0 for m in x[:2] for n in y[:2]]
        return min(ends), max(ends)
    if kind == "Pow" and (x.never_negative or (y.low == y.high and y.low % 2 == 0)):
        return 0.0, math.inf
    return -math.inf, math.inf


def _product(m: float, n: float) -> float:
    return 0.0 if m == 0 or n == 0 else m * n
