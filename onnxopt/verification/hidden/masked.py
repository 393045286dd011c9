"""Differences that a step masks: what agrees and is made of a value that does not (a decision, a quantizer, what
saturates, or drops some of what it reads, as a Relu does).

A scale may have been moved through that value on purpose, and be made up for; or the value is wrong, and no number of
these cases was near enough to an edge to show it. So A's and B's are made once more, of numbers that are near those
there are, or the same in other places. What differs there by more than roundings was not seen. Nobody is accused, for
such numbers may never come up.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.element_types import element_kind
from onnxopt.verification.hidden.anew import Piece, explains
from onnxopt.verification.inputs.edges import DROPPING
from onnxopt.verification.inputs.muted import are_few, least_rows
from onnxopt.verification.numbers.compare import is_dull
from onnxopt.verification.numbers.draws import Draws
from onnxopt.verification.numbers.rounding import Difference
from onnxopt.verification.numbers.shaken import are_integers
from onnxopt.verification.pieces.noise import is_discrete
from onnxopt.verification.programs.steps import is_stepped

if TYPE_CHECKING:
    from onnxopt.verification.pieces.pairs import Pairs
    from onnxopt.verification.pieces.sameness import Sameness
    from onnxopt.verification.pieces.walk import Walk
    from onnxopt.verification.programs.program import Program

_MOST: Final = 16  # values that are looked at,
_TRIED: Final = 16  # on so many sets of numbers,
_MOVED: Final = 128  # or so many of the same in other places: each may be a row of which a channel is above zero,
_NUMBERS: Final = 1 << 16  # or fewer of more
_AT_ONCE: Final = 16  # of which the noise is measured together
_NEAR: Final = 0.5  # of each number, by how much others are larger or smaller, at most half of this
_LEVELS: Final = ("int8", "uint8", "int4", "uint4")  # integers of a quantizer: hardly a size or an index
# What moves numbers, or is made of sizes: what is wrong with that no step hides.
_PLACES: Final = frozenset((
    "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Concat", "Split", "Gather",
    "GatherElements", "GatherND", "Expand", "Tile", "Pad", "Shape", "Size", "ConstantOfShape", "DepthToSpace",
    "SpaceToDepth", "Constant", "Range",
))  # fmt: skip


def is_computed_otherwise(pairs: Pairs, steps: Sequence[str], sameness: Sameness) -> bool:
    """Is anything that leads to these values of A, and depends on more than sizes, computed otherwise? `sameness`: as
    far as files tell."""
    known = [s for s in steps if s in pairs.by_original]
    made = [o for i in pairs.a.cone(known, ()) for o in pairs.a.nodes[i].output]
    return any(computed_otherwise(pairs, made, sameness))


def computed_otherwise(pairs: Pairs, made: Sequence[str], sameness: Sameness) -> Iterator[str]:
    """Those of these values of A that are, as far as files tell."""
    if not made:
        return
    mine, theirs = changing_values(pairs.a), changing_values(pairs.b)
    for value in (v for v in pairs.made_from([*made]) if v in theirs and not pairs.is_same(v)):
        original = pairs.of[value]
        computes = _computes(pairs.a, original, pairs.by_original, mine) or _computes(pairs.b, value, pairs.of, theirs)
        if computes and not sameness.is_made_alike(value):
            yield original


def _computes(program: Program, value: str, shared: Collection[str], changing: set[str]) -> bool:
    """Is more done than numbers moved between values that both have and this one?"""
    nodes = (program.nodes[i] for i in program.cone([value], shared))
    return any(n.op_type not in _PLACES and not changing.isdisjoint(n.output) for n in nodes)


def changing_values(program: Program, given: Collection[str] | None = None) -> set[str]:
    """What depends on more of the inputs, or those `given`, than their sizes."""
    found = set(program.given if given is None else given)
    for node, reads in zip(program.nodes, program.reads):
        if node.op_type not in ("Shape", "Size") and not found.isdisjoint(reads):
            found.update(node.output)
    return found


def masked_by_steps(walk: Walk, sameness: Sameness) -> dict[str, bool]:
    """The first values of B that agree, and are made of what does not: do they differ on numbers near these?"""
    moved = itertools.islice(_made_of_moved(walk, sameness), _MOST)
    return {v: _differs(walk, v) for v in moved}


def could_tell(walk: Walk, value: str) -> bool:
    """Would it say something of what it is made of where it does not saturate?"""
    return not (is_discrete(walk.replay.kind(value)) or walk.replay.are_steps(value))


def _made_of_moved(walk: Walk, sameness: Sameness) -> Iterator[str]:
    """The steps among B's cuts between which and those before them stands a value that both have, and that differs by
    more than roundings."""
    known: dict[str, bool] = {}
    between = _between(walk, sameness)
    while some := list(itertools.islice(between, _AT_ONCE)):
        open_ = dict.fromkeys(v for _, values in some for v in values if v not in known)
        noise = walk.noise(list(open_))
        known.update((v, _is_rounded(walk, v, noise.get(v, []))) for v in open_)
        yield from (output for output, values in some if not all(known[v] for v in values))


def _between(walk: Walk, sameness: Sameness) -> Iterator[tuple[str, list[str]]]:
    """The steps among B's cuts, and what differs between them and the cuts before."""
    of, behind = walk.pairs.of, set[str]()
    for node, reads in zip(walk.b.nodes, walk.b.reads):
        is_behind = not behind.isdisjoint(reads)
        for output in filter(None, node.output):
            if output not in walk.cuts:
                behind.update([output] if is_behind or output in walk.latest else ())
            elif is_behind and output in of and _hides(walk, output) and not sameness.is_made_alike(output):
                inside = (o for i in walk.b.cone([output], walk.fed) for o in walk.b.nodes[i].output)
                yield output, [v for v in inside if v in walk.latest and v not in walk.cuts]


