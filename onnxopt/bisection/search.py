"""Search for the rewrite that makes a result wrong, by limiting fuel.

If verification locates the fault, only rewrites at the place are searched; else first runs of passes, then rewrites.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxopt.bisection.finding import Finding, Tell, describe
from onnxopt.bisection.suspects import goes_wrong, suspected
from onnxopt.bisection.trials import Outcome, Trials
from onnxopt.errors import UsageError
from onnxopt.optimizer import OptimizeOptions
from onnxopt.pipeline.journal import Entry, Journal
from onnxopt.plaintext import counted
from onnxopt.verification import Verification, VerifyOptions

if TYPE_CHECKING:
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
    """Return the first rewrite with which the result is wrong at the first place named by verification.

    Without a helpful place: the first pass run with a wrong result, and in the run the first such rewrite, after about
    log2(runs) + log2(rewrites) verified optimizations. known: verdict on the whole result; smallest: search the
    smallest model that reproduces the fault. Raises UsageError if the whole result is right, and errors of a failing
    pass.
    """
    options = options or OptimizeOptions()
    with Trials(source, options, verify_options, known) as trials:
        trials.start()
        journal = Journal()
        whole = trials.run(watch=[journal])
        verdict = trials.known[None, whole.rewrites] = trials.verdict(outcome=whole)
        if not verdict.is_refused:
            raise UsageError(f"{source}: the result does not differ from the original", "there is nothing to find")
        spent = f"{counted(whole.runs, 'run')} of passes and {counted(whole.rewrites, 'rewrite')}"
        tell(f"the result {verdict.fault} after {spent}: {verdict.message}")
        runs: int | None = None
        rewrite = _at_places(trials, verdict.places, journal.entries, tell)
        if rewrite is None:
            runs, rewrite = _among_all(trials, whole, tell)
        wrong = trials.verdict(runs, rewrite)
    found = describe(
        source,
        options,
        verify_options,
        rewrite,
        wrong.message,
        tell if smallest else None,
        pass_run=runs,
        places=wrong.places,
    )
    found.runs = trials.verified
    return found


def guilty(trials: Trials, place: Place, entries: Sequence[Entry], tell: Tell) -> Entry | None:
    """Return the first rewrite with which the result is wrong at a place, among rewrites at the place.

    None without rewrites at the place.
    """
    numbered = {e.fuel: e for e in suspected(place, entries)}
    numbers = sorted(numbered)
    if not numbers:
        return None
    tell(f"{len(numbers)} of them happened at `{place.value}`")
    for (runs, n), verdict in trials.known.items():  # some were tried for a previous place
        if runs is None and n is not None:
            wrong = goes_wrong(verdict, place)
            numbers = [m for m in numbers if (m <= n) == wrong] or numbers
    return numbered[_first(numbers, lambda n: goes_wrong(trials.verdict(rewrites=n), place), tell, "rewrite")]


def _at_places(trials: Trials, places: Sequence[Place], entries: Sequence[Entry], tell: Tell) -> int | None:
    """Return the first rewrite with which the result is wrong at a place, if proven to be at the place; else None."""
    for place in places:
        entry = guilty(trials, place, entries, tell)
        if entry is None:
            continue
        after, before = (goes_wrong(trials.verdict(rewrites=n), place) for n in (entry.fuel, entry.fuel - 1))
        if after and not before:
            return entry.fuel
        tell("but it is none of them")
    return None


def _among_all(trials: Trials, whole: Outcome, tell: Tell) -> tuple[int, int | None]:
    """Return (first run of a pass with a wrong result, its first rewrite with a wrong result or None)."""

    def wrong(runs: int, rewrites: int | None = None) -> bool:
        return trials.verdict(runs, rewrites).is_refused

    runs = _first(range(1, whole.runs + 1), wrong, tell, "run")
    if runs == 1 and wrong(0):
        raise UsageError(f"{trials.source}: it differs before the first pass", "no pass is guilty")
    tell(f"the guilty pass is run {runs}: {whole.texts[runs - 1]}")
    before, after = whole.taken[runs - 1], whole.taken[runs] if runs < whole.runs else whole.rewrites
    if before == after:
        return runs, None  # a pass without fuel: no finer search
    return runs, _first(range(before + 1, after + 1), lambda n: wrong(runs, n), tell, "rewrite")


def _first(numbers: Sequence[int], wrong: Callable[[int], bool], tell: Tell, what: str) -> int:
    """Return the smallest of ascending numbers for which `wrong` holds, by binary search.

    `wrong` is assumed to hold for the last number, and not before the first.
    """
    while len(numbers) > 1:
        middle = (len(numbers) + 1) // 2
        n = numbers[middle] - 1
        found = wrong(n)
        tell(f"  {counted(n, what)}: {'differs' if found else 'equal'}")
        numbers = numbers[:middle] if found else numbers[middle:]
    return numbers[0]
