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

from onnxopt.analysis.shapes.sizes import axis_of, product, reduced
from onnxopt.analysis.shapes.symbolic import Expr, Floor, Monomial, Size, TooComplex, lowest
from onnxopt.graph.node import Node
from onnxopt.operators import of_form
from onnxopt.proto.element_types import element_kind

if TYPE_CHECKING:
    from onnxopt.analysis.intervals import Intervals


# -- sizes -----------------------------------------------------------------------------------------------------

MOST: Final = (1 << 31) - 1  # elements of a tensor
_RANK: Final = 8  # dims of a tensor whose adjacent products are known


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
        terms = [d.terms[0] if isinstance(d, Expr) and len(d.terms) == 1 else ((), d) for d in dims]
        single = [(m, c) for m, c in terms if isinstance(c, int) and c > 0]
        symbols, factor = tuple(sorted(s for m, _ in single for s in m)), prod(c for _, c in single)
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
        return min(total, MOST) if self._is_exact(size) or self._is_exact(_sum(more)) else total

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
        alone = factor * prod(self.high(s.size) // s.divisor if isinstance(s, Floor) else MOST for s in symbols)
        together = max(self._factors(symbols), default=0)
        return min(alone, MOST if factor <= together else factor * (MOST // together)) if together else alone

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


def _first(s: Intervals, n: Node) -> list[Found]:
    """Intervals of results that consist of elements of the first operand."""
    return [s.of(n.input(0))] * len(n.outputs)


def _pair(function: Callable[[Interval, Interval], Found]) -> Rule:
    def apply(s: Intervals, n: Node) -> Found:
        a, b = s.of(n.input(0)), s.of(n.input(1))
        return function(a, b) if a is not None and b is not None else None

    return apply


def _one(function: Callable[[Interval], Found]) -> Rule:
    def apply(s: Intervals, n: Node) -> Found:
        x = s.of(n.input(0))
        return None if x is None else function(x)

    return apply


def _ends(ends: Sequence[int]) -> Interval:
    return min(ends), max(ends)


def _divided(a: Interval, b: Interval) -> Interval:
    """Interval of a truncated quotient: at most the dividend in magnitude. Division by zero has no result."""
    if b[0] > 0 or b[1] < 0:
        return _ends([abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x in a for y in b])
    most = max(abs(a[0]), abs(a[1]))
    return -most, most


def _rest(s: Intervals, n: Node) -> Found:
    """Interval of a Mod, with the sign of the divisor, or of the dividend with `fmod`."""
    a, b = s.of(n.input(0)), s.of(n.input(1))
    if a is None or b is None:
        return None
    most = max(abs(b[0]), abs(b[1]), 1) - 1
    signed = a if n.attr("fmod", 0) else b
    return -most if signed[0] < 0 else 0, most if signed[1] > 0 else 0


def _magnitude(x: Interval) -> Interval:
    ends = abs(x[0]), abs(x[1])
    return 0 if x[0] <= 0 <= x[1] else min(ends), max(ends)


def _bits(a: Interval, b: Interval) -> Interval:
    """Interval of a bitwise and, or, xor, with as many bits as the longer operand."""
    bits = max(int(x).bit_length() for x in (*a, *b))
    return (0 if min(a[0], b[0]) >= 0 else -(1 << bits)), (1 << bits) - 1


def _clipped(s: Intervals, n: Node) -> Found:
    found = s.of(n.input(0))
    for i, pick in ((1, max), (2, min)):
        bound = n.input(i)
        if bound is not None and found is not None:
            limit = s.of(bound)
            found = None if limit is None else (pick(found[0], limit[0]), pick(found[1], limit[1]))
    return found


def _extremes(pick: Callable[..., int]) -> Rule:
    def apply(s: Intervals, n: Node) -> Found:
        found = [s.of(v) for v in n.inputs]
        known = [f for f in found if f is not None]
        return (pick(f[0] for f in known), pick(f[1] for f in known)) if known and None not in found else None

    return apply


def _summed(s: Intervals, n: Node) -> Found:
    """Interval of a sum of at most `count` elements along the axes; an empty sum is 0."""
    x, dims = s.of(n.input(0)), s.sizes.shape(n.input(0))
    if x is None:
        return None
    count = s.count(n, reduced(s.sizes, n, len(dims)) if dims is not None and n.op != "CumSum" else None)
    return None if count is None else (min(x[0] * count, 0), max(x[1] * count, 0))


def _running(s: Intervals, n: Node) -> Found:
    """Interval of a CumSum, of at most the elements along the axis, or of the tensor if the axis is unknown."""
    x, count = s.of(n.input(0)), s.count(n)
    axes = s.sizes.content(n.input(1))
    dims = s.dims(n.input(0))
    if axes is not None and axes.size == 1 and isinstance(axes.item(), int) and dims:
        count = dims[axis_of(axes.item(), len(dims))]
    return None if x is None or count is None else (min(x[0] * count, 0), max(x[1] * count, 0))


def _extreme_of_axes(s: Intervals, n: Node) -> Found:
    """Interval of a maximum or minimum, if no reduced dim can be 0: an empty one is a limit of the type."""
    dims = s.sizes.shape(n.input(0))
    axes = reduced(s.sizes, n, len(dims)) if dims is not None else None
    if dims is None or axes is None or any(not (lowest(dims[a], s.sizes.least) or 0) for a in axes):
        return None
    return s.of(n.input(0))


def _place(s: Intervals, n: Node) -> Found:
    dims = s.dims(n.input(0))
    axis = axis_of(n.attr("axis", 0), len(dims or ()))
    return (0, max((dims[axis] if dims and 0 <= axis < len(dims) else MOST) - 1, 0))


def _top(s: Intervals, n: Node) -> list[Found]:
    dims = s.dims(n.input(0))
    return [s.of(n.input(0)), (0, max((dims[n.attr("axis", -1)] if dims else MOST) - 1, 0))]


def _coordinates(s: Intervals, n: Node) -> Found:
    return 0, max(max(s.dims(n.input(0)) or [MOST]) - 1, 0)


def _boxes(s: Intervals, n: Node) -> Found:
    return 0, max(max([*(s.dims(n.input(0)) or [MOST]), *(s.dims(n.input(1)) or [MOST])]) - 1, 0)


def _pooled(s: Intervals, n: Node) -> list[Found]:
    return [s.of(n.input(0)), (0, MOST - 1)]


def _unique(s: Intervals, n: Node) -> list[Found]:
    return [s.of(n.input(0)), (0, MOST - 1), (0, MOST - 1), (0, MOST)]


def _chosen(s: Intervals, n: Node) -> Found:
    return s.hull(n.inputs[1:3])


def _joined(s: Intervals, n: Node) -> Found:
    return s.hull(n.inputs)


def _padded(s: Intervals, n: Node) -> Found:
    x, value = s.of(n.input(0)), s.of(n.input(3)) if n.input(3) is not None else (0, 0)
    if n.attr("mode", "constant") != "constant":
        return x
    return None if x is None or value is None else _ends([*x, *value])


def _or_zero(x: Interval) -> Interval:
    return min(x[0], 0), max(x[1], 0)


def _updated(s: Intervals, n: Node) -> Found:
    return s.hull((n.input(0), n.input(2))) if n.attr("reduction", "none") in ("none", "max", "min") else None


def _one_hot(s: Intervals, n: Node) -> Found:
    return s.of(n.input(2))


def _ranged(s: Intervals, n: Node) -> Found:
    return s.hull(n.inputs[:2])


def _cast(s: Intervals, n: Node) -> Found:
    return s.of(n.input(0))


def _filled(s: Intervals, n: Node) -> Found:
    value = n.attr("value")
    return (int(value.min()), int(value.max())) if value is not None and element_kind(value) in "iu" else None


def _branches(s: Intervals, n: Node) -> list[Found]:
    return [s.hull([b.outputs[i] for b in n.bodies.values()]) for i in range(len(n.outputs))]


RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(of_form("same", "order", "permute", "pick"), _first),
    "Abs": _one(_magnitude),
    "Add": _pair(lambda a, b: (a[0] + b[0], a[1] + b[1])),
    "ArgMax": _place,
    "ArgMin": _place,
    "BitwiseAnd": _pair(_bits),
    "BitwiseNot": _one(lambda x: (-x[1] - 1, -x[0] - 1)),
    "BitwiseOr": _pair(_bits),
    "BitwiseXor": _pair(_bits),
    "Cast": _cast,
    "CastLike": _cast,
    "Clip": _clipped,
    "Concat": _joined,
    "ConstantOfShape": _filled,
    "CumSum": _running,
    "Div": _pair(_divided),
    "If": _branches,
    "Max": _extremes(max),
    "MaxPool": _pooled,
    "Min": _extremes(min),
    "Mod": _rest,
    "Mul": _pair(lambda a, b: _ends([x * y for x in a for y in b])),
    "Neg": _one(lambda x: (-x[1], -x[0])),
    "NonMaxSuppression": _boxes,
    "NonZero": _coordinates,
    "OneHot": _one_hot,
    "Pad": _padded,
    "Range": _ranged,
    "ReduceMax": _extreme_of_axes,
    "ReduceMin": _extreme_of_axes,
    "ReduceSum": _summed,
    "Relu": _one(lambda x: (max(x[0], 0), max(x[1], 0))),
    "ScatterElements": _updated,
    "ScatterND": _updated,
    "Sign": lambda s, n: (-1, 1),
    "Size": lambda s, n: (0, MOST),
    "Shape": lambda s, n: (0, MOST),
    "Sub": _pair(lambda a, b: (a[0] - b[1], a[1] - b[0])),
    "TopK": _top,
    "Trilu": _one(_or_zero),
    "Unique": _unique,
    "Where": _chosen,
}
