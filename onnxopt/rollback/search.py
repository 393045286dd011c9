"""Which rewrites to leave out next, by the places that verification names, else by bisection."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from onnxopt.api import DifferentResult, OptimizeOptions, RolledBack
from onnxopt.errors import OnnxOptError
from onnxopt.rollback.faults import Fault, Remedy
from onnxopt.verification import Verification, VerifyOptions

if TYPE_CHECKING:
    from onnxopt.pipeline.instruments import Entry


class Search:
    """What is left out of the next attempt, in the light of how the last one failed."""

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
        self.faults: list[Fault] = []
        self.bisected: Fault | None = None  # the last that bisection found

    @property
    def left_out(self) -> list[Remedy]:
        """Each once, and no single match of what is left out as a whole."""
        found = {r.key: r for fault in self.faults for r in fault.left_out}
        return [r for (name, site), r in found.items() if site is None or (name, None) not in found]

    @property
    def options(self) -> OptimizeOptions:
        records = [r.record for r in self.left_out]
        sites = tuple(r.site for r in records if r.site is not None)
        names = tuple(r.name for r in records if r.site is None)
        given = self.given
        return dataclasses.replace(given, excluded=(*given.excluded, *sites), disable=(*given.disable, *names))

    def next(self, error: DifferentResult, *, single: bool) -> bool:
        """Leave out something else, or more; False where there is nothing. Not `single`: whole rules or passes."""
        verdict, before = error.report.verification, {r.key for r in self.left_out}
        assert verdict is not None
        if not single:
            for fault in self.faults:
                fault.left_out = [r.whole for r in fault.left_out]
            return {r.key for r in self.left_out} != before or self._bisect(verdict, single)
        if self.at_places(error) and {r.key for r in self.left_out} != before:
            return True
        if self.bisected is not None:
            if not verdict.places and self.bisected.next():
                return True  # one more result, where to bisect again would take many
            self.bisected.left_out = self.bisected.remedies[:1]  # guilty, but not alone
        return self._bisect(verdict, single)

    def at_places(self, error: DifferentResult) -> bool:
        """The next step of each fault that shows at the places of the error, which learn what happened there."""
        from onnxopt.bisect import made, rewrites, suspects

        verification, options = error.report.verification, self.options
        if verification is None or not verification.places:
            return False
        try:
            entries = rewrites(self.source, options)
        except OnnxOptError:
            return False  # a run that cannot be repeated says nothing
        shown: list[Fault] = []
        for place in verification.places:
            found = suspects(place, entries)
            place.rewrites = [str(e) for e in found]
            values = {(place.scope, name) for name in (place.value, *made(place.a))}
            fault = next((f for f in self.faults if f.values & values), None)
            if fault is None:
                self.faults.append(fault := Fault())
            fault.values |= values
            message = f"`{place.value}` {place.record.note}" if place.record.note else verification.message
            fault.suspect([Remedy(_record(e, message), options, e.fuel) for e in found])
            shown += [fault] if fault not in shown else []
        more = [fault.next() for fault in shown]
        return any(more)

    def _bisect(self, verdict: Verification, single: bool) -> bool:
        from onnxopt.bisect import bisect  # not needed where nothing goes wrong

        options = self.options

        def tell(line: str) -> None:
            self.progress(f"bisecting: {line.strip()}")

        try:
            found = bisect(self.source, options, self.verify_options, tell, known=verdict, smallest=False)
        except OnnxOptError:
            return False  # it cannot be found: the difference itself is what there is to say
        value = found.site.value if found.site is not None else ""
        record = RolledBack(found.pass_text, found.rule, found.scope, found.match, found.message, value)
        if record.name in options.disable:
            return False
        remedy = Remedy(record, options, found.rewrite)
        again = any(r.record.name == record.name for fault in self.faults for r in fault.left_out)
        enough = single and (verdict.places or not again)  # what takes many results is not done match by match
        self.bisected = Fault()
        self.bisected.suspect([remedy, remedy.whole] if enough else [remedy.whole])
        self.faults.append(self.bisected)
        return self.bisected.next()

    def keep(self, folder: Path, error: DifferentResult) -> None:
        """The smallest model that shows the first of what is left out."""
        from onnxopt.bisect import describe
        from onnxopt.io import from_proto, load
        from onnxopt.pipeline import pipeline_text
        from onnxopt.pipeline.reproducer import write_reproducer

        if not self.left_out:
            return
        first = self.left_out[0]
        options, submodel, text = first.options, None, pipeline_text(first.options.passes().passes)
        if first.rewrite is not None:
            found = describe(self.source, options, self.verify_options, first.rewrite, first.record.message)
            submodel, text = found.submodel, found.pass_text if found.submodel is not None else text
        model = from_proto(submodel) if submodel is not None else load(self.source)
        write_reproducer(folder, model, text, dataclasses.replace(options, pipeline=text).context(), error, verify=True)


def _record(entry: Entry, message: str) -> RolledBack:
    return RolledBack(entry.pass_name, entry.rule, entry.scope, list(entry.match), message, entry.value)
