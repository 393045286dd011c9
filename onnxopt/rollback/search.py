"""Chooses the rewrites to leave out next: by places named in the verdict, else by bisection."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onnxopt.errors import OnnxOptError
from onnxopt.operators import IN_RANGE
from onnxopt.optimizer import DifferentResult, OptimizeOptions, RolledBack
from onnxopt.pipeline.records import UNLOADED, WRONG
from onnxopt.plaintext import counted
from onnxopt.verification import Verification, VerifyOptions

if TYPE_CHECKING:
    from onnxopt.bisection import Trials
    from onnxopt.pipeline.journal import Entry
    from onnxopt.verification.records import Place

# Number of blamed matches before a rule is left out completely; bisection of a whole run is expensive.
_AT_PLACES: Final = 2
_BY_BISECTION: Final = 1
_NODE_BY_NODE: Final = 16  # a type conversion wrong at a node may be right at the next
_RESULTS: Final = 48  # verified intermediate results, before whole rules are left out at the first suspicion
_MAX_NAMED: Final = 4


@dataclass
class Remedy:
    """A rewrite to leave out: number `rewrite` of a run with `options`, or None if only the pass is known.

    `place`: where it is suspected; None if found by bisection.
    """

    record: RolledBack
    options: OptimizeOptions
    rewrite: int | None
    place: Place | None = None

    @property
    def name(self) -> str:
        return self.record.name


class Search:
    """The rewrites left out of the next attempt, chosen from the last failure."""

    def __init__(
        self,
        source: str | Path,
        options: OptimizeOptions,
        verify_options: VerifyOptions | None,
        progress: Callable[[str], None],
    ) -> None:
        self.source = source
        self.given = options
        self.verify_options = verify_options
        self.progress = progress
        self.left_out: list[Remedy] = []
        self.blamed: Counter[str] = Counter()  # count by name
        self.judged = 0  # verified intermediate results

    @property
    def options(self) -> OptimizeOptions:
        records = [r.record for r in self.left_out]
        sites = tuple(r.site for r in records if r.site is not None)
        names = tuple(r.name for r in records if r.site is None)
        given = self.given
        return dataclasses.replace(given, excluded=(*given.excluded, *sites), disable=(*given.disable, *names))

    def next(self, error: DifferentResult) -> bool:
        """Leave out further rewrites. Returns False if none is left to leave out."""
        verdict, before = error.report.verification, self.options
        assert verdict is not None
        at_places = self._at_places(verdict)
        found, trusted = (at_places, _AT_PLACES) if at_places else (self._by_bisection(verdict), _BY_BISECTION)
        if {r.name for r in found} == {"convert-dtype"}:
            trusted = _NODE_BY_NODE
        elif at_places and self._is_long:
            trusted = 0
            self._tell(f"after {counted(self.judged, 'result')} on the way, whole rules are left out")
        self.blamed.update({r.name for r in found})
        known = {(r.name, r.record.site) for r in self.left_out}
        for remedy in found:
            if self.blamed[remedy.name] > trusted:
                remedy.record.value = ""  # the whole rule or pass
            if (its := (remedy.name, remedy.record.site)) not in known:
                known.add(its)
                if remedy.record.site is None:
                    self.left_out = [r for r in self.left_out if r.name != remedy.name]
                self.left_out.append(remedy)
        return self.options != before

    @property
    def _is_long(self) -> bool:
        """Whether the limit of verified results is reached."""
        return self.judged >= _RESULTS

    def failed(self, error: DifferentResult) -> DifferentResult:
        """Return the error with the rewrites left out without success."""
        names = [str(r.record.site or r.name) for r in self.left_out]
        if names:
            more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
            error.hint = f"{error.hint}; without {', '.join(names[:_MAX_NAMED])}{more} it still does"
        return error

    def explain(self, error: DifferentResult) -> None:
        """Add the rewrites at each place of the verdict to the error."""
        from onnxopt.bisection import Trials

        if error.report.verification is not None:
            with Trials(self.source, self.options, self.verify_options) as trials:
                self._rewrites(trials, error.report.verification)

    def _at_places(self, verdict: Verification) -> list[Remedy]:
        """Return for each place the first rewrite that makes the result wrong there."""
        from onnxopt.bisection import Trials, guilty, narrowings, suspected  # imported only on failure

        options, found = self.options, []
        with Trials(self.source, options, self.verify_options, verdict) as trials:
            entries = self._rewrites(trials, verdict)
            too_large = {place.value for place in verdict.places if place.beyond}
            for place, narrowed in zip(verdict.places, narrowings(verdict.places, entries)):
                if _goes_along(place, too_large):
                    continue
                try:
                    entry = narrowed
                    if entry is None and self._is_long:
                        entry = next(iter(suspected(place, entries)), None)
                    elif entry is None:
                        entry = guilty(trials, place, entries, self._tell)
                except OnnxOptError:  # an intermediate result failed
                    continue
                if entry is not None:
                    message = f"`{place.value}` {place.record.note}"
                    e = entry
                    record = RolledBack(e.pass_name, e.rule, e.scope, list(e.match), message, e.value)
                    found.append(Remedy(record, options, e.fuel, place))
            self.judged += trials.verified
        return found

    def _rewrites(self, trials: Trials, verdict: Verification) -> list[Entry]:
        """Return all rewrites of the run, and add them to the verdict's places."""
        from onnxopt.bisection import explain
        from onnxopt.pipeline.journal import Journal

        journal = Journal(matches=True)
        try:
            if verdict.places:
                trials.run(watch=[journal])
        except OnnxOptError:  # a run that cannot be repeated gives no information
            return []
        explain(verdict.places, journal.entries)
        return journal.entries

    def _by_bisection(self, verdict: Verification) -> list[Remedy]:
        """Return the rewrite found by bisecting the whole run; rewrites suspected at still wrong places are
        restored."""
        from onnxopt.bisection import bisect, goes_wrong

        before = self.left_out
        self.left_out = [r for r in before if r.place is None or not goes_wrong(verdict, r.place)]
        options, known = self.options, verdict if self.left_out == before else None
        try:
            found = bisect(self.source, options, self.verify_options, self._tell, known=known, smallest=False)
        except OnnxOptError:  # not found: only the difference itself is reported
            self.left_out = before
            return []
        self.judged += found.runs
        value = found.site.value if found.site is not None else ""
        fault = UNLOADED if verdict.is_unloaded else WRONG
        record = RolledBack(found.pass_text, found.rule, found.scope, found.match, found.message, value, fault)
        return [Remedy(record, options, found.rewrite)]

    def _tell(self, line: str) -> None:
        self.progress(f"bisecting: {line.strip()}")

    def keep(self, folder: Path, error: DifferentResult) -> None:
        """Write the smallest model with the first failure."""
        from onnxopt.bisection import Trials, describe
        from onnxopt.io import from_proto, load
        from onnxopt.pipeline import pipeline_text
        from onnxopt.pipeline.reproducer import write_reproducer

        if not self.left_out:
            return
        first = self.left_out[0]
        options, submodel, text = first.options, None, pipeline_text(first.options.passes().passes)
        if first.rewrite is not None:
            with Trials(self.source, options, self.verify_options) as trials:
                found = describe(trials, first.rewrite, first.record.message)
            submodel, text = found.submodel, found.pass_text if found.submodel is not None else text
        model = from_proto(submodel) if submodel is not None else load(self.source, stored=True)
        write_reproducer(folder, model, text, dataclasses.replace(options, pipeline=text).context(), error, verify=True)


def _goes_along(place: Place, too_large: Set[str]) -> bool:
    """Whether the place only passes on a value already left out, and stays wide with it."""
    maker = next((side for side in place.b if place.value in side.outputs), None)
    return (
        place.value in too_large
        and maker is not None
        and maker.op in IN_RANGE
        and not too_large.isdisjoint(maker.inputs)
    )
