"""When a result differs from the original: leave out what makes it so, and optimize again, until it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onnxopt.optimizer import DifferentResult, OptimizeOptions, Report, optimize_file
from onnxopt.verification import UNVERIFIED, VerifyOptions

if TYPE_CHECKING:
    from onnxopt.pipeline import Instrument
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
    reproducer: str | Path | None = None,
    zero_weights: bool = False,
    home: Path | None = None,
) -> Report:
    """`optimize_file`, and again without what made the result differ, unless `strict`. `verify_options` None: not
    verified.

    `again`: the instruments of runs after the first. Raises what `optimize_file` raises.
    """
    attempt = partial(
        optimize_file,
        source,
        destination,
        check_result=verify_options is not None,
        verify_options=verify_options,
        allow_unverified=allow_unverified,
        progress=progress,
        home=home,
    )
    try:
        return attempt(
            options,
            verifier=verifier,
            strict=strict,
            instruments=instruments,
            reproducer=reproducer,
            zero_weights=zero_weights,
        )
    except DifferentResult as e:
        if not strict and _unverified(e):
            raise
        from onnxopt.rollback.search import Search  # most results are right

        work = Search(source, options, verify_options, progress)
        if strict:
            work.explain(e)
            raise
        return _roll_back(e, work, partial(attempt, instruments=again), reproducer)


def _roll_back(
    error: DifferentResult, work: Search, attempt: Callable[[OptimizeOptions], Report], reproducer: str | Path | None
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
            report = attempt(work.options)
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
