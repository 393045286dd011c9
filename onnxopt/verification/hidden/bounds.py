"""Bounds that are others in the two models, and that no case reaches: a Clip to 1000 that became one to 2000, a
threshold that decides a branch, an epsilon beside which no variance is small.

What is made by such is run once more, on numbers between these bounds and beyond them. Where that differs nobody is
accused, for such numbers may never come up.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.element_types import element_kind, of
from onnxopt.verification.inputs.edges import edges
from onnxopt.verification.inputs.wide import covering
from onnxopt.verification.model.constants import constants, numbers
from onnxopt.verification.model.order import bodies_of, inside
from onnxopt.verification.numbers.draws import Draws
from onnxopt.verification.numbers.rounding import overflows
from onnxopt.verification.programs.runner import Failed
from onnxopt.verification.programs.stream import Stream

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

    from onnxopt.verification.pieces.walk import Walk
    from onnxopt.verification.programs.program import Program

_NEAR: Final = 1e-3  # of a bound, that was followed through other constants
_FACTORS: Final = (8.0, 64.0, 4096.0)
_LARGEST: Final = 1e30
_SMALL: Final = 1e-3  # what is added and no larger is an epsilon
_NORMALIZATIONS: Final = ("LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization")
_MOST: Final = 32  # values that are looked at,
_NUMBERS: Final = 8  # and numbers of each
_TRIED: Final = 12  # pieces behind each other,
_DEPTH: Final = 4  # and so many of them in a row
_TURNING: Final = 4  # sets of numbers for a piece that takes turns: it may take hundreds, and is asked inside of one
_LONGEST: Final = 200  # nodes of a piece: in a longer one nobody knows what becomes of what is far larger
_GROSS: Final = 1e-2  # of the range: less is what rounding does to numbers that are so large
_SHARE: Final = 0.1  # of the elements of what jumps
# What these make has bounds of its own, beyond which no reader has to be right.
_BOUNDED: Final = frozenset((
    "Sigmoid", "Tanh", "Softmax", "Clip", "HardSigmoid", "Erf", "Sin", "Cos", "DequantizeLinear", "Softsign", "Hardmax",
    "Min", "Max", "LogSoftmax",
))  # fmt: skip
# Ends of integers of 8 and 16 bits, by TensorProto.DataType.
_ENDS: Final = {2: (0.0, 255.0), 3: (-128.0, 127.0), 4: (0.0, 65535.0), 5: (-32768.0, 32767.0)}
_PICKING: Final = ("ArgMax", "ArgMin", "TopK")
_MOVES: Final = frozenset(("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split"))


class Bounds:
    """Those of one program, by node."""

    def __init__(self, program: Program, *, epsilons: bool = False) -> None:
        self._program = program
        self._epsilons = epsilons
        self._held: dict[str, TensorProto] = {}
        every = list(inside(program.nodes))
        self._held.update((t.name, t) for n in every for body in bodies_of(n) for t in body.initializer)
        self._held |= program.constants
        self._held.update(constants(every))

    def of(self, nodes: Iterable[int]) -> list[float]:
        """Of these nodes and their bodies, each once, in order."""
        return sorted({n for i in nodes for n in self._of(inside([self._program.nodes[i]]))})

    def _of(self, nodes: Iterable[NodeProto]) -> Iterator[float]:
        for node in nodes:
            for k in range(len(node.input)):
                yield from (n for n in edges(node, k, self._numbers) if math.isfinite(n))
            if self._epsilons and node.op_type == "Add":
                yield from (n for name in node.input for n in self._numbers(name) if 0 < n <= _SMALL)
            elif self._epsilons and node.op_type in _NORMALIZATIONS:
                yield next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)

    def _numbers(self, name: str) -> list[float]:
        return numbers(self._held[name]) if name in self._held else []


def ends(nodes: Iterable[NodeProto]) -> list[float]:
    """Of the narrow integers that these nodes cast to, each once, in order."""
    types = (next((a.i for a in n.attribute if a.name == "to"), 0) for n in nodes if n.op_type == "Cast")
    return sorted({n for to in types for n in _ENDS.get(to, ())})


def have_others(a: Program, b: Program) -> bool:
    """Are there bounds in one program that are none in the other?"""
    x, y = (Bounds(p, epsilons=True).of(range(len(p.nodes))) for p in (a, b))
    return bool(_only(x, y) or _only(y, x))


def unreached(walk: Walk) -> list[str]:
    """The cuts of B that other bounds make than A's, and that differ beyond them, as does what is made of them."""
    a, b = Bounds(walk.a, epsilons=True), Bounds(walk.b, epsilons=True)
    values = (v for v in walk.b.maker if v in walk.cuts and v in walk.pairs.of)
    otherwise = itertools.islice(_by_others(walk, a, b, values), _MOST)
    return [v for v, others, every in otherwise if Beyond(walk, around(others, every)).shows(v)]


