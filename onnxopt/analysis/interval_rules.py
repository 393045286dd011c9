"""Intervals of sizes, and of the results of each operator from the intervals and dims of its operands.

One assumption: no tensor of the model has 2**31 elements or more. So a dim is below 2**31, and also the product of
adjacent dims of a tensor. Zero dims count as one: the nonzero dims of an empty tensor have a product below 2**31, too.
Runtimes that count elements in 32 bits support no larger tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Final, TypeAlias

from onnxopt.analysis.shapes.sizes import axis_of, product, reduced, registrar
from onnxopt.analysis.shapes.symbolic import Expr, Floor, Monomial, Size, TooComplex, lower_bound
from onnxopt.graph.node import Node
from onnxopt.operators import of_form
from onnxopt.proto.element_types import element_kind

if TYPE_CHECKING:
    from onnxopt.analysis.intervals import Intervals


# -- sizes -----------------------------------------------------------------------------------------------------

MAX_SIZE: Final = (1 << 31) - 1  # elements of a tensor
_RANK: Final = 8  # dims of a tensor whose adjacent products are known


def _monomial(dims: Iterable[Size]) -> tuple[Monomial, int]:
    """Return (symbols, factor) of the product of the dims that are numbers, symbols or multiples of symbols."""
    terms = [d.terms[0] if isinstance(d, Expr) and len(d.terms) == 1 else ((), d) for d in dims]
    single = [(m, c) for m, c in terms if isinstance(c, int) and c > 0]
    return tuple(sorted(s for m, _ in single for s in m)), prod(c for _, c in single)


class SizeLimits:
    """Limits of sizes in a scope. `around`: the limits of the enclosing scope, valid in a body as well."""

    def __init__(self, around: SizeLimits | None = None) -> None:
        self._around = around
        self._seen: set[tuple[Size, ...]] = set()
        self._exact: set[Size] = set()  # dims and products of dims
        self._counted: dict[str, dict[Monomial, int]] = {}  # by symbol: factor by the symbols of a tensor's dims

    def add(self, dims: tuple[Size, ...]) -> None:
        """Note the dims of a tensor that exists wherever the scope runs."""
        if dims in self._seen:
            return
        self._seen.add(dims)
        self._exact.update(d for d in dims if isinstance(d, Expr))
        symbols, factor = _monomial(dims)
        for name in symbols:
            known = self._counted.setdefault(name, {})
            known[symbols] = max(factor, known.get(symbols, 0))
        if len(dims) <= _RANK:
            self._exact.update(_products(dims))

    def high(self, size: Size) -> int:
        """Return an upper limit of a size."""
        if isinstance(size, int):
            return size
        more = [(m, c) for m, c in size.terms if c > 0]
        total = sum(self._reach(m, c) for m, c in more)
        return min(total, MAX_SIZE) if self._is_exact(size) or self._is_exact(_sum(more)) else total

    def low(self, size: Size) -> int:
        """Return a lower limit of a size, with symbols >= 0."""
        if isinstance(size, int):
            return size
        return -sum(self._reach(m, -c) for m, c in size.terms if c < 0 or not m)

    def _is_exact(self, size: Size) -> bool:
        return size in self._exact or (self._around is not None and self._around._is_exact(size))

    def _reach(self, symbols: Monomial, factor: int) -> int:
        """Return an upper limit of a product of symbols times `factor`."""
        if not symbols:
            return factor
        alone = factor * prod(self.high(s.size) // s.divisor if isinstance(s, Floor) else MAX_SIZE for s in symbols)
        together = max(self._factors(symbols), default=0)
        return min(alone, MAX_SIZE if factor <= together else factor * (MAX_SIZE // together)) if together else alone

    def _factors(self, symbols: Monomial) -> Iterable[int]:
        """Yield the factors of the product of `symbols` in the element counts of tensors."""
        wanted = Counter(symbols)
        yield from (c for m, c in self._counted.get(symbols[0], {}).items() if not wanted - Counter(m))
        yield from self._around._factors(symbols) if self._around is not None else ()


def _products(dims: tuple[Size, ...]) -> Iterable[Size]:
    """Yield the symbolic products of adjacent dims."""
    for start in range(len(dims)):
        for end in range(start + 2, len(dims) + 1):
            try:
                found = product(dims[start:end])
            except TooComplex:
                break
            if isinstance(found, Expr):
                yield found


def _sum(terms: list[tuple[Monomial, int]]) -> Size:
    return Expr(tuple(terms)) if any(m for m, _ in terms) else sum(c for _, c in terms)


# -- operators -------------------------------------------------------------------------------------------------

Interval: TypeAlias = "tuple[int, int]"
Found: TypeAlias = "Interval | None"
Rule: TypeAlias = "Callable[[Intervals, Node], Found | Sequence[Found]]"
RULES: Final[dict[str, Rule]] = {}
_rule: Final = registrar(RULES)


def _pair(*ops: str) -> Callable[[Callable[[Interval, Interval], Found]], None]:
    """Register a function of the intervals of two operands."""

    def add(function: Callable[[Interval, Interval], Found]) -> None:
        def apply(s: Intervals, n: Node) -> Found:
            a, b = s.of(n.input(0)), s.of(n.input(1))
            return function(a, b) if a is not None and b is not None else None

        RULES.update(dict.fromkeys(ops, apply))

    return add


def _one(*ops: str) -> Callable[[Callable[[Interval], Found]], None]:
    """Register a function of the interval of the first operand."""

    def add(function: Callable[[Interval], Found]) -> None:
        def apply(s: Intervals, n: Node) -> Found:
            x = s.of(n.input(0))
            return None if x is None else function(x)

        RULES.update(dict.fromkeys(ops, apply))

    return add


def _ends(ends: Sequence[int]) -> Interval:
    return min(ends), max(ends)


@_rule(*of_form("same", "order", "permute", "pick"), "Cast", "CastLike")
def _first(s: Intervals, n: Node) -> list[Found]:
    """Intervals of results that consist of elements of the first operand."""
    return [s.of(n.input(0))] * len(n.outputs)


@_pair("Div")
def _divided(a: Interval, b: Interval) -> Interval:
    """Interval of a truncated quotient: at most the dividend in magnitude. Division by zero has no result."""
    if b[0] > 0 or b[1] < 0:
        return _ends([abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x in a for y in b])
    most = max(abs(a[0]), abs(a[1]))
    return -most, most


@_rule("Mod")
def _rest(s: Intervals, n: Node) -> Found:
    """Interval of a Mod, with the sign of the divisor, or of the dividend with `fmod`."""
    a, b = s.of(n.input(0)), s.of(n.input(1))
    if a is None or b is None:
        return None
    most = max(abs(b[0]), abs(b[1]), 1) - 1
    signed = a if n.attr("fmod", 0) else b
    return -most if signed[0] < 0 else 0, most if signed[1] > 0 else 0


@_one("Abs")
def _magnitude(x: Interval) -> Interval:
    ends = abs(x[0]), abs(x[1])
    return 0 if x[0] <= 0 <= x[1] else min(ends), max(ends)


@_pair("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def _bits(a: Interval, b: Interval) -> Interval:
    """Interval of a bitwise and, or, xor, with as many bits as the longer operand."""
    bits = max(int(x).bit_length() for x in (*a, *b))
    return (0 if min(a[0], b[0]) >= 0 else -(1 << bits)), (1 << bits) - 1


@_rule("Clip")
def _clipped(s: Intervals, n: Node) -> Found:
    found = s.of(n.input(0))
    for i, pick in ((1, max), (2, min)):
        bound = n.input(i)
        if bound is not None and found is not None:
            limit = s.of(bound)
            found = None if limit is None else (pick(found[0], limit[0]), pick(found[1], limit[1]))
    return found


@_rule("Max", "Min")
def _extremes(s: Intervals, n: Node) -> Found:
    pick = max if n.op == "Max" else min
    return s.hull(n.inputs, pick, pick)


@_rule("ReduceSum")
def _summed(s: Intervals, n: Node) -> Found:
    """Interval of a sum along the axes."""
    dims = s.sizes.shape(n.input(0))
    return _of_sum(s.of(n.input(0)), s.count(n, reduced(s.sizes, n, len(dims)) if dims is not None else None))


@_rule("CumSum")
def _running(s: Intervals, n: Node) -> Found:
    """Interval of a CumSum, of at most the elements along the axis, or of the tensor if the axis is unknown."""
    axes, dims = s.sizes.content(n.input(1)), s.dims(n.input(0))
    known = axes is not None and axes.size == 1 and isinstance(axes.item(), int)
    count = dims[axis_of(axes.item(), len(dims))] if axes is not None and known and dims else s.count(n)
    return _of_sum(s.of(n.input(0)), count)


def _of_sum(x: Found, count: int | None) -> Found:
    """Return the interval of a sum of at most `count` elements; an empty sum is 0."""
    return None if x is None or count is None else (min(x[0] * count, 0), max(x[1] * count, 0))


@_rule("ReduceMax", "ReduceMin")
def _extreme_of_axes(s: Intervals, n: Node) -> Found:
    """Interval of a maximum or minimum, if no reduced dim can be 0: an empty one is a limit of the type."""
    dims = s.sizes.shape(n.input(0))
    axes = reduced(s.sizes, n, len(dims)) if dims is not None else None
    if dims is None or axes is None or any(not (lower_bound(dims[a], s.sizes.minima) or 0) for a in axes):
        return None
    return s.of(n.input(0))


@_rule("ArgMax", "ArgMin")
def _place(s: Intervals, n: Node) -> Found:
    return 0, max(s.length(n) - 1, 0)


@_rule("TopK")
def _top(s: Intervals, n: Node) -> list[Found]:
    return [s.of(n.input(0)), (0, max(s.length(n) - 1, 0))]


@_rule("NonZero")
def _coordinates(s: Intervals, n: Node) -> Found:
    return 0, max(s.longest(n.input(0)) - 1, 0)


@_rule("NonMaxSuppression")
def _boxes(s: Intervals, n: Node) -> Found:
    return 0, max(s.longest(n.input(0)) - 1, s.longest(n.input(1)) - 1, 0)


@_rule("MaxPool")
def _pooled(s: Intervals, n: Node) -> list[Found]:
    return [s.of(n.input(0)), (0, MAX_SIZE - 1)]


@_rule("Unique")
def _unique(s: Intervals, n: Node) -> list[Found]:
    return [s.of(n.input(0)), (0, MAX_SIZE - 1), (0, MAX_SIZE - 1), (0, MAX_SIZE)]


@_rule("Pad")
def _padded(s: Intervals, n: Node) -> Found:
    x, value = s.of(n.input(0)), s.of(n.input(3)) if n.input(3) is not None else (0, 0)
    if n.attr("mode", "constant") != "constant":
        return x
    return None if x is None or value is None else _ends([*x, *value])


@_rule("ScatterElements", "ScatterND")
def _updated(s: Intervals, n: Node) -> Found:
    return s.hull((n.input(0), n.input(2))) if n.attr("reduction", "none") in ("none", "max", "min") else None


@_rule("ConstantOfShape")
def _filled(s: Intervals, n: Node) -> Found:
    value = n.attr("value")
    return (int(value.min()), int(value.max())) if value is not None and element_kind(value) in "iu" else None


@_rule("If")
def _branches(s: Intervals, n: Node) -> list[Found]:
    return [s.hull([b.outputs[i] for b in n.bodies.values()]) for i in range(len(n.outputs))]


_pair("Add")(lambda a, b: (a[0] + b[0], a[1] + b[1]))
_pair("Sub")(lambda a, b: (a[0] - b[1], a[1] - b[0]))
_pair("Mul")(lambda a, b: _ends([x * y for x in a for y in b]))
_one("BitwiseNot")(lambda x: (-x[1] - 1, -x[0] - 1))
_one("Neg")(lambda x: (-x[1], -x[0]))
_one("Relu")(lambda x: (max(x[0], 0), max(x[1], 0)))
_one("Trilu")(lambda x: (min(x[0], 0), max(x[1], 0)))
_rule("Concat")(lambda s, n: s.hull(n.inputs))
_rule("OneHot")(lambda s, n: s.of(n.input(2)))
_rule("Range")(lambda s, n: s.hull(n.inputs[:2]))
_rule("Sign")(lambda s, n: (-1, 1))
_rule("Size", "Shape")(lambda s, n: (0, MAX_SIZE))
_rule("Where")(lambda s, n: s.hull(n.inputs[1:3]))