def _hides(walk: Walk, value: str) -> bool:
    """May it be the same, whatever it is made of?"""
    return _is_step(walk, value) or _drops(walk, value)


def _drops(walk: Walk, value: str) -> bool:
    """Is something in its piece the same whatever some of the numbers are: those below zero, or not the largest? Of
    many rows hardly any channel is that in all."""
    known = [values.get(walk.pairs.of[value]) for values in walk.original.values]
    if not are_few(least_rows(v.shape) for v in known if isinstance(v, np.ndarray)):
        return False
    pieces = (walk.a, walk.pairs.of[value], walk.fed_of_a), (walk.b, value, walk.fed)
    return any(p.nodes[i].op_type in DROPPING for p, v, fed in pieces for i in p.cone([v], fed))


def _is_step(walk: Walk, value: str) -> bool:
    kind = walk.replay.kind(value)
    if not kind.startswith("tensor("):
        return False
    known = [values.get(walk.pairs.of[value]) for values in walk.original.values]  # if it is still
    return not could_tell(walk, value) or all(v is not None and is_dull(v) for v in known)


def _differs(walk: Walk, value: str) -> bool:
    """Does it on numbers near those of a case, by more than last bits do, and in float64?"""
    piece = Piece.of(walk, value)
    moves = not _is_step(walk, value)  # what is below zero is too far from it
    return piece is not None and piece.differs(lambda known: _drawn(walk, value, known, moves=moves))


def _drawn(walk: Walk, value: str, known: Mapping[str, Any], *, moves: bool) -> Iterator[dict[str, Any]]:
    """Others in place of these, as far as they may be others. `moves`: the same in other places."""
    most = _MOVED if moves else _TRIED
    count = max(min(most, _NUMBERS // max(sum(v.size for v in known.values()), 1)), 1)
    for rng in (Draws(walk.seed, walk.pairs.of[value], k) for k in range(count)):
        if drawn := _near(walk, known, rng, moves=moves):
            yield drawn


def _near(walk: Walk, known: Mapping[str, Any], rng: Draws, *, moves: bool) -> dict[str, Any]:
    """`moves`: the same in other places."""
    found = {}
    for name, value in sorted(known.items()):
        if element_kind(value) == "f" and not moves and not are_integers(value) and not is_stepped(walk.a, name):
            with np.errstate(over="ignore"):  # of what stands for infinity: such draws are left out
                found[name] = (value * (1 + _NEAR * (rng.uniform(value.shape) - 0.5))).astype(value.dtype)
        elif element_kind(value) == "f" or value.dtype.name in _LEVELS:
            order = rng.orders(1, value.size)[0]
            found[name] = value.reshape(-1)[order].reshape(value.shape)
            if value.dtype.name in _LEVELS and not moves and value.size:  # or those between, which no case may have
                between = rng.integers(int(value.min()), int(value.max()) + 1, value.shape).astype(value.dtype)
                found[name] = np.where(rng.flags(value.shape), between, found[name])
    return found


def _is_rounded(walk: Walk, value: str, noise: Sequence[Difference]) -> bool:
    """Is what differs of it, from cuts alone, no more than roundings do?"""
    differences = walk.latest[value]
    if any(d.note for d in differences):
        return False
    return explains(walk, walk.replay, value, differences, noise, (walk.fed, walk.fed_of_a))
