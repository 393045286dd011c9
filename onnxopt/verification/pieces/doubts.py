"""Which candidates will be no cuts, before anything was run from cuts alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnxopt.verification.pieces.outcome import First


def doubts(pending: Sequence[str], first: Mapping[str, First]) -> tuple[set[str], set[str]]:
    """Of what is pending, in B's order: what will be no cut, for it does not agree, or only moves what does not; and
    what does not agree, but reads such: it is excused. Whether the latter is to be doubted too its next run says, and
    until then nothing is said of what moves it on, nor of what does not agree behind that: there it may be made up
    for, and what follows (the next layer) is asked as if it were."""
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
