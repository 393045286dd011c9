"""Correspondence between values and nodes of B and A, and values equal without a run."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from onnx import NodeProto

from onnxopt.verification.model.decisions import draws_of
from onnxopt.verification.model.operators import having
from onnxopt.verification.pieces.value_numbers import Numbers, ValueNumbering, number_of
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
        taken = set(self.of.values())
        for name in b.maker:
            if name not in self.of and name == name_in_file(name) and (guess := self._stem(name, taken)):
                self.of[name] = guess
                taken.add(guess)
        self.by_original = {original: name for name, original in self.of.items()}
        self.int32 = self._int32()

    def _int32(self) -> set[str]:
        """Return the values of B in int32 in place of A's int64; readers of these are not the same in both."""
        mine, theirs = self.a.skeleton.kinds, self.b.skeleton.kinds
        pairs = (*self.of.items(), *((name, name) for name in self.b.given)) if theirs else ()
        return {y for y, x in pairs if (mine.get(x), theirs.get(y)) == ("tensor(int64)", "tensor(int32)")}

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
        i, j, b = self.a.maker[self.of[value]], self.b.maker[value], self.b
        is_known = all(r in self.of or r in b.given or b.is_constant(r) for r in b.reads[j])
        # A result of narrower integers may overflow.
        return is_known and self.int32.isdisjoint(b.reads[j]) and self.by_name.make_alike(i, j)

    def hands_on(self, value: str) -> bool:
        """Return whether equal nodes move all operands unchanged.

        Such a node compensates nothing, and beside large numbers, small ones may be arbitrary.
        """
        return self.b.nodes[self.b.maker[value]].op_type in _WHOLE and self.is_same(value)


# -- equality ---------------------------------------------------------------------------------------------


