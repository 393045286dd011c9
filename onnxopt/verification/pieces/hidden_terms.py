"""Errors in a small term of a sum, hidden by the rounding of larger terms.

A residual branch scaled by 1e-6 changes the sum by a few roundings, and may be wrong by all of its range. If a value in
the branch differs, and the sum agrees, the sum is compared in float64, relative to the term alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.verification.pieces.precise import asked
from onnxopt.verification.rounding import Difference, difference, is_float
from onnxopt.verification.run import Failed

if TYPE_CHECKING:
    from onnxopt.verification.pieces.walk import Walk

_SMALL: Final = 2.0**-8  # relative to the range of the sum
_MAX_NODES: Final = 20  # of B's piece: float64 kernels are slow
_SUMS: Final = ("Add", "Sum")


def hides_error(walk: Walk, value: str, found: Difference) -> bool:
    """Return whether an agreeing value hides an error of a small term, and note the errors. `found`: of the value.

    Errors up to the value's own tolerance, and up to the effect of last bits of B's constants, are rounding.
    """
    cone = walk.b.cone([value], walk.fed) if found.largest and not found.discrete else ()
    differ = any(v in walk.first and not walk.first[v].ok and v not in walk.cuts for v in walk.b.made(cone))
    if not differ or len(cone) > _MAX_NODES:
        return False
    shares = [_small_share(walk, case, value) for case in range(len(walk.original.values))]
    tolerance = walk.share(value) if any(shares) else 0.0
    try:
        question = asked(walk.replay, value, walk.fed, tolerance) if tolerance else None
        errors = [question.error(case, share) for case, share in enumerate(shares)] if question is not None else []
    except (Failed, KeyError):  # kernels are missing, or values were released
        return False
    if is_hidden := any(not error.within(tolerance) for error in errors):
        walk.latest[value] = errors
    return is_hidden


def _small_share(walk: Walk, case: int, value: str) -> float:
    """Return the largest of the small terms of A's sums that make a value, relative to the sum; 0 if none."""
    known, shares = walk.original.values[case], [0.0]
    for node in (walk.a.nodes[i] for i in walk.a.cone([walk.pairs.of[value]], walk.fed_of_a)):
        total: Any = known.get(node.output[0])
        if node.op_type in _SUMS and len(node.input) == 2 and is_float(total):
            others = (np.broadcast_to(known[r], total.shape) for r in node.input if is_float(known.get(r)))
            shares += [difference(total, other).relative for other in others]
    return max(share for share in shares if share <= _SMALL)
