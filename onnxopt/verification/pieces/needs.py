"""Values of A read later: all further values need not be observed, or may be released."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property

from onnxopt.verification.pieces.pairs import Pairs
from onnxopt.verification.pieces.paths import is_single
from onnxopt.verification.programs.program import bodies


class Needs:
    """Needed values of A."""

    def __init__(self, pairs: Pairs) -> None:
        self.a, self.b = pairs.a, pairs.b
        self._of, self._by_original = pairs.of, pairs.by_original
        self.always: set[str] = set()  # values needed to describe a fault
        # Last reader by value; for outputs and values captured by bodies, the number of nodes.
        inside = (r for i in self.a.holding for r in self.a.reads[i])
        self._last = self.a.last_readers | dict.fromkeys(inside, len(self.a.nodes))
        self._into_parts = {r for i in self.a.hiding for r in self.a.reads[i]}
        self._is_single = not self.a.is_body and is_single(self.a)

    def observed(self, made: Sequence[str], end: int) -> list[str]:
        """Return the values among `made` needed after node `end`: by B, by A, or in bodies.

        All, unless types are known without observing them.
        """
        if not self._is_single:
            return list(made)
        of_b, last, inside = self._by_original, self._last, self._into_parts
        return [o for o in made if o in of_b or last.get(o, -1) > end or o in inside]

    def after(
        self, end: int, known: Collection[str], pending: Iterable[str], fed: set[str], fed_of_a: set[str]
    ) -> set[str]:
        """Return the values among `known` needed after node `end` of A.

        pending: undecided candidates of B; fed: cutpoints of B; fed_of_a: their names in A.
        """
        ahead = {name for name in known if self._last.get(name, -1) > end}
        # Other values are computed again from cutpoints, and their noise measured.
        waiting = {self._of[v] for v in pending} | (ahead - fed_of_a)
        behind = set(self.a.entries(self.a.cone(waiting, fed_of_a), fed_of_a))
        open_ = {n for n in known if any(self._is_open(i, fed) for i in self._readers.get(n, ()))}
        return self.always | ahead | waiting | behind | open_

    @cached_property
    def _readers(self) -> dict[str, list[int]]:
        """Indices of B's nodes by the name in A of a value read."""
        found: dict[str, list[int]] = {}
        for i, reads in enumerate(self.b.reads):
            for r in reads:
                found.setdefault(self._of.get(r, r), []).append(i)
        return found

    def _is_open(self, i: int, fed: set[str]) -> bool:
        """Return whether a node of B may run again, as results are no cutpoints, or has bodies to compare."""
        node = self.b.nodes[i]
        return bool(bodies(node)) or not fed.issuperset(filter(None, node.output))