class Sameness:
    """Value numbers in two programs. Fed values have A's number in both."""

    def __init__(self, pairs: Pairs, fed: Collection[str], views: Collection[str] = ()) -> None:
        """Number values on demand. fed: agreeing values of B; views: fed values with a different layout."""
        self._table: dict[Hashable, int] = {}
        self._pairs = pairs
        self._fed = frozenset(fed)
        self._fed_of_a = frozenset(pairs.of.get(name, name) for name in fed)
        self._views = views
        self._reads: dict[str, tuple[Numbers, Numbers, dict[tuple[int, ...], list[int]]]] = {}  # by operator
        imports = pairs.a.skeleton.imports | pairs.b.skeleton.imports
        several = {d for d, n in Counter(domain for domain, _ in imports).items() if n > 1}
        self.a, self.b = (ValueNumbering(p, self._table, several) for p in (pairs.a, pairs.b))

    def is_made_alike(self, value: str) -> bool:
        """Return whether a value of B is computed from fed values as in A."""
        return self.are_made_alike(self._pairs.of[value], value)

    def are_made_alike(
        self, mine: str, theirs: str, folded: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
    ) -> bool:
        """Return whether a value of A and a value of B are computed alike from fed values.

        folded: known results of constant nodes of A and B, treated as constants if not numbered before.
        """
        known_of_a, known_of_b = self._begin()
        for known, side, values in zip((known_of_a, known_of_b), (self.a, self.b), folded):
            known.update((name, number_of(self._table, side.elements(v))) for name, v in values.items())
        self.a.number(self._pairs.a.cone([mine], self._fed_of_a.union(folded[0])), known_of_a)
        self.b.number(self._pairs.b.cone([theirs], self._fed.union(folded[1])), known_of_b)
        return known_of_a[mine] == known_of_b[theirs]

    def make_alike(self, i: int, j: int) -> bool:
        """Return whether A's node `i` and B's node `j` make equal results of equal names from fed values."""
        known_of_a, known_of_b = self._begin()
        self.a.made([i], known_of_a, self._fed_of_a)
        self.b.made([j], known_of_b, self._fed)
        return self.a.found[i] == self.b.found[j]

    def changed(self, mine: Sequence[int], theirs: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return (nodes of A without equal node in B, nodes of B without equal node in A).

        Values in bodies and functions of A count for the second.
        """
        a, b = self._pairs.a, self._pairs.b
        known_of_a, known_of_b = self._begin()
        named_of_a = _makers(a, (self._pairs.of.get(o, "") for j in theirs for o in b.nodes[j].output))
        named = _makers(b, (self._pairs.by_original.get(o, "") for i in mine for o in a.nodes[i].output))
        alike = (j for kind in {a.nodes[i].op_type for i in mine} for j in b.places.get(kind, ()))
        of_a = self.a.made({*mine, *named_of_a}, known_of_a, self._fed_of_a)
        last = len(self._table)
        of_b = self.b.made({*theirs, *named, *alike}, known_of_b, self._fed)
        every = set[int]().union(*of_b.values())
        return [i for i in mine if not of_a[i] <= every], [j for j in theirs if max(of_b[j], default=0) >= last]

    def numbers(self, nodes: Sequence[int]) -> dict[str, int]:
        """Return the value numbers of results of A's nodes."""
        self.a.made(nodes, self._begin()[0], self._fed_of_a)
        return {o: number for i in nodes for o, number in self.a.found.get(i, {}).items()}

    def reading_alike(self, i: int) -> list[int]:
        """Return B's nodes with the operator and the operands of A's node `i`."""
        node = self._pairs.a.nodes[i]
        mine, _, readers = self._read(node.op_type)
        return readers.get(_operands(node, mine), [])

    def reads_alike(self, i: int, j: int, k: int) -> bool:
        """Return whether operand `k` is equal in A's node `i` and B's node `j`, of equal operators."""
        x, y = self._pairs.a.nodes[i], self._pairs.b.nodes[j]
        mine, theirs, _ = self._read(x.op_type)
        return [mine[name] for name in x.input[k : k + 1]] == [theirs[name] for name in y.input[k : k + 1]]

    def alike(self, i: int, j: int) -> dict[str, bool]:
        """Return {attribute: whether the bodies of A's node `i` and B's node `j` are equal}.

        Empty if operators or operands differ.
        """
        if j not in self.reading_alike(i):
            return {}
        x, y = self._pairs.a.nodes[i], self._pairs.b.nodes[j]
        (mine, theirs, _), other = self._read(x.op_type), bodies(y)
        return {
            name: name in other and self.a.body(graph, mine) == self.b.body(other[name], theirs)
            for name, graph in bodies(x).items()
        }

    def _read(self, operator: str) -> tuple[Numbers, Numbers, dict[tuple[int, ...], list[int]]]:
        """Return (numbers of operands of an operator's nodes in A, in B, nodes of B by operands)."""
        if operator not in self._reads:
            b, (mine, theirs) = self._pairs.b, self._begin()
            self.a.read(operator, mine, self._fed_of_a)
            self.b.read(operator, theirs, self._fed)
            readers: dict[tuple[int, ...], list[int]] = {}
            for j in b.places.get(operator, ()):
                readers.setdefault(_operands(b.nodes[j], theirs), []).append(j)
            self._reads[operator] = mine, theirs, readers
        return self._reads[operator]

    def _begin(self) -> tuple[Numbers, Numbers]:
        """Return the value numbers of values made by no node, of A and of B."""
        return _Begun(self._of_a, self._table), _Begun(self._of_b, self._table)

    def _of_a(self, name: str) -> Hashable:
        return self.a.constant(name) if self._pairs.a.is_constant(name) else ("value", name)

    def _of_b(self, name: str) -> Hashable:
        if self._pairs.b.is_constant(name):
            return self.b.constant(name)
        if name not in self._fed or name in self._views:
            return "other", name
        return "value", self._pairs.of.get(name, name)


class _Begun(dict[str, int]):
    """Value numbers computed on demand. `of`: keys of values in the table."""

    def __init__(self, of: Callable[[str], Hashable], table: dict[Hashable, int]) -> None:
        self._of, self._table = of, table

    def __missing__(self, name: str) -> int:
        found = self[name] = number_of(self._table, self._of(name))
        return found


def _operands(node: NodeProto, known: Numbers) -> tuple[int, ...]:
    return tuple(known[name] for name in node.input if name)


def _makers(program: Program, names: Iterable[str]) -> set[int]:
    return {program.maker[name] for name in names if name in program.maker}
