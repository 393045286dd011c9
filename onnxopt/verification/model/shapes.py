"""Shapes of values, and elements of integer vectors computed from shapes.

A shape is a tuple of numbers and symbols of the model's inputs; `UNKNOWN` stands for any further size. None: unknown
rank. Elements are told in the same way.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

from onnxopt.proto.messages import tensor_type
from onnxopt.verification.model.dataflow import Forward
from onnxopt.verification.model.nodes import MAX_SIZES, required
from onnxopt.verification.model.operators import OPERATORS, STANDARD, WEIGHTS, WINDOWED, having

T = TypeVar("T")
Shape: TypeAlias = "tuple[int | str, ...]"
UNKNOWN: Final = -1
_INT64: Final = 7  # of TensorProto.DataType
_RESHAPING: Final = frozenset(("Reshape", "Squeeze", "Unsqueeze", "Identity"))
_BATCH_AND_CHANNELS: Final = 2  # leading axes, before those of an image or of time


class Sized(NamedTuple):
    """Numbers computed from sizes."""

    below: int  # distance below a size
    dims: frozenset[str]  # input dims involved, as far as known


class Known(NamedTuple):
    """Facts about a value. The last two are collected by `inputs.sizes`."""

    shape: Shape | None = None
    elements: Shape | None = None  # of an integer vector or scalar computed from shapes
    sized: Sized | None = None
    paths: frozenset[Any] = frozenset()  # from inputs


NOTHING: Final = Known()


class _Unknown(Exception):
    """A rule needs an unknown fact."""


def _need(fact: T | None) -> T:
    if fact is None:
        raise _Unknown
    return fact


class Call:
    """A node with the facts about operands, and constant integers."""

    def __init__(self, node: NodeProto, known: Sequence[Known], integers: Callable[[str], Sequence[int]]) -> None:
        self.node, self.known, self._integers = node, known, integers
        self.shapes = [k.shape for k in known]
        self.elements = [_elements(k) for k in known]
        self._says: Mapping[str, AttributeProto] = {a.name: a for a in node.attribute[:]}

    @property
    def first(self) -> Shape:
        """The shape of the first operand."""
        return _need(self.shapes[0])

    def is_given(self, at: int, name: str) -> bool:
        """Return whether an operand is present, or, in older opsets, the attribute."""
        return name in self._says or bool(len(self.node.input) > at and self.node.input[at])

    def integers(self, at: int, name: str) -> Sequence[int] | None:
        """Return the operand's integers, constant or computed from known sizes, else None."""
        if name in self._says:
            return list(self._says[name].ints)
        if not self.is_given(at, name):
            return None
        if constant := self._integers(self.node.input[at]):
            return constant
        return self._computed(at)

    def _computed(self, at: int) -> Sequence[int] | None:
        known = self.elements[at] if at < len(self.elements) else None
        computed = [n for n in known or () if isinstance(n, int) and n != UNKNOWN]
        return computed if known and len(computed) == len(known) else None

    def ints(self, name: str) -> Sequence[int]:
        """Return the integers of an attribute, () if absent."""
        return self._says[name].ints if name in self._says else ()

    def axes(self, at: int, rank: int, absent: Iterable[int] | None = None) -> list[int]:
        """Return the constant axes normalized for a rank. absent: the axes if none are given."""
        found = self.integers(at, "axes") if self.is_given(at, "axes") else absent
        return [_normalized(a, rank) for a in _need(found)]

    def axis(self) -> int:
        """Return the normalized axis of an operator with an attribute for it."""
        return _normalized(self.number("axis") or 0, len(self.first))

    def number(self, name: str) -> int | None:
        """Return an integer attribute, else None."""
        return self._says[name].i if name in self._says else None

    def computed(self, rules: Rules) -> Shape | None:
        """Return the result of the operator's rule, None if unknown."""
        try:
            return rules[self.node.op_type](self) if self.node.op_type in rules else None
        except _Unknown:
            return None


Rules: TypeAlias = Mapping[str, Callable[[Call], "Shape | None"]]


