"""Comparison in pieces: B runs between values shared with A, on A's values, and is compared with A there.

A value made by nodes of both models is a candidate. If B's result agrees with A's, up to rounding in the piece, the
candidate is a cutpoint (cut), and the next piece starts from A's value. By induction over cutpoints, B computes A's
function; differences are not amplified, and decisions (TopK, comparisons, quantizers) get equal numbers in both. A
candidate that disagrees (a scale moved into weights) is no cut: the piece extends beyond it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from onnxopt.verification.compare import is_blank
from onnxopt.verification.pieces.noise import View, noise_of
from onnxopt.verification.pieces.outcome import MAX_FAULTS, Enclosing, Fault, First, doubts, hides_error, unsettled
from onnxopt.verification.pieces.pairs import Pairs, Sameness
from onnxopt.verification.pieces.paths import Needs, Path, paths
from onnxopt.verification.pieces.precise import is_rounding
from onnxopt.verification.pieces.replay import OVERFLOWS, Replay
from onnxopt.verification.programs.runner import Runner
from onnxopt.verification.programs.stream import VALUES, Stream
from onnxopt.verification.records import Pieces
from onnxopt.verification.rounding import NOISE, Difference, unexplained, worst
from onnxopt.verification.run import Failed

_OPEN: Final = 30_000  # pending values, before a fault is reported
_PIECE: Final = 2000  # nodes of a piece, counted at most
_DOUBTS: Final = 4  # consecutive candidates a moved scale may pass
_MOVED: Final = 1e-2  # a compensated difference leaves at most this share of it
_MERE: Final = 1.0  # times the noise allowed for a compensated difference
_PRECISE: Final = 3  # blocking values computed in float64


class Walk:
    """Compares B with A in pieces."""

    def __init__(
        self,
        a: Runner,
        b: Runner,
        cases: Sequence[Mapping[str, Any]],
        given: Mapping[str, str],
        pairs: Pairs | None = None,
        enclosing: Enclosing | None = None,
        **how: Any,
    ) -> None:
        """Prepare without running.

        cases: values of fed names, by case; given: their types as written by onnxruntime; pairs: of the programs;
        enclosing: position of a body; how: settings of `Replay`.
        """
        self.a, self.b, self.runner = a.program, b.program, a
        self.original = Stream(a, cases, given)
        self.enclosing, self.how = enclosing, how
        self.pairs = pairs or Pairs(self.a, self.b)
        self.needs = Needs(self.pairs)
        self.replay = Replay(b, self.original, self.pairs, **how)
        self._order = {value: i for i, value in enumerate(self.b.maker)}
        self.cuts: set[str] = set(given)  # cutpoints and reported faults
        self.fed: set[str] = set(given)  # cutpoints from which pieces start
        self.fed_of_a: set[str] = set(given)  # their names in A
        self.first: dict[str, First] = {}  # {value: result with candidates assumed to be cutpoints}
        self.refuted: set[str] = set()  # values that disagreed in such a result, perhaps an earlier one
        self.latest: dict[str, list[Difference]] = {}  # {value: differences by case}, from cutpoints alone
        self._agreed: dict[str, tuple[bool, View | None]] = {}  # {value: (agrees, view)}, likewise
        self._new: set[str] = set()  # cutpoints from which nothing was run yet
        self.pending: list[str] = []  # undecided candidates, in B's order
        self.blank: list[str] = []  # blank cutpoints, perhaps computed differently
        self.pieces = Pieces(largest=1)  # figures
        self.unsettled: list[str] = []  # outputs that are no cutpoints
        self.faults: list[Fault] = []

    def run(self) -> Walk:
        """Compare, and return the walk. Raises Failed if A fails."""
        memory = self.replay.memory // 4
        for nodes in self.original.run_all(memory, lambda n: self.needs.observed(self.a.made(n), n[-1])):
            last = nodes[-1] + 1 == len(self.a.nodes)
            self._settle(list(self.pairs.made_from(self.a.made(nodes))), last)
            if not last:
                self._forget(nodes[-1])
        self.unsettled += unsettled(self.replay, self.cuts)
        return self

    def _forget(self, last: int) -> None:
        """Release values without further readers, if more than a segment's size."""
        if self.original.size >= VALUES:
            known = self.original.values[0]
            self.original.keep(self.needs.after(last, known, self.pending, self.fed, self.fed_of_a))
            self.replay.forget(self.pending)

    # -- cutpoints ---------------------------------------------------------------------------------------

    def _settle(self, new: list[str], last: bool) -> None:
        """Find the cutpoints among new candidates. Report faults where blocked, and continue behind them."""
        self.pieces.shared += len(new)
        self.pending = sorted({*self.pending, *new}, key=self._order.__getitem__)
        for value in new:
            if self.pairs.is_same(value):
                reads = self.b.reads[self.b.maker[value]]
                self.first[value] = First(True, {r: None for r in reads if not self.b.is_constant(r)}, moves=True)
        self.pieces.same += self._resolve()
        self._guess_views([v for v in new if self.pairs.of[v] != v])
        self._assume_all()
        self._tighten()
        while blocked := self._blocked(last):
            if not self._accept_as_noise(blocked) and not self._report_fault(blocked):
                break
            self._resolve()
            self._tighten()

    def _resolve(self) -> int:
        """Make cutpoints of pending values that agreed with only cutpoints as entries. Returns their number."""
        before, rest = len(self.pending), []
        for value in self.pending:
            if self.agrees_between(value) and self.cuts.issuperset(self.first[value].entries):
                self._cut(value, self.first[value].found)
            else:
                rest.append(value)
        self.pending = rest
        return before - len(rest)

    def agrees_between(self, value: str) -> bool:
        """Return whether a value agrees if its smallest piece starts from A's values, in the present views."""
        seen, views = self.first.get(value), self.replay.views
        return seen is not None and seen.ok and all(views.get(e) == view for e, view in seen.entries.items())

    def _cut(self, value: str, found: Difference) -> None:
        """Make a value a cutpoint; report a fault if it agrees only by a clamped operand, or hides an error."""
        if self._is_clamped(value) or hides_error(self, value, found):
            self._assume_equal(value)
            return
        self.cuts.add(value)
        if self._is_entry(value):
            self._feed(value)
        self.pieces.cuts += 1
        run = value in self.latest or (value in self.first and not self.first[value].moves)
        if (run or not self.pairs.is_same(value)) and all(map(is_blank, self.replay.mine(value))):
            self.pieces.blank += run
            self.blank.append(value)
        if found.relative > self.pieces.worst_rel:
            self.pieces.worst_rel, self.pieces.worst = found.relative, value

    def _cut_all(self, values: Sequence[str]) -> None:
        for value in values:
            self._cut(value, worst(self.latest[value]))
        self.pending = [v for v in self.pending if v not in self.cuts]

    def _feed(self, value: str) -> None:
        self.fed.add(value)
        self.fed_of_a.add(self.pairs.of.get(value, value))
        self._new.add(value)

    def _is_entry(self, value: str) -> bool:
        """Return whether pieces can start from a value."""
        fixed = self.pairs.of[value] in self.a.fixed or value in self.b.fixed
        return not fixed and self.replay.kind(value).startswith(("tensor(", "seq(tensor("))

    def _guess_views(self, renamed: list[str]) -> None:
        """Find the closest view of renamed values, and drop candidates that no view fits."""
        if not renamed:
            return
        found = self.replay.run_each(renamed, self.fed)
        for value in renamed:
            _, differences, view = self.replay.hold(value, found[value], 0.0)
            if view is not None:
                self.replay.views[value] = view
            elif any(d.note for d in differences):  # corresponds to no value of A
                self.pending.remove(value)

    def _assume_all(self) -> None:
        """Run all pieces with every candidate assumed to be a cutpoint, as most are; pieces are then minimal.

        Values that disagree but read a disagreeing value run again without the latter as cutpoint: a scale moved into
        weights changes several candidates before it is compensated.
        """
        new = [v for v in self.pending if v not in self.first]
        fed = self.fed.union(filter(self._is_entry, self.pending))
        self.first |= self._assume(new, fed)
        self._resolve()
        for _ in range(_DOUBTS):
            doubted, excused = doubts(self.pending, self.first)
            found = self._assume([v for v in new if v in excused], fed - doubted)
            if not found:
                break
            self.first |= found
            self._measure((v for v, seen in found.items() if seen.ok), fed - doubted)
            self._resolve()

    def _assume(self, values: Sequence[str], fed: set[str]) -> dict[str, First]:
        """Return the results of `values` with `fed` as cutpoints; {} if they do not run."""
        if not values:
            return {}
        try:
            found = self.replay.run(values, fed)
        except Failed:  # a shape differs in B; runs from cutpoints alone find the value
            return {}
        by_path, views, firsts = self._paths(values, fed), dict(self.replay.views), {}
        for value in values:
            entries = self.b.entries(self.b.cone([value], fed), fed)
            ok, differences, view = self.replay.hold(value, found[value], by_path[value].share)
            moves = not by_path[value].depth
            firsts[value] = First(ok, {e: views.get(e) for e in entries}, worst(differences), moves)
            if ok:
                self.replay.see(value, view)
        self.refuted.update(v for v, seen in firsts.items() if not seen.ok)
        return firsts

    def _measure(self, values: Iterable[str], fed: set[str]) -> None:
        """Count the nodes of each value's piece."""
        sizes = (len(self.b.cone([value], fed, _PIECE)) for value in values)
        self.pieces.largest = max([self.pieces.largest, *sizes])

    def _tighten(self) -> None:
        """Run pending values from cutpoints alone, as long as new cutpoints arise."""
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
                self.replay.see(value, self._agreed[value][1])
            self._measure(agreed, self.fed)
            self._cut_all(agreed)
            progress = len(agreed) + self._resolve()

    def _begun_anew(self) -> list[str]:
        """Return pending values not run yet, or with a new cutpoint upstream."""
        of, new, self._new = self.pairs.of, self._new, set()
        theirs = self.b.behind(new, self.fed, max(self.b.maker[v] for v in self.pending))
        last = max(self.a.maker[of[v]] for v in self.pending)
        mine = self.a.behind({of.get(v, v) for v in new}, self.fed_of_a, last)
        return [v for v in self.pending if v not in self._agreed or v in theirs or of[v] in mine]

    def _hides(self, value: str) -> bool:
        """Return whether a value only moves an undecided value.

        Also true if the piece draws from an undecided value.
        """
        drawing = self.pairs.drawing and self.pairs.drawing.intersection(self.b.cone([value], self.fed))
        if any(r in self.pending for i in drawing for r in self.b.reads[i]):  # equal draws prove little about operands
            return True
        if "float" not in self.replay.kind(value) or not self.pairs.hands_on(value):
            return False
        return any(r in self.pending and not worst(self.latest[r]).note for r in self.b.reads[self.b.maker[value]])

    # -- faults ------------------------------------------------------------------------------------------

    def _blocked(self, last: bool) -> list[str]:
        """Return the pending values that block a decision: outputs, and entries of values that agree otherwise.

        A piece that only moves numbers agrees for any entries, and is judged by its readers. Before the last segment
        only losses are returned, as later values may compensate, unless many values have accumulated.
        """
        # Nothing compensates an overflow, or lost digits.
        lost = [v for v in self.pending if any(d.note.endswith("the narrower type") for d in self.latest.get(v, ()))]
        if lost or not (last or len(self.pending) >= _OPEN):
            return lost
        outputs = [self.pairs.by_original.get(v, v) for v in self.a.outputs] if last else []
        found = self._read_by_agreeing(outputs)
        if last:
            found.intersection_update(self.b.made(self.b.cone([v for v in outputs if v not in self.cuts], self.fed)))
        return [v for v in self.pending if v in found]

    def _read_by_agreeing(self, outputs: Sequence[str]) -> set[str]:
        """Return the pending outputs, and pending values read by values that agree otherwise."""
        pending = set(self.pending)
        found = pending.intersection(outputs)
        for value in reversed(self.pending):
            seen = self.first.get(value)
            if seen is not None and seen.ok and (not seen.moves or value in found):
                found.update(pending.intersection(seen.entries))
        return found

    def _accept_as_noise(self, blocked: Sequence[str]) -> bool:
        """Accept values explained by rounding as cutpoints. Returns whether any were accepted.

        The first blocking value is accepted if noise of its piece explains the difference. Otherwise it may have been
        changed on purpose (a moved scale); a later value that compensates differs only by noise, far less. Without
        rounding between cutpoints, noise explains nothing.
        """
        first, rounded = blocked[0], self._rounded(blocked)
        rest = self._little_beside(first, rounded)
        noise = self.noise([first]) if first in rounded else {}  # the smallest piece, most often explained
        heard = self._heard(noise, noise)
        if not heard:
            noise |= self.noise(rest, _MERE)
            heard = self._heard(rest, noise, _MERE)
        self.pieces.noisy += len(heard)
        if not heard:  # last bits of entries do not reveal the loss in a cancelling sum
            some = [v for v in rounded if v == first or v in rest][:_PRECISE]
            exact = (v for v in some if self.is_rounding(v, noise.get(v, ())))
            heard = list(itertools.islice(exact, 1))
        self._cut_all(heard)
        return bool(heard)

    def _rounded(self, values: Sequence[str]) -> list[str]:
        """Return the values that noise could explain: measuring noise takes runs."""
        found = self._paths(values, self.fed)
        return [v for v in values if found[v].depth > 0 and not any(d.note for d in self.latest[v])]

    def _little_beside(self, first: str, values: Sequence[str]) -> list[str]:
        """Return the values that differ little beside the compensated difference of `first`."""
        differs = worst(self.latest[first])
        little = -1.0 if differs.note else _MOVED * differs.relative
        return [v for v in values if v != first and worst(self.latest[v]).relative <= little and not self._hides(v)]

    def _heard(self, values: Iterable[str], noise: Mapping[str, list[Difference]], times: float = NOISE) -> list[str]:
        """Return the values whose differences `times` the noise explains."""
        return [v for v in values if not unexplained(self.latest[v], noise.get(v, ()), self.share(v), times)]

    def is_rounding(self, value: str, noise: Sequence[Difference]) -> bool:
        """Return whether rounding explains the difference of a value from cutpoints. `noise`: by case, or ()."""
        return is_rounding(self.replay, value, self.latest[value], noise, self.fed, self.share(value))

    @property
    def agreed(self) -> set[str]:
        """The cutpoints without reported faults."""
        return self.cuts - {fault.value for fault in self.faults}

    @functools.cached_property
    def sameness(self) -> Sameness:
        """Equality by value numbering, given the agreeing values."""
        return Sameness(self.pairs, self.agreed, self.replay.views)

    def share(self, value: str) -> float:
        """Return the relative difference of a value explained by rounding since cutpoints."""
        return self._paths([value], self.fed)[value].share

    def _paths(self, wanted: Sequence[str], fed: set[str]) -> dict[str, Path]:
        """Return A's rounding between `fed` and each wanted value."""
        of = self.pairs.of
        fed_of_a = self.fed_of_a if fed is self.fed else self.fed_of_a.union(of.get(v, v) for v in fed - self.fed)
        found = paths(self.a, [of[v] for v in wanted], fed_of_a, self.original.types)
        if not self.replay.held:
            return {v: found[of[v]] for v in wanted}
        theirs = paths(self.b, wanted, fed, self.replay.held, casts=True)  # B may compute in the narrower type
        return {v: found[of[v]].joined(theirs[v]) for v in wanted}

    def noise(self, wanted: Sequence[str], times: float = NOISE) -> dict[str, list[Difference]]:
        """Return the noise of A's values in their pieces.

        Sampling stops when `times` the noise explains B's differences.
        """
        of, shares = self.pairs.of, {v: path.share for v, path in self._paths(wanted, self.fed).items()}
        uneven = {v for v in wanted if any(d.uneven for d in self.latest.get(v, ()))}
        left = {of[v]: self.replay.unexplained(v, self.fed, shares[v], uneven=v in uneven) for v in wanted}
        differ = {of[v]: self.latest[v] for v in wanted if v in self.latest}

        def explains(name: str, noise: list[Difference]) -> bool:
            return name in differ and all(d.explained(n, times) for d, n in zip(differ[name], noise))

        how = self.replay.seed, self.replay.dtype
        found = noise_of(self.original, [of[v] for v in wanted], self.fed_of_a, *how, left, explains)
        return {v: found[of[v]] for v in wanted if of[v] in found}

    def _report_fault(self, blocked: Sequence[str]) -> bool:
        """Report blocking values as faults, and continue behind them with A's values. Returns False if none.

        All values that the narrower type cannot hold are reported, else the first, until enough faults are found.
        """
        chosen = self.replay.unheld(blocked, self.latest)
        if not chosen and sum(not fault.beyond for fault in self.faults) < MAX_FAULTS:
            chosen = [*blocked[:1]]
        for value in chosen:
            self._assume_equal(value)
        self.pending = [v for v in self.pending if v not in self.cuts]
        return bool(chosen)

    def _is_clamped(self, value: str) -> bool:
        """Return whether a value agrees only because a too large operand was fed as the largest number."""
        beyond = {fault.value for fault in self.faults if fault.beyond}
        if not beyond or (self.replay.unfit(value) or ("",))[0] != OVERFLOWS:
            return False
        return not beyond.isdisjoint(self.b.entries(self.b.cone([value], self.fed), self.fed))

    def _assume_equal(self, value: str) -> None:
        """Report a value as a fault, and continue from A's value."""
        original, nodes, differences = self.pairs.of[value], self.b.cone([value], self.fed), self.latest.get(value, [])
        its, unfit = self.a.cone([original], self.fed_of_a), self.replay.unfit(value)
        found = Difference(note=unfit[0]) if unfit else worst(differences)
        case = unfit[1] if unfit else differences.index(found)
        shape = np.shape(self.replay.mine(value)[case])
        entries = self.b.entries(nodes, self.fed)
        self.faults.append(Fault(value, found, case, entries, its, nodes, shape, beyond=bool(unfit)))
        if not unfit:  # its noise is measured
            self.needs.always.update((original, *self.a.entries(its, self.fed_of_a)))
        self.cuts.add(value)
        self._feed(value)
