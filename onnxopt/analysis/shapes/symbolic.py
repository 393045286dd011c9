"""Sizes as symbolic expressions: integers, symbols, sums, products and floors, in canonical form.

Two sizes are provably equal exactly if their canonical forms are equal. Symbols are dims, hence never negative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from math import gcd, prod
from typing import Final, final

from onnx import TensorProto

_TERMS: Final = 128
_DEGREE: Final = 32
_MAX_SYMBOL: Final = 200  # characters of a computed symbol
LARGEST: Final = 1 << 63  # bound of all sizes


class TooComplex(ArithmeticError):
    """The expression has too many terms to compare; the size is left unknown."""


Monomial = tuple[str, ...]  # sorted symbols; () is the number 1


@final
class Expr:
    """A polynomial with at least one symbol: ((monomial, coefficient ≠ 0), …), sorted. Constants are plain ints.

    Immutable, with a cached hash: sizes are compared and looked up for each dim of each value.
    """

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Expr) and self._hash == other._hash and self.terms == other.terms)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Expr({self})"

    def __add__(self, other: Size) -> Size:
        if isinstance(other, int) and other == 0:
            return self
        return _normal([*self.terms, *_terms(other)])

    __radd__ = __add__

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size) -> Size:
        return _normal([*self.terms, *[(m, -c) for m, c in _terms(other)]])

    def __rsub__(self, other: Size) -> Size:
        return -1 * self + other

    def __mul__(self, other: Size) -> Size:
        if isinstance(other, int):  # most products start with 1
            return self if other == 1 else _normal([(m, c * other) for m, c in self.terms])
        if len(self.terms) * len(other.terms) > _TERMS**2:
            raise TooComplex
        return _normal([(tuple(sorted((*m, *n))), a * b) for m, a in self.terms for n, b in other.terms])

    __rmul__ = __mul__

    @cached_property
    def name(self) -> str:
        """The expression as a dim name: the symbol itself, or the expression in braces."""
        if len(self.terms) == 1:
            symbols, coefficient = self.terms[0]
            if len(symbols) == 1 and coefficient == 1:
                return symbols[0]
        return f"{{{self}}}"

    def __str__(self) -> str:
        return "+".join("*".join([*([str(c)] if c != 1 or not m else []), *m]) for m, c in self.terms)


Size = int | Expr


def symbol(name: str) -> Expr:
    return Expr((((name,), 1),))


def _terms(size: Size) -> tuple[tuple[Monomial, int], ...]:
    return size.terms if isinstance(size, Expr) else (((), size),)


def _normal(terms: list[tuple[Monomial, int]]) -> Size:
    sums: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        sums[monomial] = sums.get(monomial, 0) + coefficient
    left = sorted([(m, c) for m, c in sums.items() if c])
    if not left:
        return 0
    if len(left) > _TERMS:
        raise TooComplex
    for m, c in left:
        if len(m) > _DEGREE or not -LARGEST < c < LARGEST:
            raise TooComplex
    return left[0][1] if left[0] is left[-1] and not left[0][0] else Expr(tuple(left))


def divide(a: Size, b: Size) -> Size | None:
    """Return a / b if exact for all values of the symbols; None if not proven.

    `b` is assumed not to be zero. Polynomial long division by the leading term of `b`.
    """
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    divisor = _terms(b)
    if divisor == (((), 0),):
        return None
    (symbols, number), left = max(divisor, key=_rank), a
    result: Size = 0
    for _ in range(_TERMS):
        if left == 0:
            return result
        terms = _terms(left)
        monomial, coefficient = max(terms, key=_rank)
        rest = [*monomial]
        for name in symbols:
            if name not in rest:
                return None
            rest.remove(name)
        if coefficient % number:
            return None
        term = _normal([(tuple(rest), coefficient // number)])
        result, left = result + term, 0 if len(terms) == len(divisor) == 1 else left - term * b
    return None


def _rank(term: tuple[Monomial, int]) -> tuple[int, Monomial]:
    return len(term[0]), term[0]


class Floor(str):
    """A symbol: the floor of a size divided by a number. All coefficients are nonnegative, hence the symbol, too."""

    size: Expr
    divisor: int

    def __new__(cls, size: Expr, divisor: int) -> Floor:
        made = super().__new__(cls, f"{{({size})//{divisor}}}")
        made.size, made.divisor = size, divisor
        return made


def quotient(a: Size, b: int) -> Size | None:
    """Return the floor of a / b, for positive b, in canonical form.

    Nested floors merge, (p//c + q)//b = (p + c q)//(b c); multiples of b and common factors are taken out; the rest is
    a symbol, equal for equal arguments.
    """
    if isinstance(a, int):
        return a // b
    whole = _normal([(m, c // b) for m, c in a.terms])
    left = _normal([(m, c % b) for m, c in a.terms])
    if isinstance(left, int):
        return whole
    rest = _floor(left, b)
    return None if rest is None else whole + rest


def _floor(left: Expr, b: int) -> Size | None:
    """Return the floor of left / b, where all coefficients are below b."""
    floors = [m[0] for m, c in left.terms if c == 1 and len(m) == 1 and isinstance(m[0], Floor)]
    common = gcd(b, *(c for m, c in left.terms if m))
    if floors:
        inner = floors[0]
        return quotient(inner.size + (left - symbol(inner)) * inner.divisor, b * inner.divisor)
    if common > 1:
        return quotient(_normal([(m, c // common) for m, c in left.terms]), b // common)
    made = Floor(left, b)
    return symbol(made) if len(made) <= _MAX_SYMBOL else None


def lower_bound(size: Size, minima: Mapping[str, int]) -> int | None:
    """Return a proven lower bound, given minimum values of symbols (default 0); None if a term is subtracted."""
    if any(c < 0 for m, c in _terms(size) if m):
        return None
    return sum(c * prod(_lower_bound_of(name, minima) for name in m) for m, c in _terms(size))


def _lower_bound_of(name: str, minima: Mapping[str, int]) -> int:
    inside = (lower_bound(name.size, minima) or 0) // name.divisor if isinstance(name, Floor) else 0
    return max(inside, minima.get(name, 0))


def is_at_least(a: Size, b: Size, minima: Mapping[str, int]) -> bool:
    """Whether `a` is proven ≥ `b`, given minimum values of symbols."""
    low = lower_bound(a - b, minima)
    return low is not None and low >= 0


def minimum(a: Size, b: int) -> Size | None:
    """Return min(a, b); for an expression `a` a new symbol."""
    if isinstance(a, int):
        return min(a, b)
    name = f"{{min({a}, {b})}}"
    return symbol(name) if len(name) <= _MAX_SYMBOL else None


def is_minimum(a: Size, of: Size) -> bool:
    """Whether `a` is min(`of`, n) for some number n."""
    return isinstance(a, Expr) and isinstance(of, Expr) and a.name.startswith(f"{{min({of}, ")


def is_nonnegative(size: Size) -> bool:
    """Whether the size is proven ≥ 0: sums and products of sizes."""
    return all(c >= 0 for _, c in _terms(size))


def is_positive(size: Size) -> bool:
    """Whether the size is proven > 0 even for empty dims."""
    return is_nonnegative(size) and dict(_terms(size)).get((), 0) > 0


def is_named(size: Size) -> bool:
    """Whether the size is a number or made of input symbols only."""
    return isinstance(size, int) or "@" not in size.name


def vanishes_with(a: Size, b: Size) -> bool:
    """Whether `a` is proven to be 0 wherever `b` is 0, because each product in the sum `b` then vanishes."""
    parts = _terms(b)
    return all(c > 0 for _, c in parts) and all(any(set(m) <= set(n) for m, _ in parts) for n, _ in _terms(a))


def differs(a: Size, b: Size) -> bool:
    """Whether the sizes are proven different: their difference is a nonzero number or has a constant sign."""
    gap = a - b
    if isinstance(gap, int):
        return gap != 0
    constant = dict(gap.terms).get((), 0)
    rest = [c for m, c in gap.terms if m]
    return (constant > 0 and min(rest) > 0) or (constant < 0 and max(rest) < 0)


# -- overflow of integers: runtimes wrap around, symbolic expressions do not -----------------------------------

LARGEST_INTEGERS: Final = {TensorProto.INT32: (1 << 31) - 1, TensorProto.INT64: (1 << 63) - 1}
# Assumed bounds of symbols: a small multiple of a size fits 32 bits (index arithmetic of TensorFlow), a product of two
# does not. In 64 bits a product of three fits if it counts elements of an existing tensor.
_ALONG_ONE_AXIS: Final = 1 << 24
_OF_ONE_TENSOR: Final = 1 << 40


def fits(size: Size, data_type: int, is_counted: Callable[[Monomial], bool]) -> bool:
    """Whether a size fits the type for all symbols. `is_counted`: whether symbols are dims of a single tensor."""
    largest = LARGEST_INTEGERS.get(data_type)
    if largest is None:
        return False
    if isinstance(size, int):
        return -largest - 1 <= size <= largest
    if sum(abs(c) * _ALONG_ONE_AXIS ** _degree(m) for m, c in size.terms) <= largest:
        return True
    return sum(abs(c) * _reach(m, is_counted) for m, c in size.terms) <= largest


def _reach(product: Monomial, is_counted: Callable[[Monomial], bool]) -> int:
    reach: int = _ALONG_ONE_AXIS ** _degree(product)
    return _OF_ONE_TENSOR if reach > _OF_ONE_TENSOR and is_counted(product) else reach


def _degree(product: Monomial) -> int:
    """Return the number of multiplied sizes, also inside a floor."""
    return sum(max(_degree(m) for m, _ in n.size.terms) if isinstance(n, Floor) else 1 for n in product)
