"""Find the rewrite that makes a result wrong: first the run of a pass, then the single rewrite, by fuel.

Passes are deterministic, so the first n rewrites of a run are the same however far it goes on after them. Where
verification says at which places the result goes wrong, only the rewrites that happened there are tried.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from onnxopt.api import OptimizeOptions
from onnxopt.bisect.finding import Finding, Tell, describe, run
from onnxopt.bisect.suspects import suspects
from onnxopt.errors import ModelError, UsageError
from onnxopt.graph import specialise
from onnxopt.io import load, save
from onnxopt.pipeline import Instrument, PassContext
from onnxopt.pipeline.instruments import Entry, Journal
from onnxopt.verification import DIFFERENT, UNVERIFIED, Verification, Verifier, VerifyOptions

if TYPE_CHECKING:
    from onnxopt.graph import Model
    from onnxopt.pipeline import Pass
    from onnxopt.verification.records import Place


def bisect(
    source: str | Path,
    options: OptimizeOptions | None = None,
    verify_options: VerifyOptions | None = None,
    tell: Tell = lambda line: None,
    *,
    known: Verification | None = None,
    smallest: bool = True,
) -> Finding:
    """The first pass, and its first rewrite, after which the result differs from the original.

    Where verification names places, among the rewrites that happened there. Else by about log2(passes run) +
    log2(rewrites) optimizations, each verified. `known`: the verdict on the whole result. `smallest`: look for the
    smallest model that shows it. Raises UsageError if the result of the whole pipeline does not differ, and what a
    failing pass raises.
    """
    source, options = Path(source), options or OptimizeOptions()
    with Verifier(source, verify_options) as verifier, tempfile.TemporaryDirectory() as folder:
        if options.dims or options.shapes:
            sized = load(source)
            specialise(sized, options.dims, options.shapes)
            verifier.describe(sized.proto)
        trial = _Trial(source, options, verifier, Path(folder) / "trial.onnx")
        journal = Journal()
        whole = trial.run(watch=journal)
        verdict = known or trial.verify(whole)
        if verdict.status != DIFFERENT:
            raise UsageError(f"{source}: the result does not differ from the original", "there is nothing to find")
        said = f"{whole.runs} runs of passes and {whole.rewrites} rewrites: {verdict.message}"
        tell(f"the result differs after {said}")
        trial.known[None, None] = verdict.message
        runs: int | None = None
        rewrite = _at_places(trial, verdict.places, journal.entries, tell)
        if rewrite is None:
            runs, rewrite = _among_all(trial, whole, tell)
        message, verified = trial.difference(runs, rewrite), trial.verified
    if rewrite is None:
        assert runs is not None
        return Finding(message, whole.texts[runs - 1], runs, runs=verified)
    found = describe(source, options, verify_options, rewrite, message, tell if smallest else None)
    found.runs = verified
    return found


def _at_places(trial: _Trial, places: Sequence[Place], entries: Sequence[Entry], tell: Tell) -> int | None:
    """The first rewrite with which the result differs, if it is one that happened at the places."""
    numbers = sorted({e.fuel for place in places for e in suspects(place, entries)})
    if not numbers:
        return None
    more = ", …" if len(places) > 3 else ""
    tell(f"{len(numbers)} of them happened at {', '.join(f'`{p.value}`' for p in places[:3])}{more}")
    n = _first(numbers, lambda n: bool(trial.difference(rewrites=n)), tell, "rewrites")
    if trial.difference(rewrites=n) and not trial.difference(rewrites=n - 1):
        return n
    tell("but it is none of them")
    return None


def _among_all(trial: _Trial, whole: _Outcome, tell: Tell) -> tuple[int, int | None]:
    """The first run of a pass after which the result differs, and its first rewrite with which it does."""
    runs = _first(range(1, whole.runs + 1), lambda n: bool(trial.difference(n)), tell, "runs of passes")
    if runs == 1 and (message := trial.difference(0)):
        raise UsageError(f"{trial.source}: it differs before the first pass: {message}", "no pass is guilty")
    tell(f"the guilty pass is run {runs}: {whole.texts[runs - 1]}")
    before, after = whole.taken[runs - 1], whole.taken[runs] if runs < whole.runs else whole.rewrites
    if before == after:
        return runs, None  # a pass that does not spend fuel: no finer than this
    return runs, _first(range(before + 1, after + 1), lambda n: bool(trial.difference(runs, n)), tell, "rewrites")


def _first(numbers: Sequence[int], wrong: Callable[[int], bool], tell: Tell, what: str) -> int:
    """The smallest of the numbers, which ascend, for which `wrong` holds; it does for the last."""
    low, high = 0, len(numbers) - 1
    while low < high:
        middle = (low + high) // 2
        found = wrong(numbers[middle])
        tell(f"  {numbers[middle]} {what}: {'differs' if found else 'equal'}")
        low, high = (low, middle) if found else (middle + 1, high)
    return numbers[low]


class _Limit(Instrument):
    """Lets the first so many runs of passes happen, and no others; knows what ran, and the rewrites before each."""

    def __init__(self, runs: int | None) -> None:
        self.runs = runs
        self.texts: list[str] = []
        self.taken: list[int] = []
        self.rewrites = 0

    def should_run(self, model: Model, p: Pass) -> bool:
        return bool(p.children) or self.runs is None or len(self.texts) < self.runs

    def before(self, model: Model, p: Pass) -> None:
        if not p.children:
            self.texts.append(str(p))
            self.taken.append(PassContext.current().fuel.taken)

    def end(self, model: Model) -> None:
        self.rewrites = PassContext.current().fuel.taken


@dataclass
class _Outcome:
    model: Model
    texts: list[str]  # the passes that ran
    taken: list[int]  # rewrites before each of them
    rewrites: int

    @property
    def runs(self) -> int:
        return len(self.texts)


@dataclass
class _Trial:
    source: Path
    options: OptimizeOptions
    verifier: Verifier
    path: Path
    verified: int = 0  # how many results
    known: dict[tuple[int | None, int | None], str] = field(default_factory=dict)

    def run(self, runs: int | None = None, rewrites: int | None = None, watch: Instrument | None = None) -> _Outcome:
        """The pipeline up to so many runs of passes and so many rewrites."""
        limit = _Limit(runs)
        model = run(self.source, self.options, [limit, *([watch] if watch is not None else [])], rewrites)
        return _Outcome(model, limit.texts, limit.taken, limit.rewrites)

    def difference(self, runs: int | None = None, rewrites: int | None = None) -> str:
        """How the result of such a run differs from the original; empty if it does not."""
        key = runs, rewrites
        if key not in self.known:
            verdict = self.verify(self.run(runs, rewrites))
            self.known[key] = verdict.message if verdict.status == DIFFERENT else ""
        return self.known[key]

    def verify(self, outcome: _Outcome) -> Verification:
        save(outcome.model, self.path)
        self.verified += 1
        self.verifier.submit(self.path)
        verdict = self.verifier.finish()
        if verdict.status == UNVERIFIED:
            raise ModelError(f"{self.source}: {verdict.message}", verdict.hint)
        return verdict
