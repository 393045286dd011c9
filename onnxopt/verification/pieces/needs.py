"""Which of A's values somebody is going to read: the rest may be forgotten."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property

from onnxopt.verification.pieces.pairs import Pairs
from onnxopt.verification.programs.program import bodies


class Needs:
    """`last`: the node of A that reads a value last; of outputs, and of what bodies read, the number of nodes.
    `always`: values that say more of a fault."""

    def __init__(self, pairs: Pairs) -> None:
        self.a, self.b = pairs.a, pairs.b
        self._of = pairs.of
        self.always: set[str] = set()
        self.last = self.a.last_readers()
        for node, reads in zip(self.a.nodes, self.a.reads):
            if bodies(node):
                self.last |= dict.fromkeys(reads, len(self.a.nodes))

    def after(
        self, end: int, known: Collection[str], pending: Iterable[str], fed: set[str], fed_of_a: set[str]
    ) -> set[str]:
        """What of the `known` is, after the node `end` of A. `pending`: candidates of B of which nothing is decided;
        `fed`: what pieces of B start from, `fed_of_a`: as A calls it."""
        ahead = {name for name in known if self.last.get(name, -1) > end}
        # What is no cut, or is made of such, is measured from cuts again.
        waiting = {self._of[v] for v in pending} | (ahead - fed_of_a)
        behind = set(self.a.entries(self.a.cone(waiting, fed_of_a), fed_of_a))
        open_ = {n for n in known if any(self._is_open(i, fed) for i in self._readers.get(n, ()))}
        return self.always | ahead | waiting | behind | open_

    @cached_property
    def _readers(self) -> dict[str, list[int]]:
        """The nodes of B that read what A calls so."""
        found: dict[str, list[int]] = {}
        for i, reads in enumerate(self.b.reads):
            for r in reads:
                found.setdefault(self._of.get(r, r), []).append(i)
        return found

    def _is_open(self, i: int, fed: set[str]) -> bool:
        """May this node of B be run again, since pieces do not start from all that it makes, or looked into?"""
        node = self.b.nodes[i]
        return bool(bodies(node)) or not fed.issuperset(filter(None, node.output))
