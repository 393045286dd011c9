"""A node with what is known of the shapes and elements of its operands.

A shape is a tuple of numbers and symbols of the model's inputs; `UNKNOWN` stands for any further size. None: unknown
rank. Elements are told in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from onnx import AttributeProto, NodeProto

Shape: TypeAlias = "tuple[int | str, ...]"
UNKNOWN: Final = -1
MAX_SIZES: Final = 12  # elements of a vector


class Known(NamedTuple):
    """Facts about a value."""

    shape: Shape | None = None
    elements: Shape | None = None  # of an integer vector or scalar computed from shapes


class UnknownShape(Exception):
    """A rule needs an unknown shape."""


class Call:
    """A node with the facts about operands, and constant integers."""

    def __init__(
        self, node: NodeProto, known: Sequence[Known], integers: Callable[[str], Sequence[int] | None]
    ) -> None:
        self.node, self._integers = node, integers
        self.shapes = [k.shape for k in known]
        self.elements = [_elements(k) for k in known]
        self._says: Mapping[str, AttributeProto] = {a.name: a for a in node.attribute}

    @property
    def first(self) -> Shape:
        """The shape of the first operand. Raises UnknownShape."""
        if self.shapes[0] is None:
            raise UnknownShape
        return self.shapes[0]

    def is_given(self, at: int, name: str) -> bool:
        """Return whether an operand is present, or, in older opsets, the attribute."""
        return name in self._says or bool(len(self.node.input) > at and self.node.input[at])

    def integers(self, at: int, name: str) -> Sequence[int] | None:
        """Return the operand's integers, constant or computed from known sizes, else None."""
        if name in self._says:
            return list(self._says[name].ints)
        if not self.is_given(at, name):
            return None
        constant = self._integers(self.node.input[at])
        known = self.elements[at] if constant is None and at < len(self.elements) else None
        computed = [n for n in known or () if isinstance(n, int) and n != UNKNOWN]
        return computed if known and len(computed) == len(known) else constant

    def axes(self, at: int, rank: int) -> list[int] | None:
        """Return the constant axes normalized for a rank, else None."""
        found = self.integers(at, "axes")
        if found is None or not all(-rank <= a < rank for a in found):
            return None
        return [a % rank for a in found]

    def number(self, name: str) -> int | None:
        """Return an integer attribute, else None."""
        return self._says[name].i if name in self._says else None


def _elements(known: Known) -> Shape | None:
    """Return the elements of a vector; those of a vector of known length may be unknown, those of a matrix are."""
    match known.shape:
        case (_, _, *_):
            return None
        case (int(length),) if known.elements is None and 0 < length <= MAX_SIZES:
            return (UNKNOWN,) * length
    return known.elements
