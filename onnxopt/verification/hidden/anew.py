"""One piece of both models, made anew of other numbers than those of any case."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.verification.numbers.rounding import Difference, overflows
from onnxopt.verification.pieces.noise import noise_of
from onnxopt.verification.pieces.precise import is_rounding
from onnxopt.verification.pieces.replay import Replay
from onnxopt.verification.programs.runner import Failed
from onnxopt.verification.programs.stream import Stream

if TYPE_CHECKING:
    from onnxopt.verification.pieces.walk import Walk

_LONGEST: Final = 200  # nodes of a piece


@dataclass
class Piece:
    """What makes `value` of B, and what it stands for in A, of what is fed. `known`: what A's nodes read, by case;
    `asked`: what B's read besides, and A's make."""

    walk: Walk
    value: str
    fed: Collection[str]
    fed_of_a: Collection[str]
    nodes: Sequence[int]
    known: list[dict[str, Any]]
    both: set[str]
    asked: set[str]

    @classmethod
    def of(cls, walk: Walk, value: str, behind: Collection[str] = ()) -> Piece | None:
        """From what is fed but for values `behind` it; None where that is too long, draws, or cannot be fed."""
        of, fed, fed_of_a = walk.pairs.of, walk.fed, walk.fed_of_a
        if behind:
            fed, fed_of_a = fed.difference(behind), fed_of_a.difference({of.get(v, v) for v in behind})
        entries = walk.a.entries(walk.a.cone([of[value]], fed_of_a, _LONGEST + 1), fed_of_a)
        read = {of.get(e, e) for e in walk.b.entries(walk.b.cone([value], fed), fed)}
        asked = read.difference(entries)
        nodes = walk.a.cone([of[value], *asked], fed_of_a, _LONGEST + 1)
        entries = walk.a.entries(nodes, fed_of_a.difference(asked))
        known = [{e: values.get(e) for e in entries} for values in walk.original.values]
        if len(nodes) > _LONGEST or not walk.a.random.isdisjoint(nodes) or not asked <= walk.a.maker.keys():
            return None
        if not all(isinstance(v, np.ndarray) for values in known for v in values.values()):
            return None
        return cls(walk, value, fed, fed_of_a, nodes, known, read.difference(asked), asked)

    def differs(self, draw: Callable[[dict[str, Any]], Iterable[Mapping[str, Any]]]) -> bool:
        """Does it where some of what is known is what one may `draw` instead, by more than roundings? Each case is
        asked for itself: what comes of it is the same beside whatever others."""
        return any(self._differs(case, draw(known)) for case, known in enumerate(self.known))

    def _differs(self, case: int, drawn: Iterable[Mapping[str, Any]]) -> bool:
        walk, original, types = self.walk, self.walk.pairs.of[self.value], self.walk.original.types
        known = self.known[case]
        try:
            opened = walk.runner.open(self.nodes, {e: types[e] for e in known}, [*self.asked, original])
            fed: list[dict[str, Any]] = []
            for others in drawn:
                made = opened.run({**known, **others})
                if not any(map(overflows, made.values())):
                    fed.append({**known, **others, **made})
            return bool(fed) and not self._agrees(walk.replay.drawn(Stream(walk.runner, fed, types), case))
        except (Failed, ValueError, IndexError, KeyError):  # they do not take such numbers, or a view does not
            return False

    def _agrees(self, replay: Replay) -> bool:
        walk, value, share = self.walk, self.value, self.walk.share(self.value)
        agrees, differences, _ = replay.hold(value, replay.run([value], self.fed)[value], share)
        if agrees or any(d.note for d in differences):
            return agrees
        jump = replay.jumping(value, self.fed, share)
        original = walk.pairs.of[value]
        held = {original: jump} if jump is not None else {}
        noise = noise_of(walk.runner, replay.original, [original], self.fed_of_a, walk.seed, walk.dtype, held)
        return self._explains(replay, differences, noise.get(original, []))

    def _explains(self, replay: Replay, differences: Sequence[Difference], noise: Sequence[Difference]) -> bool:
        return explains(self.walk, replay, self.value, differences, noise, (self.fed, self.fed_of_a))


def explains(
    walk: Walk,
    replay: Replay,
    value: str,
    differences: Sequence[Difference],
    noise: Sequence[Difference],
    fed: tuple[Collection[str], Collection[str]],
) -> bool:
    """Does noise, or float64, explain these differences of a value? `fed`: of B, and of A."""
    if noise and all(d.explained(n) for d, n in zip(differences, noise)):
        return True
    share = walk.share(value)
    cases = [i for i, d in enumerate(differences) if not d.within(share)]
    return is_rounding(replay, value, cases, *fed, share, seed=walk.seed, memory=walk.memory)
