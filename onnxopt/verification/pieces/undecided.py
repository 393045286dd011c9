"""Decisions that are the same in all cases, everywhere: a comparison that is never true.

They agree whatever they are made of, and a value before them that is wrong is taken for one that was moved on purpose.
Where the two make one otherwise, it is made once more of numbers larger and smaller than there are, and of some around
what is compared with. Where it differs then nobody is accused, for such numbers may never come up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from onnxopt.verification.pieces.bounds import Beyond, Bounds, around

if TYPE_CHECKING:
    from onnxopt.verification.pieces.sameness import Sameness
    from onnxopt.verification.pieces.walk import Walk

_KINDS: Final = ("tensor(bool)", "tensor(int32)", "tensor(int64)")  # those of quantizers are no decisions
_FACTORS: Final = (8.0, 64.0, 4096.0, 2.0**-3, 2.0**-6, 2.0**-12)
_MOST: Final = 32  # that are looked at


def undecided(walk: Walk, sameness: Sameness) -> Iterator[tuple[str, str]]:
    """(cut of B, what it is in all cases) of each that is something else than A's on other numbers."""
    bounds = Bounds(walk.a), Bounds(walk.b)
    looked = 0
    for value in (v for v in walk.b.maker if v in walk.cuts and v in walk.pairs.of):
        if walk.replay.kind(value) not in _KINDS:
            continue
        number = _only(walk, value)
        if not number or sameness.is_made_alike(value):
            continue
        looked += 1
        if looked > _MOST:
            break
        mine, theirs = walk.a.cone([walk.pairs.of[value]], walk.fed_of_a), walk.b.cone([value], walk.fed)
        every = sorted({*bounds[0].of(mine), *bounds[1].of(theirs)})
        if Beyond(walk, around(every, every) if every else (), _FACTORS).differs(value):
            yield value, number


def _only(walk: Walk, value: str) -> str:
    """The number that it is, wherever it is known; empty where these are several."""
    name = walk.pairs.of[value]
    known = [v[name] for v in walk.original.values if name in v]
    if not known or not all(isinstance(v, np.ndarray) and v.size for v in known):
        return ""
    first = known[0].flat[0]
    return str(first) if all((v == first).all() for v in known) else ""