def _normalized(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise _Unknown
    return axis % rank


def _elements(known: Known) -> Shape | None:
    """Return the elements of a vector; those of a vector of known length may be unknown, those of a matrix are."""
    match known.shape:
        case (_, _, *_):
            return None
        case (int(length),) if known.elements is None and 0 < length <= MAX_SIZES:
            return (UNKNOWN,) * length
    return known.elements


def shapes_of(graph: GraphProto, functions: Iterable[FunctionProto] = ()) -> dict[str, Known]:
    """Return the facts about values in terms of numbers and input symbols, as far as known."""
    return Shapes(graph, functions).facts


class Shapes(Forward[Known]):
    """Forward analysis of shapes and elements."""

    MUST: ClassVar = True

    def __init__(
        self, graph: GraphProto, functions: Iterable[FunctionProto] = (), given: Mapping[str, Known] | None = None
    ) -> None:
        """given: facts about inputs, else the declared shapes."""
        super().__init__(functions)
        shapes = ((i.name, tensor_type(i.type)[1]) for i in required(graph))
        declared = {name: Known(tuple(UNKNOWN if d is None else d for d in s)) for name, s in shapes if s is not None}
        self.facts.update(declared if given is None else given)
        self.walk(graph)

    def join(self, a: Known, b: Known) -> Known:
        x, y = a.shape, b.shape
        is_one_rank = x is not None and y is not None and len(x) == len(y)
        shape = tuple(m if m == n else UNKNOWN for m, n in zip(x or (), y or ())) if is_one_rank else None
        return Known(shape, a.elements if a.elements == b.elements else None)

    def of(self, name: str) -> Known | None:
        if name in self.facts or name not in self.constants:
            return self.facts.get(name)
        return Known(tuple(self.constants[name].dims), tuple(self.integers(name)) or None)

    def entering(self, node: NodeProto, body: GraphProto, reads: Sequence[Known | None]) -> Sequence[Known | None]:
        return []  # carried values may change shape between iterations

    def transfer(self, node: NodeProto, reads: Sequence[Known | None]) -> Sequence[Known | None]:
        made = self.made(Call(node, [fact or NOTHING for fact in reads], self.integers))
        if made.shape is not None and node.op_type in _RESHAPING and node.input[0] in self.constants:
            self.constants[node.output[0]] = self.constants[node.input[0]]  # axes below 0, which no `Known` tells
        further = made if node.op_type == "Split" else made._replace(shape=None, elements=None)
        return [None if k == NOTHING else k for k in (made, *[further] * (len(node.output) - 1))]

    def made(self, call: Call) -> Known:
        """Return the facts about the first result of a node."""
        if call.node.domain not in STANDARD or not call.node.input:
            return NOTHING
        return Known(call.computed(SHAPES), call.computed(ELEMENTS))


# -- shapes of results, in terms of operand sizes -----------------------------------------------------------


def _transpose(call: Call) -> Shape | None:
    perm = call.ints("perm")
    return tuple(call.first[i] for i in perm) if sorted(perm) == list(range(len(call.first))) else None


def _pad(call: Call) -> Shape:
    """Return the shape after Pad. Computed pads belong to a window, so batch and channels stay unchanged."""
    rank, pads = len(call.first), call.integers(1, "pads")
    axes = call.axes(3, rank, range(rank))
    if pads is None and not call.is_given(3, "axes") and rank > _BATCH_AND_CHANNELS:
        axes = axes[_BATCH_AND_CHANNELS:]
    elif pads is not None and len(pads) == 2 * len(axes):
        axes = [a for a, *sides in zip(axes, pads, pads[len(axes) :]) if any(sides)]
    return _without(call.first, axes)


def _slice(call: Call) -> Shape:
    starts = call.integers(1, "starts")
    return _without(call.first, call.axes(3, len(call.first), None if starts is None else range(len(starts))))


def _unsqueeze(call: Call) -> Shape | None:
    rank = len(call.first) + len(call.integers(1, "axes") or ())
    axes, dims = call.axes(1, rank), iter(call.first)
    return tuple(1 if a in axes else next(dims) for a in range(rank)) if len({*axes}) == len(axes) else None


def _squeeze(call: Call) -> Shape:
    is_known = all(isinstance(d, int) and d > 0 for d in call.first)
    axes = call.axes(1, len(call.first), [a for a, d in enumerate(call.first) if d == 1] if is_known else None)
    return tuple(d for a, d in enumerate(call.first) if a not in axes)


def _matmul(call: Call) -> Shape | None:
    a, b = map(_need, call.shapes[:2])
    return (*_broadcasted([a[:-2], b[:-2]]), a[-2], b[-1]) if min(len(a), len(b)) > 1 else None


def _gemm(call: Call) -> Shape | None:
    a, b = map(_need, call.shapes[:2])
    turned = bool(call.number("transA")), not call.number("transB")
    return (a[turned[0]], b[turned[1]]) if len(a) == len(b) == 2 else None


def _gather(call: Call) -> Shape:
    axis = call.axis()
    return (*call.first[:axis], *_need(call.shapes[1]), *call.first[axis + 1 :])


def _reshape(call: Call) -> Shape:
    """Return the elements of the target; 0 copies a dim, and -1 is computed if it is a number."""
    target = _need(call.elements[1] if len(call.elements) > 1 else None)  # an attribute in older opsets
    dims, copies = call.shapes[0] or (), not call.number("allowzero")
    found = [dims[k] if n == 0 and copies and k < len(dims) else n or UNKNOWN for k, n in enumerate(target)]
    if found.count(UNKNOWN) == 1 and UNKNOWN not in dims and call.shapes[0] is not None:
        found[found.index(UNKNOWN)] = _remaining(dims, [d for d in found if d != UNKNOWN])
    return tuple(found)


def _remaining(dims: Shape, known: Sequence[int | str]) -> int:
    """Return the size of a dim beside the known ones, for as many elements; UNKNOWN unless a number."""
    rest, made = Counter(dims), Counter(known)
    before, after = (list((x - y).elements()) for x, y in ((rest, made), (made, rest)))
    if not all(isinstance(d, int) for d in (*before, *after)):
        return UNKNOWN
    return math.prod(map(int, before)) // max(math.prod(map(int, after)), 1)


def _total(dims: Shape) -> int | str:
    """Return the product of positive numbers; UNKNOWN with further dims, except a single dim."""
    numbers = [n for n in dims if isinstance(n, int) and n > 0]
    return math.prod(numbers) if len(numbers) == len(dims) else dims[0] if len(dims) == 1 else UNKNOWN


def _flattened(call: Call) -> Shape:
    axis = call.number("axis")
    at = 1 if axis is None else axis
    return _total(call.first[:at]), _total(call.first[at:])


def _reduced(call: Call) -> Shape:
    axes, keeps = call.axes(1, len(call.first)), call.number("keepdims") != 0
    return tuple(1 if a in axes else d for a, d in enumerate(call.first) if keeps or a not in axes)


def _windowed(call: Call) -> Shape | None:
    """Return batch, channels of the weight or the operand, and unknown lengths."""
    if len(call.first) < _BATCH_AND_CHANNELS:
        return None
    batch, channels, *lengths = call.first
    if call.node.op_type in WEIGHTS:
        weight = call.shapes[1] if WEIGHTS[call.node.op_type] == (1, 1, 1) else None
        channels = weight[0] if weight else UNKNOWN
    return batch, channels, *[UNKNOWN] * len(lengths)


def _concat(call: Call) -> Shape | None:
    shapes, axis = [s for s in call.shapes if s is not None], call.number("axis")
    if axis is None or len({*map(len, shapes)}) != 1:
        return None
    met = [_equal(dims) for dims in zip(*shapes)]
    axis = _normalized(axis, len(met))
    lengths = [d for s in shapes if isinstance(d := s[axis], int) and d > 0]
    met[axis] = sum(lengths) if len(lengths) == len(call.shapes) else UNKNOWN
    return tuple(met)


def _equal(dims: Sequence[int | str]) -> int | str:
    """Return the number among equal dims, if any, else a known dim."""
    return min((d for d in dims if d != UNKNOWN), key=lambda d: isinstance(d, str), default=UNKNOWN)


def _broadcasted(shapes: Sequence[Shape]) -> Shape:
    rank = max(map(len, shapes))
    return tuple(_met(dims) for dims in zip(*((1,) * (rank - len(s)) + s for s in shapes)))


def _met(dims: Sequence[int | str]) -> int | str:
    """Return the size of broadcast dims; a symbol only if no second dim may be longer."""
    found = {d for d in dims if d != 1}
    numbers = [d for d in found if isinstance(d, int) and d != UNKNOWN]
    return numbers[0] if numbers else found.pop() if len(found) == 1 else 1 if not found else UNKNOWN


def _without(shape: Shape, axes: Sequence[int]) -> Shape:
    return tuple(UNKNOWN if a in axes else d for a, d in enumerate(shape))


def _measured(call: Call) -> Shape:
    return call.first[call.number("start") : call.number("end")]


SHAPES: Final[Rules] = {
    "Transpose": _transpose,
    "Pad": _pad,
    "Slice": _slice,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "MatMul": _matmul,
    "Gather": _gather,
    "Concat": _concat,
    "Reshape": _reshape,
    "Expand": lambda call: _broadcasted([call.first, _need(call.elements[1])]),
    "Split": lambda call: _without(call.first, [call.axis()]),
    "Gemm": _gemm,
    "Flatten": _flattened,
    "Shape": lambda call: (len(_measured(call)),),
    "ConstantOfShape": lambda call: call.elements[0],
    "Range": lambda call: (UNKNOWN,),
    **{name: _reduced for name in OPERATORS if name.startswith("Reduce")},
    **dict.fromkeys(WINDOWED, _windowed),
    **dict.fromkeys(having("broadcast"), lambda call: _broadcasted([*map(_need, call.shapes)])),
    **dict.fromkeys(having("like"), lambda call: call.shapes[0]),
}


# -- elements of results ------------------------------------------------------------------------------------


def _picked(call: Call) -> Shape | None:
    """Return the elements at constant places."""
    elements, places = _need(call.elements[0]), _need(call.integers(1, ""))
    return tuple(elements[_normalized(n, len(elements))] for n in places)


def _cut(call: Call) -> Shape | None:
    """Return the elements between constant ends."""
    start, end = _need(call.integers(1, "starts")), _need(call.integers(2, "ends"))
    return None if call.is_given(4, "steps") else _need(call.elements[0])[start[0] : end[0]]


def _computed(compute: Callable[[int, int], int], call: Call) -> Shape | None:
    """Return the elements of a result of two vectors: numbers of positive numbers, else unknown."""
    a, b = map(_need, call.elements[:2])
    if len(a) != len(b) and 1 not in (len(a), len(b)):
        return None
    count = max(len(a), len(b))
    pairs = zip(a * (count // len(a)), b * (count // len(b)))
    return tuple(
        compute(m, n) if isinstance(m, int) and isinstance(n, int) and m > 0 < n else UNKNOWN for m, n in pairs
    )


def _product(call: Call) -> Shape | None:
    return None if call.number("noop_with_empty_axes") else (_total(_need(call.elements[0])),)


ELEMENTS: Final[Rules] = {
    "Shape": _measured,
    "Gather": _picked,
    "ReduceProd": _product,
    "Concat": lambda call: tuple(n for part in map(_need, call.elements) for n in part),
    "Slice": _cut,
    "Add": partial(_computed, operator.add),
    "Sub": partial(_computed, operator.sub),
    "Mul": partial(_computed, operator.mul),
    "Div": partial(_computed, operator.floordiv),
    "Mod": partial(_computed, operator.mod),
    "Reshape": lambda call: call.elements[0] if len(call.shapes[0] or ()) < 2 else None,
    "Cast": lambda call: call.elements[0] if call.number("to") == _INT64 else None,  # others may wrap, or round
    **dict.fromkeys(_RESHAPING - {"Reshape"}, lambda call: call.elements[0]),
}
