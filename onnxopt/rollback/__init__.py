"""Rollback: optimize again without the rewrites whose result differs from the original."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onnxopt.optimizer import DifferentResult, OptimizeOptions, Report, attempt
from onnxopt.optimizer.attempt import ConversionFault
from onnxopt.verification import UNVERIFIED

if TYPE_CHECKING:
    from onnxopt.pipeline import Instrument
    from onnxopt.rollback.search import Search
    from onnxopt.verification import Verifier, VerifyOptions


__all__ = ["optimize_or_roll_back"]


_MAX_ATTEMPTS: Final = 16  # attempts


def optimize_or_roll_back(
    source: str | Path,
    destination: str | Path,
    options: OptimizeOptions,
    *,
    verify_options: VerifyOptions | None = None,
    verifier: Verifier | None = None,
    strict: bool = False,
    progress: Callable[[str], None] = lambda name: None,
    instruments: Sequence[Instrument] = (),
    reproducer: str | Path | None = None,
    zero_weights: bool = False,
    **given: Any,
) -> Report:
    """Optimize a file as `attempt` does, again without guilty rewrites if the result differs, unless `strict`.

    The instruments watch each run. `given`: further keywords of `attempt`. The report's seconds include all attempts
    and the search between them. Raises the errors of `attempt`.
    """
    start = time.perf_counter()
    given |= {"verify_options": verify_options, "progress": progress, "instruments": instruments}
    once: Callable[..., Report] = partial(attempt, source, destination, **given)
    whole = {"strict": strict, "reproducer": reproducer, "zero_weights": zero_weights}
    told: list[str] = []
    try:
        try:
            return once(options, verifier=verifier, **whole)
        except ConversionFault as e:
            if options.target_opset is not None:
                raise
            options = replace(options, target_opset=e.own)  # the target chose this opset, not the user
            told.append(f"opset {e.own} stays: {e.message}")
            report = once(options, **whole)
    except DifferentResult as first:
        if not strict and _unverified(first):
            raise
        from onnxopt.rollback.search import Search  # most results are right

        work = Search(source, options, verify_options, progress)
        try:
            if strict:
                work.explain(first)
                raise
            report = _roll_back(first, work, once, reproducer)
        except DifferentResult as e:
            _count_all(e.report, start)
            raise
    report.pipeline.warnings += told
    _count_all(report, start)
    return report


def _count_all(report: Report, start: float) -> None:
    """Add the time before and after the last attempt (`report.seconds`) to the report."""
    whole = time.perf_counter() - start
    report.phases["roll-back"] = whole - report.seconds
    report.seconds = whole


def _roll_back(
    error: DifferentResult, work: Search, once: Callable[[OptimizeOptions], Report], reproducer: str | Path | None
) -> Report:
    """Leave out guilty rewrites and repeat, until the result is verified; `rolled_back` in the report lists them.

    If verification names places: for each the first rewrite that makes the result wrong there; else the rewrite found
    by bisection. A rule (or pass without rules) blamed repeatedly is left out completely. `reproducer`: folder for the
    smallest model with the first failure. Raises DifferentResult, with nothing written, if no attempt succeeds.
    """
    for _ in range(_MAX_ATTEMPTS):
        if not work.next(error):
            break
        try:
            report = once(work.options)
        except DifferentResult as e:
            error = e
            if _unverified(e):
                break  # no further information
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