def unlevelled(walk: Walk) -> dict[str, bool]:
    """The cuts of B that are indices which other bounds make than A's, as where only one of them drops what is below
    zero before it takes the largest: do they differ where all is on one side of these?"""
    cuts = (v for v in walk.b.maker if v in walk.cuts and v in walk.pairs.of)
    values = [v for v in cuts if walk.replay.kind(v) in ("tensor(int64)", "tensor(int32)") and _picks(walk, v)]
    if not values:
        return {}
    otherwise = itertools.islice(_by_others(walk, Bounds(walk.a), Bounds(walk.b), values), _MOST)
    return {v: Beyond(walk, around(others, every), ()).differs(v) for v, others, every in otherwise}


def _by_others(
    walk: Walk, a: Bounds, b: Bounds, values: Iterable[str]
) -> Iterator[tuple[str, list[float], list[float]]]:
    """Those of these cuts that other bounds make in B than in A: which, and which there are."""
    for value in values:
        mine = walk.a.cone([walk.pairs.of[value]], walk.fed_of_a)
        x, y = a.of(mine), b.of(walk.b.cone([value], walk.fed))
        if (others := _only(x, y) + _only(y, x)) and not walk.sameness.is_made_alike(value):
            yield value, others, sorted({0.0, *x, *y})


def _picks(walk: Walk, value: str) -> bool:
    """Is it made in both by what takes the first of the largest or smallest?"""
    pieces = (walk.a, walk.pairs.of[value], walk.fed_of_a), (walk.b, value, walk.fed)
    return all(any(p.nodes[i].op_type in _PICKING for i in p.cone([v], fed, _LONGEST)) for p, v, fed in pieces)


def _only(x: Sequence[float], y: Sequence[float]) -> list[float]:
    """What of the first is not near any of the second."""
    near = ((n, y[max(bisect_left(y, n) - 1, 0) : bisect_left(y, n) + 1]) for n in x)
    return [n for n, others in near if not any(abs(n - o) <= _NEAR * abs(n) for o in others)]


def around(others: Iterable[float], every: Sequence[float]) -> list[float]:
    """What is between each of these bounds and the next of all there are, or beyond the last."""
    ends = [1.25 * every[0] - 0.5, *every, 1.25 * every[-1] + 0.5]
    found = {(x + y) / 2 for x, n, y in zip(ends, every, ends[2:]) if n in others for x, y in ((x, n), (n, y))}
    return sorted(n for n in found if abs(n) < _LARGEST)[:_NUMBERS]


