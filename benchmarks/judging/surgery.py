"""One result of a model, broken in one place at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import inf
from random import Random
from typing import Final

import mutations
from mutations import Edit, Kind, Place
from onnx import ModelProto

from judging.noise import Engine, Original, distance, shapes, span

_VISIBLE: Final = 1e-3  # of an output's range: no noise


class Surgeon:
    """`made`: the values whose producers rewrites made."""

    def __init__(self, original: Original, result: ModelProto, made: set[str]) -> None:
        self.original, self.result = original, result
        engine = Engine(result, stateful=original.stateful)
        self.unbroken = [engine.run(feeds) for feeds in original.cases]
        known = mutations.know(result, shapes(result, original.cases[0]))
        self.places = mutations.places(result, known, mutations.know(original.model), made)

    def edits(self, rng: Random) -> Iterator[tuple[Kind, Place, Edit]]:
        """Yields all edits: one of each kind first, then by kind in turn, places of rewrites first."""
        kinds = rng.sample(mutations.KINDS, len(mutations.KINDS))
        ranks = {kind: [self._edits(kind, where, rng.random()) for where in mutations.WHERE] for kind in kinds}
        for found in ranks.values():
            first = next(chain(*found), None)
            if first is not None:
                yield first
        for rank in range(len(mutations.WHERE)):
            waiting = [found[rank] for found in ranks.values()]
            while waiting:
                taken = [(found, next(found, None)) for found in waiting]
                yield from (edit for _, edit in taken if edit)
                waiting = [found for found, edit in taken if edit]

    def _edits(self, kind: Kind, where: str, seed: float) -> Iterator[tuple[Kind, Place, Edit]]:
        rng = Random(seed)  # of its own: what other kinds find changes nothing here
        found = [place for place in self.places if place.where == where]
        for place in rng.sample(found, len(found)):
            edit = kind(place, rng)
            if edit is not None:
                yield kind, place, edit

    def effect(self, broken: ModelProto, beyond: int = 0) -> tuple[float, float, float] | None:
        """Returns the distance from the unbroken result (see `Original.excess`), and multiples of noise on usual cases.

        None if the mutant does not run. `beyond`: see `Edit`.
        """
        try:
            engine = Engine(broken, stateful=self.original.stateful)
            outputs = [engine.run(feeds) for feeds in self.original.cases]
            if beyond and (change := self._beyond(engine, beyond)) > _VISIBLE:
                return inf, change, 0.0
        except Exception:
            return None
        if self.original.equal(outputs):
            return 0.0, 0.0, 0.0
        usual = outputs[: self.original.usual]
        return *self.original.excess(self.unbroken, outputs), self.original.excess(self.unbroken, usual)[0]

    def _beyond(self, engine: Engine, size: int) -> float:
        """The largest difference from the original, of an output's range, where an input is larger than `size`."""
        found = [0.0]
        for feeds, values in self.original.beyond(size):
            pairs = zip(values, engine.run(feeds))
            found += [distance(a, b) / (span(a) or 1.0) for a, b in pairs]
        return max(found)
