"""Decisions that are the same in all cases, or nearly: a comparison that is never true.

They agree whatever they are made of, and a value before them that is wrong is taken for one that was moved on purpose.
Where the two make one otherwise, it is made once more of numbers larger and smaller than there are, of some around what
is compared with, and of other decisions turned round. Where it differs then nobody is accused, for such numbers may
never come up.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.element_types import element_kind, of
from onnxopt.verification.hidden.anew import Piece
from onnxopt.verification.hidden.bounds import Beyond, Bounds, around
from onnxopt.verification.hidden.masked import changing_values

if TYPE_CHECKING:
    from onnxopt.verification.pieces.pairs import Pairs
    from onnxopt.verification.pieces.sameness import Sameness
    from onnxopt.verification.pieces.walk import Walk

_KINDS: Final = ("tensor(bool)", "tensor(int32)", "tensor(int64)")  # those of quantizers are no decisions
_FACTORS: Final = tuple(sign * 8.0**k for k in (1, 2, 3, 4, 0, -1, -2, -3, -4) for sign in (1.0, -1.0))
_FEW: Final = 8  # numbers
_MOST: Final = 32  # that are looked at
_PAIRS: Final = 12  # integers, and what they may be compared with
_NEXT: Final = (0, -1, 1, -2, 2)
# Operators that take any integers, and make none of them a size or an index.
_ARITHMETIC: Final = frozenset((
    "Constant", "Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Add", "Sub", "Mul", "Neg", "Abs", "Min", "Max",
    "Not", "And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Where",
))  # fmt: skip


def is_made_otherwise(pairs: Pairs, decisions: Sequence[str], sameness: Sameness) -> bool:
    """Is anything that leads to these values of A made otherwise? `sameness`: as far as files tell."""
    known = [d for d in decisions if d in pairs.by_original]
    made = [o for i in pairs.a.cone(known, ()) for o in pairs.a.nodes[i].output]
    return any(not sameness.is_made_alike(value) for value in pairs.made_from(made))


def undecided(walk: Walk, sameness: Sameness) -> dict[str, bool]:
    """The values of B that say next to nothing in any case: do they say something else than A's on other numbers? The
    first are asked."""
    settled, of = walk.cuts.union(walk.pending), walk.pairs.of
    little = (v for v in walk.b.maker if v in settled and v in of and _says_little(walk, v))
    found = list(itertools.islice((v for v in little if not sameness.is_made_alike(v)), _MOST))
    if not found:
        return {}
    a, b = Bounds(walk.a), Bounds(walk.b)
    bounds = {v: sorted({*a.of(walk.a.cone([of[v]], walk.fed_of_a)), *b.of(walk.b.cone([v], walk.fed))}) for v in found}
    cases = range(len(walk.original.values))
    asked = {v: any(_beyond(walk, bounds[v], k).differs(v) for k in cases) for v in found}
    asked |= {v: _differs_where_equal(walk, v, bounds[v]) for v, differs in asked.items() if not differs}
    return asked | dict.fromkeys(little, False)


def _beyond(walk: Walk, bounds: Sequence[float], case: int) -> Beyond:
    return Beyond(walk, around(bounds, bounds) if bounds else (), _FACTORS, case=case, turned=True)


def _differs_where_equal(walk: Walk, value: str, bounds: Sequence[float]) -> bool:
    """Does it where integers that it is made of are what they may be compared with, or next to that?"""
    piece = Piece.of(walk, value)
    if piece is None:
        return False
    nodes = [*(walk.a.nodes[i] for i in piece.nodes), *(walk.b.nodes[i] for i in walk.b.cone([value], walk.fed))]
    if any(n.op_type not in _ARITHMETIC for n in nodes):
        return False
    asked = walk.a.entries(walk.a.cone(piece.asked, piece.fed_of_a), piece.fed_of_a)  # what B reads is made of these
    free = piece.both.union(asked) & _free(walk)
    return piece.differs(lambda known: _equal(known, free, bounds))


def _equal(known: Mapping[str, Any], free: Collection[str], bounds: Sequence[float]) -> Iterator[dict[str, Any]]:
    """What is never negative stays so."""
    integers = {n: v for n, v in sorted(known.items()) if element_kind(v) == "i" and v.size}
    some = [n for n in integers if n in free]
    pairs = [(x, int(v.flat[0])) for x in some for y, v in integers.items() if x != y]
    pairs += [(x, int(bound)) for x in some for bound in bounds if bound == int(bound)]
    for name, other in dict.fromkeys(pairs[:_PAIRS]):
        value, limits = known[name], of(known[name].dtype)
        for number in (other + step for step in _NEXT):
            if limits.low <= number <= limits.high and (number >= 0 or value.min() < 0):
                yield {name: np.full_like(value, number)}


def _free(walk: Walk) -> set[str]:
    """What depends on more than sizes, and which turn of a loop it is: those may not be equal to anything else."""
    found = set(walk.a.given)
    if walk.enclosing is not None and walk.enclosing.nodes[0].op_type == "Loop" and walk.a.graph.input:
        found.discard(walk.a.graph.input[0].name)
    return changing_values(walk.a, found)


def _says_little(walk: Walk, value: str) -> bool:
    """Are these booleans, of which at most a few are not as the others, in all cases; or integers that are all one?"""
    kind, name = walk.replay.kind(value), walk.pairs.of[value]
    if kind not in _KINDS:
        return False
    known = [v[name] for v in walk.original.values if isinstance(v.get(name), np.ndarray) and v[name].size]
    if not known:
        return False
    first = known[0].item(0)
    others = sum(int(np.count_nonzero(v != first)) for v in known)
    most = _FEW if kind == "tensor(bool)" else 0
    return others <= most or sum(v.size for v in known) - others <= most
