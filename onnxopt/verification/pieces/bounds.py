"""Bounds that are others in the two models, and that no case reaches: a Clip to 1000 that became one to 2000, a
threshold that decides a branch.

What is made by such is run once more, on numbers between these bounds and beyond them. Where that differs nobody is
accused, for such numbers may never come up.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.verification.constants import constants, numbers
from onnxopt.verification.draws import Draws
from onnxopt.verification.edges import edges
from onnxopt.verification.order import inside
from onnxopt.verification.pieces.dead_ends import sameness_of
from onnxopt.verification.pieces.replay import Replay
from onnxopt.verification.pieces.runner import Failed
from onnxopt.verification.pieces.stream import Stream
from onnxopt.verification.wide import covering

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

    from onnxopt.verification.pieces.program import Program
    from onnxopt.verification.pieces.walk import Walk

_NEAR: Final = 1e-3  # of a bound, that was followed through other constants
_FACTORS: Final = (8.0, 64.0, 4096.0)
_LARGEST: Final = 1e30
_MOST: Final = 32  # values that are looked at,
_NUMBERS: Final = 8  # and numbers of each
_LONGEST: Final = 200  # nodes of a piece: in a longer one nobody knows what becomes of what is far larger
_GROSS: Final = 1e-2  # of the range: less is what rounding does to numbers that are so large
_SHARE: Final = 0.1  # of the elements of what jumps
# What these make has bounds of its own, beyond which no reader has to be right.
_BOUNDED: Final = frozenset((
    "Sigmoid", "Tanh", "Softmax", "Clip", "HardSigmoid", "Erf", "Sin", "Cos", "DequantizeLinear", "Softsign", "Hardmax",
    "Min", "Max", "LogSoftmax",
))  # fmt: skip
_MOVES: Final = frozenset(("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split"))


class Bounds:
    """Those of one program, by node."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._held: dict[str, TensorProto] = {}
        every = list(inside(program.nodes))
        bodies = (g for n in every for a in n.attribute for g in ([a.g] if a.HasField("g") else a.graphs))
        self._held.update((t.name, t) for g in bodies for t in g.initializer)
        self._held |= program.constants
        self._held.update(constants(every))

    def of(self, nodes: Iterable[int]) -> list[float]:
        """Of these nodes and their bodies, each once, in order."""
        return sorted({n for i in nodes for n in self._of(inside([self._program.nodes[i]]))})

    def _of(self, nodes: Iterable[NodeProto]) -> Iterator[float]:
        for node in nodes:
            for k in range(len(node.input)):
                yield from (n for n in edges(node, k, self._numbers) if math.isfinite(n))

    def _numbers(self, name: str) -> list[float]:
        return numbers(self._held[name]) if name in self._held else []


def have_others(a: Program, b: Program) -> bool:
    """Are there bounds in one program that are none in the other?"""
    x, y = (Bounds(p).of(range(len(p.nodes))) for p in (a, b))
    return bool(_only(x, y) or _only(y, x))


def untold(walk: Walk) -> list[str]:
    """The cuts of B that other bounds make than A's, and that differ beyond them."""
    a, b, of = Bounds(walk.a), Bounds(walk.b), walk.pairs.of
    sameness, found, looked = sameness_of(walk), [], 0
    for value in (v for v in walk.b.maker if v in walk.cuts and v in of):
        mine, theirs = walk.a.cone([of[value]], walk.fed_of_a), walk.b.cone([value], walk.fed)
        x, y = a.of(mine), b.of(theirs)
        others = _only(x, y) + _only(y, x) if len(mine) <= _LONGEST else []
        if not others or sameness.is_made_alike(value):
            continue
        looked += 1
        if looked > _MOST:
            break
        if _differs(walk, value, mine, theirs, _around(others, sorted({*x, *y}))):
            found.append(value)
    return found


def _only(x: Sequence[float], y: Sequence[float]) -> list[float]:
    """What of the first is not near any of the second."""
    near = ((n, y[max(bisect_left(y, n) - 1, 0) : bisect_left(y, n) + 1]) for n in x)
    return [n for n, others in near if not any(abs(n - o) <= _NEAR * abs(n) for o in others)]


def _around(others: Iterable[float], every: Sequence[float]) -> list[float]:
    """What is between each of these bounds and the next of all there are, or beyond the last."""
    ends = [1.25 * every[0] - 0.5, *every, 1.25 * every[-1] + 0.5]
    found = {(x + y) / 2 for x, n, y in zip(ends, every, ends[2:]) if n in others for x, y in ((x, n), (n, y))}
    return sorted(n for n in found if abs(n) < _LARGEST)[:_NUMBERS]


def _differs(walk: Walk, value: str, mine: list[int], theirs: list[int], around: Sequence[float]) -> bool:
    original, of = walk.pairs.of[value], walk.pairs.of
    entries = walk.a.entries(mine, walk.fed_of_a)
    made = {o for i in mine for o in walk.a.nodes[i].output}
    asked = {of.get(e, e) for e in walk.b.entries(theirs, walk.fed)} - {*entries}
    known, types = walk.original.values[-1], walk.original.types
    if not asked <= made or not all(isinstance(known.get(name), np.ndarray) for name in (*entries, *asked)):
        return False
    free = sorted(n for n in entries if known[n].dtype.kind == "f" and known[n].size and not _is_bounded(walk.a, n))
    if not free:
        return False
    try:
        opened = walk.runner.open(mine, {e: types[e] for e in entries}, [*asked, original])
        fed = []
        for drawn in _drawn({n: known[n] for n in free}, around, Draws(walk.seed, original)):
            case = {n: known[n] for n in entries} | drawn
            results = opened.run(case)
            if not any(map(_overflows, results.values())):
                fed.append(case | results)
        if not fed:
            return False
        replay = Replay(walk.replay.runner, Stream(walk.runner, fed, types), walk.pairs, walk.held, walk.dtype)
        replay.views = dict(walk.replay.views)
        found = replay.hold(value, replay.run([value], walk.fed)[value], walk.share(value))[1]
    except (Failed, ValueError, IndexError, KeyError):  # they do not take such numbers, or a view does not
        return False
    return any(d.note or d.relative > (_SHARE if d.discrete else _GROSS) for d in found)


def _drawn(known: Mapping[str, Any], around: Sequence[float], rng: Draws) -> Iterator[dict[str, Any]]:
    """Larger numbers than there are, and those around the bounds. What is never negative stays
    so."""
    with np.errstate(all="ignore"):
        for factor in _FACTORS:
            yield {n: np.asarray(v * v.dtype.type(factor)) for n, v in known.items()}
    single = all(v.size == 1 for v in known.values())
    for numbers_here in ([n] for n in around) if single else (around, around[::-1]):
        drawn = {}
        for name, value in known.items():
            fitting = [n for n in numbers_here if (n >= 0 or value.min() < 0) and abs(n) < np.finfo(value.dtype).max]
            drawn[name] = covering(fitting, value.shape, rng).astype(value.dtype) if fitting else value
        yield drawn


def _overflows(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and not np.isfinite(value).all()


def _is_bounded(program: Program, name: str) -> bool:
    """Does an operator make it that has bounds, or is it moved on from there?"""
    while name in program.maker:
        node = program.nodes[program.maker[name]]
        if node.op_type not in _MOVES:
            return node.op_type in _BOUNDED
        name = node.input[0]
    return False
