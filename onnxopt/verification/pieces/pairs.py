"""Correspondence between values and nodes of B and A, and values equal without a run."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from onnxopt.verification.model.dataflow import draws_of
from onnxopt.verification.model.operators import having
from onnxopt.verification.pieces.value_numbers import ValueNumbering
from onnxopt.verification.programs.program import Program, bodies
from onnxopt.verification.programs.transforms import name_in_file

# -- correspondence ---------------------------------------------------------------------------------------

_WHOLE: Final = having("whole") | {"Concat"}


class Pairs:
    """Correspondence of values.

    A name in B that extends a name of A (`add` and `add_rows`) is a guess, which must agree when run like any pair.
    """

    def __init__(self, a: Program, b: Program, outputs: Sequence[tuple[str, str]] | None = None) -> None:
        """Match values by name. `outputs`: corresponding outputs (A, B); by default, in order."""
        self.a, self.b = a, b
        self.outputs = list(zip(a.outputs, b.outputs)) if outputs is None else outputs
        # {value of B: corresponding value of A}, mostly of equal names.
        self.of = {name: name for name in b.maker if name in a.maker}
        if b.is_body:  # outputs of a body correspond under any names
            self.of |= {y: x for x, y in self.outputs if x in a.maker and y in b.maker}
        self._guess()
        self.by_original = {original: name for name, original in self.of.items()}
        # Values of B in int32 in place of A's int64; readers of these are not the same in both.
        mine, theirs = a.skeleton.kinds, b.skeleton.kinds
        pairs = (*self.of.items(), *((name, name) for name in b.given)) if theirs else ()
        self.int32 = {y for y, x in pairs if (mine.get(x), theirs.get(y)) == ("tensor(int64)", "tensor(int32)")}

    def _guess(self) -> None:
        """Add values of B whose names extend a name of A."""
        taken = set(self.of.values())
        for name in self.b.maker:
            if name not in self.of and name == name_in_file(name) and (guess := self._stem(name, taken)):
                self.of[name] = guess
                taken.add(guess)

    def _stem(self, name: str, taken: set[str]) -> str:
        while "_" in name:
            name = name.rpartition("_")[0]
            if name in self.a.maker:
                return "" if name in taken else name
        return ""

    def made_from(self, names: list[str]) -> Iterator[str]:
        """Yield the values of B that correspond to values of A."""
        return (self.by_original[name] for name in names if name in self.by_original)

    @functools.cached_property
    def drawing(self) -> set[int]:
        """Nodes of B that draw from elements, replaced by a draw of A with the same name."""
        alike = {operand.result for operand in self.b.skeleton.operands.values()}
        return {i for i, node in enumerate(self.b.nodes) if alike and draws_of(node) and node.output[0] in alike}

    @functools.cached_property
    def by_name(self) -> Sameness:
        """The sameness before any run, with equal names assumed to be equal values."""
        return Sameness(self, {*self.of, *self.b.given})

    def is_same(self, value: str) -> bool:
        """Return whether A and B make a value alike from operands with equal names and equal constants."""
        return value in self._same

    @functools.cached_property
    def _same(self) -> set[str]:
        known = {*self.of, *self.b.given} - self.int32  # a result of narrower integers may overflow
        every = ((y, self.a.maker[x], self.b.maker[y]) for y, x in self.of.items())
        places = [(y, i, j) for y, i, j in every if self.b.are_known(self.b.reads[j], known)]
        mine, theirs = self.by_name.a.number({i for _, i, _ in places}), self.by_name.b.number({j for *_, j in places})
        return {y for y, i, j in places if mine[i] == theirs[j]}

    def hands_on(self, value: str) -> bool:
        """Return whether equal nodes move all operands unchanged.

        Such a node compensates nothing, and beside large numbers, small ones may be arbitrary.
        """
        return self.b.nodes[self.b.maker[value]].op_type in _WHOLE and self.is_same(value)


# -- equality ---------------------------------------------------------------------------------------------


class Sameness:
    """Value numbers in two programs. Fed values have A's number in both."""

    def __init__(
        self,
        pairs: Pairs,
        fed: Collection[str],
        views: Collection[str] = (),
        folded: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
    ) -> None:
        """Number values on demand.

        fed: agreeing values of B; views: fed values with a different layout; folded: known results of constant nodes of
        A and B.
        """
        self._table: dict[Hashable, int] = {}
        self._pairs = pairs
        imports = pairs.a.skeleton.imports | pairs.b.skeleton.imports
        several = {d for d, n in Counter(domain for domain, _ in imports).items() if n > 1}
        of_b = {name: pairs.of.get(name, name) for name in fed}
        of_a = {name: ("value", name) for name in (*of_b.values(), *pairs.a.given)}
        keys = of_a, {y: ("other" if y in views else "value", x) for y, x in of_b.items()}
        sides = zip((pairs.a, pairs.b), keys, folded)
        self.a, self.b = (ValueNumbering(program, self._table, several, *how) for program, *how in sides)

    def is_made_alike(self, value: str) -> bool:
        """Return whether a value of B is computed from fed values as in A."""
        return self.are_made_alike(self._pairs.of[value], value)

    def made_differently(self, values: Iterable[str]) -> Iterator[str]:
        """Yield the values of B that are not computed as in A."""
        return (value for value in values if not self.is_made_alike(value))

    def are_all_made_alike(self, outputs: Sequence[str]) -> bool:
        """Return whether A and B compute the outputs alike, and B computes no further values on the way to them."""
        mine, nodes = [*map(self.a.value, outputs)], self._pairs.b.cone(outputs, ())
        numbers = len(self._table)
        for some in (64, 512, len(nodes)):  # most differences are found among the first nodes
            self.b.number(nodes[:some])
            if len(self._table) > numbers:
                return False
        return mine == [*map(self.b.value, outputs)]

    def are_made_alike(self, mine: str, theirs: str) -> bool:
        """Return whether a value of A and a value of B are computed alike from fed values."""
        return self.a.value(mine) == self.b.value(theirs)

    def changed(self, mine: Sequence[int], theirs: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return (nodes of A without equal node in B, nodes of B without equal node in A).

        Values in bodies and functions of A count for the second.
        """
        a, b = self._pairs.a, self._pairs.b
        named_of_a = _makers(b, theirs, self._pairs.of, a)
        named = _makers(a, mine, self._pairs.by_original, b)
        alike = (j for kind in a.kinds(mine) for j in b.places.get(kind, ()))
        of_a = self.a.number({*mine, *named_of_a})
        last = len(self._table)
        made = self.b.number({*theirs, *named, *alike})
        every = {number for results in made.values() for number in results.values()}
        only_in_a = [i for i in mine if not every.issuperset(of_a[i].values())]
        return only_in_a, [j for j in theirs if max(made[j].values(), default=0) >= last]

    def numbers(self, nodes: Sequence[int]) -> dict[str, int]:
        """Return the value numbers of results of A's nodes."""
        return {o: number for results in self.a.number(nodes).values() for o, number in results.items()}

    def reading_alike(self, i: int) -> list[int]:
        """Return B's nodes with the operator and the operands of A's node `i`."""
        mine = self.a.operands(i)
        return [j for j in self._pairs.b.places.get(self._pairs.a.nodes[i].op_type, ()) if self.b.operands(j) == mine]

    def alike(self, i: int, j: int) -> dict[str, bool]:
        """Return {attribute: whether the bodies of A's node `i` and B's node `j`, of one operator, are equal}.

        Empty if operands differ.
        """
        if self.a.operands(i) != self.b.operands(j):
            return {}
        a, b = self.a, self.b
        mine, theirs = bodies(self._pairs.a.nodes[i]), bodies(self._pairs.b.nodes[j])
        return {n: n in theirs and a.body(g, a.known) == b.body(theirs[n], b.known) for n, g in mine.items()}


def _makers(program: Program, nodes: Iterable[int], of: Mapping[str, str], other: Program) -> Iterator[int]:
    """Yield the nodes of `other` that make values corresponding to results of `nodes`. `of`: the correspondence."""
    return (other.maker[of[o]] for node in program.at(nodes) for o in node.output if o in of)
