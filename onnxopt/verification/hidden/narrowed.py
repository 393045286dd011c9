"""Integers of 8 or 16 bits in place of wider ones: the same until a number is too large for them, and none of any case
may be.

What is made by way of such is made once more of numbers that are as large. Where that differs nobody is accused, for
such numbers may never come up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from onnxopt.verification.hidden.bounds import Beyond, around, ends
from onnxopt.verification.model.operands import SINKS

if TYPE_CHECKING:
    from onnxopt.verification.pieces.sameness import Sameness
    from onnxopt.verification.pieces.walk import Walk
    from onnxopt.verification.programs.program import Program

_MOST: Final = 16  # values that are looked at
_FACTORS: Final = tuple(sign * 8.0**k for k in (1, 2, 3, 4) for sign in (1.0, -1.0))


def narrowed(walk: Walk, sameness: Sameness) -> dict[str, bool]:
    """The first cuts of B that are made by way of narrower integers than A has there: do they differ on numbers that
    are too large for these?"""
    if not ends(walk.b.nodes):
        return {}
    cases = range(len(walk.original.values))
    return {
        value: any(Beyond(walk, around(bounds, bounds), _FACTORS, case=k).differs(value) for k in cases)
        for value, bounds in itertools.islice(_by_way_of_such(walk, sameness), _MOST)
    }


def _by_way_of_such(walk: Walk, sameness: Sameness) -> Iterator[tuple[str, list[float]]]:
    """(the value, the ends of these integers)."""
    of = walk.pairs.of
    for value in (v for v in walk.b.maker if v in walk.cuts and v in of):
        theirs = walk.b.cone([value], walk.fed)
        bounds = ends(walk.b.nodes[i] for i in theirs)
        if not bounds or sameness.is_made_alike(value):
            continue
        mine = walk.a.cone([of[value]], walk.fed_of_a)
        has_such = ends(walk.a.nodes[i] for i in mine)  # what is too large for these A has no right result of
        if not (has_such or _makes_sizes(walk.a, mine) or _makes_sizes(walk.b, theirs)):
            yield value, bounds


def _makes_sizes(program: Program, nodes: Iterable[int]) -> bool:
    """Is anything computed there how much there is of something else? Of that there would be too much."""
    return any(
        not program.is_constant(name)
        for node in (program.nodes[i] for i in nodes)
        for k, name in enumerate(node.input)
        if name and k in SINKS.get(node.op_type, ())
    )
