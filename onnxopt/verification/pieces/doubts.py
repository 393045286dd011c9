"""Prediction of candidates that are no cutpoints, from runs with all candidates assumed to be cutpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnxopt.verification.pieces.outcome import First


def doubts(pending: Sequence[str], first: Mapping[str, First]) -> tuple[set[str], set[str]]:
    """Return (rejected, retry) among `pending` in B's order.

    rejected: candidates that disagree, or only move a rejected value. retry: candidates that disagree, but read a
    rejected value, and may compensate. A candidate that only moves a retried value, or disagrees behind it, waits for
    the next run. Everything further behind is treated as if the retried value agreed.
    """
    doubted, excused, open_ = set[str](), set[str](), set[str]()
    for value in pending:
        seen = first.get(value)
        if seen is None or (seen.ok and not seen.moves):
            continue
        if not open_.isdisjoint(seen.entries):
            if seen.ok:
                open_.add(value)
        elif not doubted.isdisjoint(seen.entries):
            if seen.ok:
                doubted.add(value)
            else:
                excused.add(value)
                open_.add(value)
        elif not seen.ok:
            doubted.add(value)
    return doubted, excused
