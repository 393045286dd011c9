"""The equation of an Einsum, with a letter for each axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

Letters: TypeAlias = tuple[str, ...]
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class Equation(NamedTuple):
    """The equation `bij,bjk->bik`: `terms` and `result` have a letter for each axis of an operand and of the result.

    The axes of an ellipsis are `.1`, `.2`, …, counted from the last.
    """

    terms: tuple[Letters, ...]
    result: Letters

    @property
    def has_dots(self) -> bool:
        """Return whether an operand has an ellipsis with axes."""
        return any(letter[0] == "." for term in self.terms for letter in term)

    @property
    def has_diagonal(self) -> bool:
        """Return whether a term has a letter twice."""
        return any(len(set(term)) < len(term) for term in self.terms)


def read_equation(text: str, ranks: Sequence[int | None]) -> Equation | None:
    """Return the equation of operands of these ranks, or None if the text does not fit the ranks.

    A rank may be unknown, except of a term with an ellipsis.
    """
    left, arrow, right = text.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(ranks):
        return None
    terms = [_letters(part, rank) for part, rank in zip(parts, ranks)]
    found = [term for term in terms if term is not None]
    if len(found) < len(terms):
        return None
    most = max(sum(letter[0] == "." for letter in term) for term in found)
    if not arrow:  # the ellipsis, and letters that occur once, in alphabetical order
        right = "..." + "".join(sorted(c for c in _LETTERS if left.count(c) == 1))
    before, given, behind = right.partition("...")
    result = _letters(right, len(before + behind) + (most if given else 0))
    return Equation(tuple(found), result) if result is not None and len(set(result)) == len(result) else None


def _letters(term: str, rank: int | None) -> Letters | None:
    """Return a letter for each axis of a term, or None if the term does not fit the rank."""
    before, dots, behind = term.partition("...")
    meant = 0 if rank is None else rank - len(before + behind)
    if not _LETTERS.issuperset(before + behind) or meant < 0 or (not dots and meant) or (dots and rank is None):
        return None
    return (*before, *(f".{i}" for i in range(meant, 0, -1)), *behind)
