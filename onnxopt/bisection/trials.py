"""Verified results of a pipeline stopped early, each computed once, and the rewrites suspected at a place.

Passes are deterministic: the first n rewrites are the same in every run.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onnxopt.errors import ModelError
from onnxopt.io import save
from onnxopt.optimizer import OptimizeOptions
from onnxopt.pipeline import Instrument, PassContext, execute
from onnxopt.pipeline.journal import Entry
from onnxopt.verification import UNVERIFIED, Verification, Verifier, VerifyOptions

if TYPE_CHECKING:
    from onnxopt.graph import Model
    from onnxopt.pipeline import Pass
    from onnxopt.verification.records import Place, Side


class TrialRun(Instrument):
    """A run of a pipeline, stopped after a number of runs of passes.

    `model`: the result. `texts`: the passes that ran. `taken`: the rewrites before each. `rewrites`: all of them.
    """

    def __init__(self, limit: int | None, model: Model) -> None:
        """`limit`: runs of passes; None: no limit."""
        self.model = model
        self.texts: list[str] = []
        self.taken: list[int] = []
        self.rewrites = 0
        self._limit = limit

    def should_run(self, model: Model, p: Pass) -> bool:
        return bool(p.children) or self._limit is None or len(self.texts) < self._limit

    def before(self, model: Model, p: Pass) -> None:
        if not p.children:
            self.texts.append(str(p))
            self.taken.append(PassContext.current().fuel.taken)

    def end(self, model: Model) -> None:
        self.rewrites = PassContext.current().fuel.taken


class Trials:
    """Results of a pipeline, as a context manager that owns the verifier."""

    def __init__(
        self,
        source: str | Path,
        options: OptimizeOptions,
        verify_options: VerifyOptions | None,
        whole: Verification | None = None,
    ) -> None:
        """Create without running. `whole`: verdict on the whole result, if known."""
        self.source = source
        self.options = options
        self.verify_options = verify_options
        self.verified = 0  # number of verified results
        # Verdicts by (runs of passes, rewrites), None: all.
        self.known: dict[tuple[int | None, int | None], Verification] = {}
        if whole is not None:
            self.known[None, None] = whole
        self._verifier = Verifier(source, verify_options)
        self._started = False
        self._folder = tempfile.TemporaryDirectory()

    def run(self, runs: int | None = None, rewrites: int | None = None, watch: Sequence[Instrument] = ()) -> TrialRun:
        """Run the pipeline up to `runs` runs of passes and `rewrites` rewrites."""
        options = self.options if rewrites is None else dataclasses.replace(self.options, max_rewrites=rewrites)
        done = TrialRun(runs, self.options.load_converted(self.source))
        execute(options.passes(), done.model, options.context([done, *watch]))
        return done

    def verdict(
        self, runs: int | None = None, rewrites: int | None = None, done: TrialRun | None = None
    ) -> Verification:
        """Return the verdict on a run's result. `done`: the run, if available.

        Raises ModelError if nothing was verified.
        """
        if (runs, rewrites) not in self.known:
            self.known[runs, rewrites] = self._verify(done or self.run(runs, rewrites))
        return self.known[runs, rewrites]

    def start(self) -> None:
        """Start running the original."""
        if not self._started:
            self._started = True
            original, override = self.options.load_specialised(self.source), not self.options.freeze_initializers
            self._verifier.describe(original.proto, original.data_of, override=override)

    def _verify(self, done: TrialRun) -> Verification:
        self.start()
        path = Path(self._folder.name) / "trial.onnx"
        save(done.model, path)
        self.verified += 1
        self._verifier.submit(path, done.model.tolerances)
        verdict = self._verifier.finish()
        whole = self.known.get((None, None))  # if the original does not load, any result that loads is right
        if verdict.status == UNVERIFIED and not (whole is not None and whole.is_unloaded):
            raise ModelError(f"{self.source}: {verdict.message}", verdict.hint)
        return verdict

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *error: object) -> None:
        self._verifier.close()
        self._folder.cleanup()


# -- rewrites suspected at a place ------------------------------------------------------------------------------------

NARROWING: Final = "convert-dtype"


def suspected(place: Place, entries: Sequence[Entry]) -> list[Entry]:
    """Return the rewrites at a place, most likely first: few further effects, and late.

    First: rewrites with an anchor, removed or made value made at the place, or read by only one model; and rewrites in
    bodies of nodes there. Then: rewrites that made operands of the first. Last: rewrites that replaced an operand by a
    different, agreeing value.
    """
    reads = [{name for side in sides for name in side.inputs} for sides in (place.a, place.b)]
    there = {place.value, *made(place.a), *made(place.b)}
    only_one_reads = (reads[0] ^ reads[1]) - there
    agreeing = only_one_reads.intersection(place.entries)
    classes = there | (only_one_reads - agreeing), set[str](), agreeing
    bodies = _bodies(place)
    found: list[tuple[int, float, Entry]] = []
    for entry in reversed(entries):
        names = {entry.value, *entry.taken, *entry.outputs} - {""}
        if not entry.fuel:
            continue
        if f"{entry.scope} / ".startswith(bodies):
            found.append((0, 0.0, entry))
        elif f"{place.scope} / ".startswith(f"{entry.scope} / "):
            rank = next((i for i, inside in enumerate(classes) if names & inside), None)
            if rank is not None:
                found.append((rank, len(names.difference(*classes)) / len(names), entry))
                classes[1].update(entry.taken)
    return [entry for *_, entry in sorted(found, key=lambda f: f[:2])]


def explain(places: Sequence[Place], entries: Sequence[Entry]) -> None:
    """Set `rewrites` of each place to the rewrites at the place."""
    for place, narrowed in zip(places, narrowings(places, entries)):
        place.rewrites = [str(entry) for entry in ([narrowed] if narrowed else suspected(place, entries))]


def narrowings(places: Sequence[Place], entries: Sequence[Entry]) -> list[Entry | None]:
    """Return, by place, the rewrite that narrowed the value's type, else None.

    Only for places where the type cannot hold the original's values.
    """
    known = {(e.scope, e.value): e for e in entries if e.pass_name == NARROWING and e.fuel}
    found: list[Entry | None] = []
    for place in places:
        makers = [side.outputs for side in (*place.b, *place.a) if place.value in side.outputs] if place.beyond else []
        there = (known.get((place.scope, outputs[0])) for outputs in makers)
        found.append(next(filter(None, there), None))
    return found


def made(sides: Sequence[Side]) -> set[str]:
    """Return the values made by nodes."""
    return {name for side in sides for name in side.outputs}


def goes_wrong(verdict: Verification, place: Place) -> bool:
    """Return whether a result is refused with a fault at `place`, or at an unknown place."""
    if not verdict.is_refused:
        return False
    return not verdict.places or any(_same(place, other) for other in verdict.places)


def _same(place: Place, other: Place) -> bool:
    """Return whether two places concern the same part of the original, perhaps of different extent."""
    if place.scope != other.scope:
        return any(f"{x.scope} / ".startswith(_bodies(y)) for x, y in ((place, other), (other, place)))
    return bool({place.value, *made(place.a)} & {other.value, *made(other.a)})


def _bodies(place: Place) -> tuple[str, ...]:
    """Return prefixes of scope paths inside a place's nodes, and of functions called."""
    found: list[str] = []
    for side in (*place.a, *place.b):
        domain, _, name = side.op.replace("::", ".").rpartition(".")
        label = f' "{side.node}"' if side.node else ""
        found.append(f"{place.scope} / {side.op}{label} / ")
        if domain:
            found.append(f"function {domain}::{name}")
    return tuple(found)
