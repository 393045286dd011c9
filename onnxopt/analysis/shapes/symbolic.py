"""Sizes as expressions: integers, symbols, sums and products of them, and their floors, in one canonical form.

Two sizes are provably equal exactly if their canonical forms are the same. Symbols stand for sizes of dims, which are
never negative.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from math import gcd, prod
from typing import Final

_TERMS: Final = 128
_DEGREE: Final = 32
_LONGEST: Final = 200  # characters of a symbol that says how it was computed
LARGEST: Final = 1 << 63  # no size is as large


class TooComplex(ArithmeticError):
    """Powers of sums have more terms than anybody can compare: such a size is better not known."""


Monomial = tuple[str, ...]  # its symbols, sorted; () is the number one


class Expr:
    """A polynomial with at least one symbol: ((monomial, coefficient ≠ 0), …), sorted. Constants are plain ints.

    Never changed. Sizes are compared, and looked up, for each dim of each value: the hash is made once.
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
        if other == 0:
            return self
        return _normal([*self.terms, *_terms(other)])

    __radd__ = __add__

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size) -> Size:
        return self + -1 * other

    def __rsub__(self, other: Size) -> Size:
        return -1 * self + other

    def __mul__(self, other: Size) -> Size:
        if other == 1:  # most products begin with it
            return self
        if len(self.terms) * len(_terms(other)) > _TERMS**2:
            raise TooComplex
        return _normal([(tuple(sorted((*m, *n))), a * b) for m, a in self.terms for n, b in _terms(other)])

    __rmul__ = __mul__

    @cached_property
    def name(self) -> str:
        """How it is called as a dim: a symbol by its name, what is computed in braces, as no symbol is called."""
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
    left = sorted((m, c) for m, c in sums.items() if c)
    if len(left) > _TERMS or any(len(m) > _DEGREE or abs(c) >= LARGEST for m, c in left):
        raise TooComplex
    if not left:
        return 0
    if len(left) == 1 and not left[0][0]:
        return left[0][1]
    return Expr(tuple(left))


def divide(a: Size, b: Size) -> Size | None:
    """a / b where it comes out even for every value of the symbols; None where that is not proven.

    `b` is taken as not zero. Long division: the largest term of what is left by the largest of `b`.
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
        monomial, coefficient = max(_terms(left), key=_rank)
        rest = Counter(monomial)
        rest.subtract(symbols)
        if coefficient % number or any(n < 0 for n in rest.values()):
            return None
        term = _normal([(tuple(sorted(rest.elements())), coefficient // number)])
        result, left = result + term, left - term * b
    return None


def _rank(term: tuple[Monomial, int]) -> tuple[int, Monomial]:
    return len(term[0]), term[0]


class Floor(str):
    """A symbol: the floor of a size divided by a number. No coefficient of it is negative, so nor is the symbol."""

    size: Expr
    divisor: int

    def __new__(cls, size: Expr, divisor: int) -> Floor:
        made = super().__new__(cls, f"{{({size})//{divisor}}}")
        made.size, made.divisor = size, divisor
        return made


def quotient(a: Size, b: int) -> Size | None:
    """The floor of a / b, of a positive b, in one form: floors of floors are one, (p//c + q)//b = (p + c q)//(b c),
    multiples of b come out, common factors go; what is left is a symbol of its own, the same for the same numbers."""
    if isinstance(a, int):
        return a // b
    whole = _normal([(m, c // b) for m, c in a.terms])
    left = _normal([(m, c % b) for m, c in a.terms])
    if isinstance(left, int):
        return whole
    floors = [m[0] for m, c in left.terms if c == 1 and len(m) == 1 and isinstance(m[0], Floor)]
    common = gcd(b, *(c for m, c in left.terms if m))
    if floors:
        inner = floors[0]
        rest = quotient(inner.size + (left - symbol(inner)) * inner.divisor, b * inner.divisor)
    elif common > 1:
        rest = quotient(_normal([(m, c // common) for m, c in left.terms]), b // common)
    else:
        made = Floor(left, b)
        rest = symbol(made) if len(made) <= _LONGEST else None
    return None if rest is None else whole + rest


def lowest(size: Size, least: Mapping[str, int]) -> int | None:
    """What the size is proven to reach, whose symbols are at least so much, or 0; None where one is taken off."""
    if any(c < 0 for m, c in _terms(size) if m):
        return None
    return sum(c * prod(_lowest_of(name, least) for name in m) for m, c in _terms(size))


def _lowest_of(name: str, least: Mapping[str, int]) -> int:
    inside = (lowest(name.size, least) or 0) // name.divisor if isinstance(name, Floor) else 0
    return max(inside, least.get(name, 0))


def least(a: Size, b: int) -> Size | None:
    """The smaller of both, where `a` is no number a symbol of its own, like a quotient."""
    if isinstance(a, int):
        return min(a, b)
    name = f"{{min({a}, {b})}}"
    return symbol(name) if len(name) <= _LONGEST else None


def is_least(a: Size, of: Size) -> bool:
    """Is `a` what `of` is up to some number?"""
    return isinstance(a, Expr) and isinstance(of, Expr) and a.name.startswith(f"{{min({of}, ")


def is_nonnegative(size: Size) -> bool:
    """Proven ≥ 0: sums and products of sizes are."""
    return all(c >= 0 for _, c in _terms(size))


def is_positive(size: Size) -> bool:
    """Proven > 0, whatever dims are empty."""
    return is_nonnegative(size) and dict(_terms(size)).get((), 0) > 0


def is_named(size: Size) -> bool:
    """Is it a number, or made of the symbols of the inputs only?"""
    return isinstance(size, int) or "@" not in size.name


def vanishes_with(a: Size, b: Size) -> bool:
    """Proven: `a` is 0 wherever `b` is, because there each product in the sum `b` is."""
    parts = _terms(b)
    return all(c > 0 for _, c in parts) and all(any(set(m) <= set(n) for m, _ in parts) for n, _ in _terms(a))


def differs(a: Size, b: Size) -> bool:
    """Proven different for every value of the symbols: their difference is a number, or has one sign."""
    gap = a - b
    if isinstance(gap, int):
        return gap != 0
    constant = dict(gap.terms).get((), 0)
    rest = [c for m, c in gap.terms if m]
    return (constant > 0 and min(rest) > 0) or (constant < 0 and max(rest) < 0)
