"""When a result differs from the original: leave out what makes it so, and optimize again, until it does not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onnxopt.optimizer import DifferentResult, OptimizeOptions, Report, attempt
from onnxopt.optimizer.results import ConversionFault
from onnxopt.verification import UNVERIFIED, VerifyOptions

if TYPE_CHECKING:
    from onnxopt.pipeline import Instrument
    from onnxopt.pipeline.context import Trace
    from onnxopt.rollback.search import Search
    from onnxopt.verification import Verifier

_MOST: Final = 16  # attempts


def optimize_or_roll_back(
    source: str | Path,
    destination: str | Path,
    options: OptimizeOptions,
    *,
    verify_options: VerifyOptions | None = None,
    verifier: Verifier | None = None,
    strict: bool = False,
    allow_unverified: bool = True,
    progress: Callable[[str], None] = lambda name: None,
    instruments: Sequence[Instrument] = (),
    again: Sequence[Instrument] = (),
    trace: Trace | None = None,
    reproducer: str | Path | None = None,
    zero_weights: bool = False,
    home: Path | None = None,
) -> Report:
    """Optimize one file into another, as `attempt` does, and again without what makes the result differ, unless
    `strict`.

    `again`: the instruments of runs after the first. The report's seconds are those of all attempts, and of the search
    between them. Raises what `attempt` raises.
    """
    start = time.perf_counter()
    once = partial(
        attempt,
        source,
        destination,
        verify_options=verify_options,
        allow_unverified=allow_unverified,
        progress=progress,
        trace=trace,
        home=home,
    )
    try:
        return once(
            options,
            verifier=verifier,
            strict=strict,
            instruments=instruments,
            reproducer=reproducer,
            zero_weights=zero_weights,
        )
    except DifferentResult as e:
        first = e
    except ConversionFault as e:
        if options.target_opset is not None:
            raise
        again_with = replace(options, target_opset=e.own)  # nobody asked for a newer one: the target chose it
        report = optimize_or_roll_back(
            source,
            destination,
            again_with,
            verify_options=verify_options,
            strict=strict,
            allow_unverified=allow_unverified,
            progress=progress,
            instruments=again,
            again=again,
            trace=trace,
            reproducer=reproducer,
            zero_weights=zero_weights,
            home=home,
        )
        report.pipeline.warnings.append(f"opset {e.own} stays: {e.message}")
        _count_all(report, start)
        return report
    if not strict and _unverified(first):
        raise first
    from onnxopt.rollback.search import Search  # most results are right

    work = Search(source, options, verify_options, progress)
    try:
        if strict:
            work.explain(first)
            raise first
        report = _roll_back(first, work, partial(once, instruments=again), reproducer)
    except DifferentResult as e:
        _count_all(e.report, start)
        raise
    _count_all(report, start)
    return report


def _count_all(report: Report, start: float) -> None:
    """The last attempt took `report.seconds`; what was before it and after belongs to the run, too."""
    whole = time.perf_counter() - start
    report.phases["roll-back"] = whole - report.seconds
    report.seconds = whole


def _roll_back(
    error: DifferentResult, work: Search, once: Callable[[OptimizeOptions], Report], reproducer: str | Path | None
) -> Report:
    """Leave out what made the result wrong, as `error` says, and attempt it again, until it is verified. The report's
    `rolled_back` says what was left out.

    Where verification names places: at each the first rewrite with which the result goes wrong there; else the one
    that bisection finds. The whole rule (or pass without rules) where its matches are blamed again and again.
    `reproducer`: a folder for the smallest model that shows the first of them. Raises DifferentResult, with nothing
    written, if nothing helps.
    """
    for _ in range(_MOST):
        if not work.next(error):
            break
        try:
            report = once(work.options)
        except DifferentResult as e:
            error = e
            if _unverified(e):
                break  # nothing more can be learnt
            continue
        report.rolled_back = [r.record for r in work.left_out]
        if reproducer is not None:
            work.keep(Path(reproducer), error)
        return report
    if reproducer is not None:
        work.keep(Path(reproducer), error)
    raise work.failed(error)


def _unverified(error: DifferentResult) -> bool:
    found = error.report.verification
    return found is not None and found.status == UNVERIFIED
