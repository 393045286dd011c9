"""Verification in pieces: B is run between values that it shares with A, on A's own values, and held against A there.

A value that nodes of both make is a candidate. What B makes of A's values agrees with A's, up to what rounding does in
one piece: the candidate is a *cut*, and what follows starts from A's value there. By induction over the cuts B computes
what A computes; nothing is amplified through the depth of the network, and what decides (TopK, a comparison, a
quantizer) is fed the very same numbers in both. A value that does not agree (a scale moved into weights) is no cut, and
the piece grows beyond it.

Where a node is the same in both and reads cuts only, what it makes agrees without a run.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from onnxopt.verification.numbers.compare import is_blank
from onnxopt.verification.numbers.rounding import NOISE, Difference, worst
from onnxopt.verification.pieces.doubts import doubts
from onnxopt.verification.pieces.faults import Faults
from onnxopt.verification.pieces.needs import Needs
from onnxopt.verification.pieces.noise import noise_of
from onnxopt.verification.pieces.outcome import First, Outcome
from onnxopt.verification.pieces.outputs import unsettled
from onnxopt.verification.pieces.pairs import Pairs
from onnxopt.verification.pieces.paths import Path, paths
from onnxopt.verification.pieces.precise import is_rounding
from onnxopt.verification.pieces.replay import Replay
from onnxopt.verification.pieces.views import View
from onnxopt.verification.programs.runner import Failed, Runner
from onnxopt.verification.programs.stream import VALUES, Stream

if TYPE_CHECKING:
    from onnxopt.verification.pieces.enclosing import Enclosing
    from onnxopt.verification.pieces.sameness import Sameness

_OPEN: Final = 30_000  # nodes of B behind values that do not agree, before somebody is blamed
_PIECE: Final = 2000  # nodes of a piece that are counted
_DOUBTS: Final = 4  # candidates behind each other that a scale is moved through
_MOVED: Final = 1e-2  # what makes up for a difference leaves at most this much of it,
_MERE: Final = 1.0  # and at most so many times the noise
_PRECISE: Final = 3  # values in the way that are computed in float64


class Walk:
    """Holds B against A on `cases`, which map the names of what both are given to values."""

    def __init__(
        self,
        a: Runner,
        b: Runner,
        cases: Sequence[Mapping[str, Any]],
        given: Mapping[str, str],
        *,
        memory: int = 2 << 30,
        seed: int = 0,
        held: Mapping[str, str] | None = None,
        dtype: str = "",
        outputs: Sequence[tuple[str, str]] | None = None,
        enclosing: Enclosing | None = None,
        fine: bool = False,
        digits: bool = False,
    ) -> None:
        """`given`: the types of what is fed, as onnxruntime writes them. `memory`: bytes for weights and values.
        `held`: the types of what B may hold in the narrower `dtype`. `outputs`: see `Pairs`. `enclosing`: of a
        body. `fine`, `digits`: see `Replay`."""
        self.a, self.b = a.program, b.program
        self.runner = a
        self.memory = memory
        self.seed = seed
        self.original = Stream(a, cases, given)
        self.held, self.dtype = held or {}, dtype
        self.enclosing = enclosing
        self.pairs = Pairs(self.a, self.b, outputs)
        self.needs = Needs(self.pairs)
        b = b.telling(self.original.told)
        self.replay = Replay(b, self.original, self.pairs, self.held, dtype, fine=fine, digits=digits)
        self._order = {value: i for i, value in enumerate(self.b.maker)}
        self.cuts: set[str] = set(given)
        self.fed: set[str] = set(given)  # those that pieces start from,
        self.fed_of_a: set[str] = set(given)  # as A calls them
        self.first: dict[str, First] = {}
        self.latest: dict[str, list[Difference]] = {}  # by value, from cuts alone: of each case
        self._agreed: dict[str, tuple[bool, View | None]] = {}  # and whether it did, and how B held it
        self._new: set[str] = set()  # cuts from which nothing was run yet
        self.pending: list[str] = []
        self.blank: list[str] = []  # cuts that say nothing, and may be made otherwise
        self.folded: dict[tuple[str, str], bool] = {}  # values of A and B: are they made alike of what constants make?
        self.outcome = Outcome()
        self._faults = Faults(self.replay, self.outcome.faults)

    def run(self) -> Outcome:
        """Raises Failed where A fails."""
        for nodes in self.original.run_all(self.memory // 4, self._wanted):
            last = nodes[-1] + 1 == len(self.a.nodes)
            self._settle(list(self.pairs.made_from(self.a.made(nodes))), last)
            if not last:
                self._forget(nodes[-1])
        self.outcome.unsettled += unsettled(self.replay, self.cuts)
        return self.outcome

    def _wanted(self, nodes: Sequence[int]) -> list[str]:
        return self.needs.observed(self.a.made(nodes), nodes[-1])

    def _forget(self, last: int) -> None:
        """Let go of values that neither is going to read, should they take more than one segment's."""
        if self.original.size >= VALUES:
            known = self.original.values[0]
            self.original.keep(self.needs.after(last, known, self.pending, self.fed, self.fed_of_a))
            self.replay.forget(self.pending)

    # -- cuts --------------------------------------------------------------------------------------------

    def _settle(self, new: list[str], last: bool) -> None:
        """Find out which candidates are cuts; where that ends, who is to blame, and go on behind."""
        self.outcome.candidates += len(new)
        self.pending = sorted({*self.pending, *new}, key=self._order.__getitem__)
        for value in new:
            if self.pairs.is_same(value):
                reads = self.b.reads[self.b.maker[value]]
                self.first[value] = First(True, {r: None for r in reads if not self.b.is_constant(r)}, moves=True)
        self.outcome.same += self._resolve()
        self._guess_views([v for v in new if self.pairs.of[v] != v])
        self._assume_all()
        self._tighten()
        while blocked := self._blocked(last):
            if not self._hear(blocked) and not self._blame(blocked):
                break
            self._resolve()
            self._tighten()

    def _resolve(self) -> int:
        """Make cuts of what is pending, agreed, and read nothing but cuts, as B holds them; how many."""
        views, before, rest = self.replay.views, len(self.pending), []
        for value in self.pending:
            seen = self.first.get(value)
            if seen and seen.ok and all(e in self.cuts and views.get(e) == view for e, view in seen.entries.items()):
                self._cut(value, seen.found)
            else:
                rest.append(value)
        self.pending = rest
        return before - len(rest)

    def _cut(self, value: str, found: Difference) -> None:
        if self._faults.follow(value, self.fed):
            self._put_down(value)
            return
        self.cuts.add(value)
        if self._is_entry(value):
            self._feed(value)
        self.outcome.cuts += 1
        run = value in self.latest or (value in self.first and not self.first[value].moves)
        if (run or not self.pairs.is_same(value)) and all(map(is_blank, self.replay.mine(value))):
            self.outcome.blank += run
            self.blank.append(value)
        if found.relative > self.outcome.worst.relative:
            self.outcome.worst, self.outcome.worst_value = found, value

    def _feed(self, value: str) -> None:
        self.fed.add(value)
        self.fed_of_a.add(self.pairs.of.get(value, value))
        self._new.add(value)

    def _is_entry(self, value: str) -> bool:
        """Can pieces start from it?"""
        fixed = self.pairs.of[value] in self.a.fixed or value in self.b.fixed
        return not fixed and self.replay.kind(value).startswith(("tensor(", "seq(tensor("))

    def _guess_views(self, renamed: list[str]) -> None:
        """How B holds what has another name there: in the view that comes nearest, before anything is known."""
        if not renamed:
            return
        found = self.replay.run_each(renamed, self.fed)
        for value in renamed:
            view = self.replay.hold(value, found[value], 0.0)[2]
            if view is not None:
                self.replay.views[value] = view
            elif any(d.note for d in self.replay.hold(value, found[value], 0.0)[1]):  # nothing that A's could be
                self.pending.remove(value)

    def _assume_all(self) -> None:
        """Run all pieces as if every candidate were a cut: most are, and then each piece is as small as it can be.

        What does not agree then, and reads what may not, is run again as if that were none: a scale that was moved into
        weights is behind some candidates, and made up for by the next.
        """
        new = [v for v in self.pending if v not in self.first]
        fed = self.fed | {v for v in self.pending if self._is_entry(v)}
        self.first |= self._assume(new, fed)
        self._resolve()
        for _ in range(_DOUBTS):
            doubted, excused = doubts(self.pending, self.first)
            found = self._assume([v for v in new if v in excused], fed - doubted)
            if not found:
                break
            self.first |= found
            for value in (v for v, seen in found.items() if seen.ok):
                self._measure(value, fed - doubted)
            self._resolve()

    def _assume(self, values: Sequence[str], fed: set[str]) -> dict[str, First]:
        """What comes of these if all that is `fed` are cuts; nothing where that does not run."""
        if not values:
            return {}
        try:
            found = self.replay.run(values, fed)
        except Failed:  # something in B has another shape: from cuts alone, which says what
            return {}
        by_path, views, firsts = self._paths(values, fed), dict(self.replay.views), {}
        for value in values:
            entries = self.b.entries(self.b.cone([value], fed), fed)
            ok, differences, view = self.replay.hold(value, found[value], by_path[value].share)
            moves = not by_path[value].depth
            firsts[value] = First(ok, {e: views.get(e) for e in entries}, worst(differences), moves)
            if ok:
                self._see(value, view)
        return firsts

    def _measure(self, value: str, fed: set[str]) -> None:
        """The nodes of its piece."""
        self.outcome.largest_piece = max(self.outcome.largest_piece, len(self.b.cone([value], fed, _PIECE)))

    def _see(self, value: str, view: View | None) -> None:
        """From now on B is fed A's value through this view."""
        if view is None:
            self.replay.views.pop(value, None)
        else:
            self.replay.views[value] = view

    def _tighten(self) -> None:
        """Run what is pending from cuts alone, as long as that makes new ones."""
        progress = 1
        while self.pending and progress:
            begun = self._begun_anew()
            found = self.replay.run_each(begun, self.fed) if begun else {}
            found_paths = self._paths(begun, self.fed)
            for value in begun:
                ok, self.latest[value], view = self.replay.hold(value, found[value], found_paths[value].share)
                self._agreed[value] = ok, view
            agreed = [v for v in self.pending if self._agreed[v][0] and not self._hides(v)]
            for value in agreed:
                self._see(value, self._agreed[value][1])
                self._measure(value, self.fed)
            for value in agreed:
                self._cut(value, worst(self.latest[value]))
            self.pending = [v for v in self.pending if v not in self.cuts]
            progress = len(agreed) + self._resolve()

    def _begun_anew(self) -> list[str]:
        """What is pending and was not run yet, or begins elsewhere now: it is behind a new cut."""
        of, new, self._new = self.pairs.of, self._new, set()
        theirs = self.b.behind(new, self.fed, max(self.b.maker[v] for v in self.pending))
        last = max(self.a.maker[of[v]] for v in self.pending)
        mine = self.a.behind({of.get(v, v) for v in new}, self.fed_of_a, last)
        return [v for v in self.pending if v not in self._agreed or v in theirs or of[v] in mine]

    def _hides(self, value: str) -> bool:
        """Is what it hands on, of the same range or far smaller, no cut yet, or what is drawn on the way of?"""
        if self.pairs.drawing:  # a few draws that are alike say little of what they are drawn of
            nodes = self.pairs.drawing.intersection(self.b.cone([value], self.fed))
            if any(r in self.pending for i in nodes for r in self.b.reads[i]):
                return True
        if "float" not in self.replay.kind(value) or not self.pairs.hands_on(value):
            return False
        return any(r in self.pending and not worst(self.latest[r]).note for r in self.b.reads[self.b.maker[value]])

    # -- who is to blame ---------------------------------------------------------------------------------

    def _blocked(self, last: bool) -> list[str]:
        """What is pending and in the way of what is still to be decided: an output, or read by what agrees but for it.

        A piece that only moves numbers agrees whatever it reads, and says what its own readers do. Before the last
        segment nobody is in the way yet, unless too much has come together behind it.
        """
        pending = set(self.pending)
        outputs = [self.pairs.by_original.get(v, v) for v in self.a.outputs]
        found = {v for v in outputs if v in pending} if last else set()
        for value in reversed(self.pending):
            seen = self.first.get(value)
            if seen is not None and seen.ok and (not seen.moves or value in found):
                found.update(v for v in seen.entries if v in pending)
        over = [v for v in self.pending if self._overflows(v)]
        if over or not found:
            return over
        known = self.original.values[0]
        open_ = outputs if last else [v for v in self.b.maker if self.pairs.of.get(v, v) not in known]
        nodes = self.b.cone((v for v in open_ if v not in self.cuts), self.fed)
        if not last and sum(i <= self.b.maker[self.pending[-1]] for i in nodes) < _OPEN:
            return []
        open_nodes = set(nodes)
        return [v for v in self.pending if v in found and self.b.maker[v] in open_nodes]

    def _overflows(self, value: str) -> bool:
        """Is it infinite, or none, in the narrower type only? That nothing makes up for, even if this runtime computes
        what follows in wider numbers than it is given."""
        is_narrow = bool(self.held) and self.replay.is_narrow(value)
        return is_narrow and any(d.note.endswith("the narrower type") for d in self.latest.get(value, ()))

    def _hear(self, blocked: Sequence[str]) -> bool:
        """Is the first in the way no worse than what the last bits of A do in the same piece? Then it is a cut, too.

        If it is not, it may have been moved on purpose (a scale), and what makes up for that differs by noise: by far
        less than what it makes up for. Where nothing is rounded between cuts, no noise explains anything.
        """
        first, found_paths = blocked[0], self._paths(blocked, self.fed)
        differs = worst(self.latest[first])
        # The noise takes runs: it is measured where it could explain something.
        rounded = [
            v
            for v in blocked
            if found_paths[v].depth > 0
            and not any(d.note for d in self.latest[v])
            and (v == first or (self._is_little(v, differs) and not self._hides(v)))
        ]
        noise = self.noise([first]) if first in rounded else {}  # the cheapest piece, which is explained most often
        if first in noise and all(d.explained(n) for d, n in zip(self.latest[first], noise[first])):
            heard = [first]
        else:
            noise |= self.noise([v for v in rounded if v != first], _MERE)
            heard = [v for v in rounded if v != first and v in noise and self._makes_up(v, noise[v])]
        self.outcome.noisy += len(heard)
        if not heard:
            precise = (v for v in rounded[:_PRECISE] if self._is_rounding(v, noise, found_paths[v].share))
            heard = [v for v in (next(precise, None),) if v is not None]
        for value in heard:
            self._cut(value, worst(self.latest[value]))
        self.pending = [v for v in self.pending if v not in self.cuts]
        return bool(heard)

    def _is_little(self, value: str, moved: Difference) -> bool:
        """Is what is left of a difference next to nothing beside what was moved?"""
        return not moved.note and worst(self.latest[value]).relative <= _MOVED * moved.relative

    def _makes_up(self, value: str, noise: list[Difference]) -> bool:
        """Is it no more than noise?"""
        return all(d.explained(n, _MERE) for d, n in zip(self.latest[value], noise))

    @property
    def agreed(self) -> set[str]:
        """The cuts, but for what was taken for one to go on behind it."""
        return self.cuts - {fault.value for fault in self.outcome.faults}

    @functools.cached_property
    def sameness(self) -> Sameness:
        """What files say that both make alike of what agreed, once that is known."""
        from onnxopt.verification.pieces.sameness import Sameness

        return Sameness(self.pairs, self.agreed, self.replay.views)

    def share(self, value: str) -> float:
        """Of its range, what rounding explains between cuts and this value."""
        return self._paths([value], self.fed)[value].share

    def _paths(self, wanted: Sequence[str], fed: set[str]) -> dict[str, Path]:
        """How much A rounds between what is fed and each of these."""
        of = self.pairs.of
        fed_of_a = self.fed_of_a if fed is self.fed else self.fed_of_a.union(of.get(v, v) for v in fed - self.fed)
        found = paths(self.a, [of[v] for v in wanted], fed_of_a, self.original.types)
        if not self.held:
            return {v: found[of[v]] for v in wanted}
        theirs = paths(self.b, wanted, fed, self.held, casts=True)  # B may compute in a narrower type: it was asked to
        return {v: found[of[v]].joined(theirs[v]) for v in wanted}

    def noise(self, wanted: Sequence[str], times: float = NOISE) -> dict[str, list[Difference]]:
        """What the last bits do to A's values in their pieces, until so many `times` of that explain how B's differ."""
        of = self.pairs.of
        held = {of[v]: jump for v in wanted if (jump := self.replay.jumping(v, self.fed, self.share(v))) is not None}
        far = [v for v in wanted if of[v] not in held and any(d.uneven for d in self.latest.get(v, ()))]
        channels = {of[v]: seen for v in far if (seen := self.replay.channels(v, self.fed, self.share(v)))}
        names = [of[v] for v in wanted]
        differ = {of[v]: self.latest[v] for v in wanted if v in self.latest}

        def explains(name: str, noise: list[Difference]) -> bool:
            return name in differ and all(d.explained(n, times) for d, n in zip(differ[name], noise))

        ask = self.runner, self.original, names, self.fed_of_a, self.seed, self.dtype, held, channels
        found = noise_of(*ask, is_enough=explains)
        return {v: found[of[v]] for v in wanted if of[v] in found}

    def _is_rounding(self, value: str, noise: Mapping[str, list[Difference]], share: float) -> bool:
        """Is what the noise does not explain none in float64? No last bit of an entry says what a sum that cancels has
        lost inside."""
        every = noise.get(value) or [Difference()] * len(self.latest[value])
        cases = [
            i for i, (d, n) in enumerate(zip(self.latest[value], every)) if not (d.within(share) or d.explained(n))
        ]
        how = {"seed": self.seed, "memory": self.memory}
        return is_rounding(self.replay, value, cases, self.fed, self.fed_of_a, share, **how)

    def _blame(self, blocked: Sequence[str]) -> bool:
        """Put what is in the way down as a fault, and go on behind it with A's value."""
        chosen = self._faults.chosen(blocked, self.latest)
        for value in chosen:
            self._put_down(value)
        self.pending = [v for v in self.pending if v not in self.cuts]
        return bool(chosen)

    def _put_down(self, value: str) -> None:
        fault = self._faults.add(value, self.fed, self.fed_of_a, self.latest.get(value, []))
        if not fault.beyond:  # its noise is measured
            self.needs.always.update((self.pairs.of[value], *self.a.entries(fault.a, self.fed_of_a)))
        self.cuts.add(value)
        self._feed(value)