class Beyond:
    """What becomes of numbers `around` bounds, and of those of a `case` times each of `factors`; and, if they are to be
    `turned`, of booleans that are the other way round."""

    def __init__(
        self,
        walk: Walk,
        around: Sequence[float],
        factors: Sequence[float] = _FACTORS,
        *,
        case: int = -1,
        turned: bool = False,
    ) -> None:
        self._walk = walk
        self._around, self._factors, self._case, self._turned = around, factors, case, turned
        self._left = _TRIED

    def shows(self, value: str, behind: frozenset[str] = frozenset(), depth: int = _DEPTH) -> bool:
        """Does this value of B differ, and with it what is made of it? A bound that was moved on purpose (a quantizer,
        before what only moves numbers) is made up for by what reads the value. `behind`: values that differ before."""
        if not self._left:
            return False
        self._left -= 1
        if not self.differs(value, behind):
            return False
        is_output = value in {self._walk.pairs.by_original.get(o, o) for o in self._walk.a.outputs}
        if is_output or not depth:
            return True
        return any(self.shows(v, behind | {value}, depth - 1) for v in self._made_of(value, behind))

    def _made_of(self, value: str, behind: Collection[str]) -> list[str]:
        """The next cuts that are made of it."""
        walk, made, found = self._walk, {value}, list[str]()
        for i in range(walk.b.maker[value] + 1, len(walk.b.nodes)):
            if made.isdisjoint(walk.b.reads[i]):
                continue
            for output in walk.b.nodes[i].output:
                if output in walk.cuts and output in walk.pairs.of and output not in behind:
                    found.append(output)
                else:
                    made.add(output)
        return found

    def differs(self, value: str, behind: Collection[str] = ()) -> bool:
        """Does this value of B, where those `behind` it are made by it, too?"""
        walk, of = self._walk, self._walk.pairs.of
        original, without = of[value], {of.get(v, v) for v in behind}
        theirs = walk.fed.difference(behind)
        nodes = walk.a.cone([original], walk.fed_of_a - without, _LONGEST + 1)
        entries = walk.a.entries(nodes, walk.fed_of_a - without)
        read = {of.get(e, e) for e in walk.b.entries(walk.b.cone([value], theirs), theirs)}
        asked, both = read - {*entries}, [e for e in entries if e in read]
        made = {o for i in nodes for o in walk.a.nodes[i].output}
        known = walk.original.values[self._case]
        if len(nodes) > _LONGEST or not asked <= made:
            return False
        if not all(isinstance(known.get(name), np.ndarray) for name in (*entries, *asked)):
            return False
        try:
            fed = list(self._run(nodes, {name: known[name] for name in entries}, [*asked, original], both))
            if not fed:
                return False
            replay = walk.replay.drawn(Stream(walk.runner, fed, walk.original.types), self._case)
            found = replay.hold(value, replay.run([value], theirs)[value], 0.0)[1]
        except (Failed, ValueError, IndexError, KeyError):  # they do not take such numbers, or a view does not
            return False
        return any(d.note or d.relative > (_SHARE if d.discrete else _GROSS) for d in found)

    def _run(
        self, nodes: Sequence[int], known: Mapping[str, Any], wanted: Sequence[str], both: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        """What A's nodes are fed and make, unless that overflows. `both`: of what they read, what B's do, too: a
        boolean that only A's read may follow from another."""
        walk, types = self._walk, self._walk.original.types
        free = {n: v for n, v in known.items() if element_kind(v) == "f" and v.size and not _is_bounded(walk.a, n)}
        every = list(self._drawn(dict(sorted(free.items())), Draws(walk.seed, wanted[-1]))) if free else []
        turned = {n: np.asarray(~v) for n, v in known.items() if element_kind(v) == "b"}
        if self._turned and turned and turned.keys() <= {*both}:
            every.append(turned)
        if not every:
            return
        if any(walk.a.nodes[i].op_type in ("Loop", "Scan") for i in nodes):
            every = every[:: -(-len(every) // _TURNING)]
        opened = walk.runner.open(nodes, {e: types[e] for e in known}, wanted)
        for drawn in every:
            results = opened.run({**known, **drawn})
            if not any(map(overflows, results.values())):
                yield {**known, **drawn, **results}

    def _drawn(self, known: Mapping[str, Any], rng: Draws) -> Iterator[dict[str, Any]]:
        """Other multiples of the numbers there are, and those around the bounds, of which a single one is each in turn,
        or all on one side of them. What is never negative stays so."""
        with np.errstate(all="ignore"):
            for factor in self._factors:
                drawn = {n: v * v.dtype.type(abs(factor) if v.min() >= 0 else factor) for n, v in known.items()}
                yield {n: np.asarray(v) for n, v in drawn.items()}
            yield from self._on_one_side(known)
        for one in (n for n in self._around if 0 < n < _SMALL):  # beside others nothing would be seen of it
            yield {name: np.full_like(v, one) for name, v in known.items()}
            yield {name: np.asarray(v * v.dtype.type(math.sqrt(one))) for name, v in known.items()}  # a variance is
        for one in self._around:
            drawn = {}
            for name, value in known.items():
                fitting = [
                    n
                    for n in ((one,) if value.size == 1 else self._around)
                    if (n >= 0 or value.min() < 0) and abs(n) < of(value.dtype).high
                ]
                drawn[name] = covering(fitting, value.shape, rng).astype(value.dtype) if fitting else value
            yield drawn

    def _on_one_side(self, known: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """All above the bounds, and all below: the largest of a row, most of which are beyond one, is not."""
        for bound, sign in ((self._around[-1], 1), (self._around[0], -1)) if self._around else ():
            drawn = {n: np.asarray(bound + sign * np.abs(v), v.dtype) for n, v in known.items()}
            yield {n: v if v.min() >= 0 or known[n].min() < 0 else known[n] for n, v in drawn.items()}


def _is_bounded(program: Program, name: str) -> bool:
    """Does an operator make it that has bounds, or is it moved on from there?"""
    while name in program.maker:
        node = program.nodes[program.maker[name]]
        if node.op_type not in _MOVES:
            return node.op_type in _BOUNDED
        name = node.input[0]
    return False
