"""Outputs of A without cutpoint: made by no node of B, or by no node of A."""

from __future__ import annotations

from collections.abc import Collection

from onnxopt.verification.numbers.narrow import as_held
from onnxopt.verification.numbers.rounding import EPSILON, Difference, allowed, difference, worst
from onnxopt.verification.pieces.replay import Replay


def unsettled(replay: Replay, cuts: Collection[str]) -> list[str]:
    """Return the outputs that differ, or are computed differently, including constant outputs."""
    original, pairs, b = replay.original, replay.pairs, replay.program
    a = original.runner.program
    left = []
    for x, y in pairs.outputs:
        mine = pairs.of.get(y, y)
        if (y in cuts and mine == x) or not (x in a.maker or x in a.constants or x in a.given):
            continue  # or no runnable node makes the output
        if y in cuts and all(x in known and mine in known for known in original.values):
            found = worst([difference(known[x], known[mine]) for known in original.values])
        elif y not in b.maker and y in b.constants and all(x in known for known in original.values):
            constant = b.constant(y)
            found = worst(
                [difference(as_held(known[x], constant, replay.dtype), constant) for known in original.values]
            )
        elif x not in a.maker and x in a.constants and y in b.constants:
            found = difference(a.constant(x), b.constant(y))
        else:
            found = Difference(note="it is made otherwise")
        if not found.within(allowed(EPSILON["float32"], 1)):
            left.append(x)
    return left
