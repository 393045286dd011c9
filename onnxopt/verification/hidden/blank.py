"""Blank values: zero, NaN or empty in all cases. What is changed and makes only such was not seen.

It is tried on numbers that are drawn in place of what says nothing: what follows a detector that detects nothing can be
compared all the same. Where that differs nobody is accused, for such numbers may never come up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.element_types import element_kind
from onnxopt.verification.hidden.parts import runs
from onnxopt.verification.numbers.compare import is_blank
from onnxopt.verification.numbers.draws import Draws
from onnxopt.verification.programs.runner import Failed
from onnxopt.verification.programs.stream import Stream

if TYPE_CHECKING:
    from onnxopt.verification.pieces.walk import Walk

_SOME: Final = 3  # elements, where there are none
_SCALES: Final = ((False, 1.0), (True, 1.0), (True, 64.0), (False, 64.0), (True, 4096.0), (False, 4096.0))


def changed_blanks(walk: Walk) -> list[str]:
    """The blank cuts of B that are made otherwise than A makes them."""
    return [v for v in walk.blank if not walk.sameness.is_made_alike(v) and not _is_of_no_turn(walk, v)]


def unproven_blanks(walk: Walk, changed: Sequence[str] | None = None) -> list[str]:
    """Of these, what is not seen to agree on drawn numbers."""
    return [v for v in (changed_blanks(walk) if changed is None else changed) if not _agree_on_drawn(walk, v)]


def _is_of_no_turn(walk: Walk, value: str) -> bool:
    """Is it what a Loop gathers that makes no turn? Its body is compared by itself, and said to be unseen else."""
    mine, theirs = walk.a.nodes[walk.a.maker[walk.pairs.of[value]]], walk.b.nodes[walk.b.maker[value]]
    return mine.op_type == theirs.op_type == "Loop" and not runs(walk, mine, "body")


def outputs_behind(walk: Walk, values: list[str]) -> list[str]:
    """The outputs, as A calls them, that are made of any of these."""
    nodes = {walk.b.maker[v] for v in values}
    return [x for x, y in walk.pairs.outputs if nodes and not nodes.isdisjoint(walk.b.cone([y], ()))]


def _agree_on_drawn(walk: Walk, value: str) -> bool:
    original, of = walk.pairs.of[value], walk.pairs.of
    mine, theirs = walk.a.cone([original], walk.fed_of_a), walk.b.cone([value], walk.fed)
    entries = walk.a.entries(mine, walk.fed_of_a)
    names = {*entries, *(of.get(e, e) for e in walk.b.entries(theirs, walk.fed))}
    known, types = walk.original.values[-1], walk.original.types
    if not all(isinstance(known.get(name), np.ndarray) for name in names):
        return False
    rng, tells = Draws(walk.seed, original), False
    for is_positive, factor in _SCALES:
        if tells and factor > 1:
            break
        fed = {name: _drawn(known[name], rng, is_positive, factor) for name in sorted(names)}
        try:
            found = walk.runner.open(mine, {e: types[e] for e in entries}, [original]).run(fed)[original]
            replay = walk.replay.drawn(Stream(walk.runner, [fed | {original: found}], types), -1)
            made = replay.run([value], walk.fed)[value]
            agrees = replay.hold(value, made, walk.share(value))[0]
        except (Failed, ValueError, IndexError, KeyError):  # it does not take them, nor does a view
            return False
        if not agrees:
            return False
        tells |= not is_blank(found)
    return tells


def _drawn(value: Any, rng: Draws, is_positive: bool, factor: float) -> Any:
    """Something in place of what says nothing; and more of what may be cut off."""
    shape = [size or _SOME for size in value.shape]
    if element_kind(value) == "f":
        numbers = rng.normal(shape) if is_blank(value) or np.isnan(value).any() else value
        return np.asarray((np.abs(numbers) if is_positive else numbers) * factor, value.dtype)
    if value.size:
        return value
    return (
        rng.integers(0, 2, shape).astype(value.dtype) if element_kind(value) in "iub" else np.empty(shape, value.dtype)
    )
