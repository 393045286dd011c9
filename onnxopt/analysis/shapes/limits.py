"""Upper and lower limits of size expressions, under one assumption: no tensor of the model has 2**31 elements or more.

So a dim is below 2**31, and also the product of adjacent dims of a tensor. Zero dims count as one: the nonzero dims of
an empty tensor have a product below 2**31, too. Runtimes that count elements in 32 bits support no larger tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Final

from onnxopt.analysis.shapes.sizes import product
from onnxopt.analysis.shapes.symbolic import Expr, Floor, Monomial, Size, TooComplex

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
