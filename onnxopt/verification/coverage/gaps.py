"""Coverage gaps: values that agree in every case and would not have to, and what a probe of each says.

A gap is a value of B that A makes otherwise, of a kind that hides a difference: a decision that is the same in all
cases, what is made of such, a step, a narrower integer, a bound that nothing reaches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.verification.coverage import samplers
from onnxopt.verification.coverage.conditions import runs
from onnxopt.verification.coverage.cones import (
    MAX_NODES,
    Breakpoints,
    Cone,
    between,
    integer_ends,
    made_of,
    only_in_one,
)
from onnxopt.verification.coverage.decisions import decided_otherwise
from onnxopt.verification.coverage.probe import Verdict, differs, explains, grossly, probe
from onnxopt.verification.coverage.samplers import Beyond, changing_values
from onnxopt.verification.inputs.muted import are_few, least_rows
from onnxopt.verification.model.operators import DROPPING, SINKS
from onnxopt.verification.numbers.compare import is_dull
from onnxopt.verification.numbers.draws import Draws
from onnxopt.verification.pieces.noise import is_discrete

if TYPE_CHECKING:
    from onnxopt.verification.numbers.rounding import Difference
    from onnxopt.verification.pieces.sameness import Sameness
    from onnxopt.verification.pieces.walk import Walk
    from onnxopt.verification.programs.program import Program

_MAX_VALUES: Final = 32  # of a kind that are probed
_MAX_STEPS: Final = 16  # the same of what takes more samples
_AT_ONCE: Final = 16  # values of which the noise is measured together
_NEAR: Final = 16  # samples that are like the numbers of a case,
_ELSEWHERE: Final = 128  # or the same in other places: each may be a row of which a channel is above zero
_ODD: Final = 8  # booleans that are not as all others
_DECISIONS: Final = ("tensor(bool)", "tensor(int32)", "tensor(int64)")  # those of quantizers are none
_INTEGERS: Final = _DECISIONS[1:]
_PICKING: Final = ("ArgMax", "ArgMin", "TopK")
_DEPTH: Final = 4  # cuts behind each other that a difference is followed through,
_FOLLOWED: Final = 12  # and in all
# Operators that take any integers, and make none of them a size or an index.
_ARITHMETIC: Final = frozenset((
    "Constant", "Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Add", "Sub", "Mul", "Neg", "Abs", "Min", "Max",
    "Not", "And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Where",
))  # fmt: skip


@dataclass(frozen=True)
class Gap:
    """A value of B. `part` says why it was not seen, `how` what shows it. `stays`: no further case settles it."""

    value: str
    part: str
    how: str
    differs: bool
    stays: bool = False


def gaps(walk: Walk, sameness: Sameness) -> Iterator[Gap]:
    """All kinds, one after the other; of each the first values are probed."""
    for find, part, how in _KINDS:
        for value, found in find(walk, sameness).items():
            stays = find is _behind_steps and found and not _could_tell(walk, value)
            yield Gap(value, f"`{value}` {part}", how, found, stays)


def _cuts(walk: Walk) -> Iterator[str]:
    """The values of B that agree and have a counterpart, in order."""
    return (v for v in walk.b.maker if v in walk.cuts and v in walk.pairs.of)


def _cones(walk: Walk, value: str) -> tuple[list[int], list[int]]:
    """The nodes of A and of B that make a value of what is fed."""
    return walk.a.cone([walk.pairs.of[value]], walk.fed_of_a), walk.b.cone([value], walk.fed)


def _known(walk: Walk, value: str) -> list[Any]:
    """A's values of it, as far as these are kept and tensors."""
    return [v for known in walk.original.values if isinstance(v := known.get(walk.pairs.of[value]), np.ndarray)]


# -- blank values ----------------------------------------------------------------------------------------


def changed_blanks(walk: Walk) -> list[str]:
    """The cuts of B that are zero, NaN or empty in all cases and are made otherwise than A makes them."""
    return [v for v in walk.blank if not walk.sameness.is_made_alike(v) and not _is_of_no_turn(walk, v)]


def unproven_blanks(walk: Walk, changed: Sequence[str] | None = None) -> list[str]:
    """Of these, the values of which no probe on numbers drawn in place of what says nothing shows that they agree."""
    return [v for v in (changed_blanks(walk) if changed is None else changed) if not _is_proven(walk, v)]


def _is_of_no_turn(walk: Walk, value: str) -> bool:
    """Is it what a Loop gathers that makes no turn? Its body is compared by itself, and said to be unseen else."""
    mine, theirs = walk.a.nodes[walk.a.maker[walk.pairs.of[value]]], walk.b.nodes[walk.b.maker[value]]
    return mine.op_type == theirs.op_type == "Loop" and not runs(walk, mine, "body")


def _is_proven(walk: Walk, value: str) -> bool:
    """Larger numbers are drawn only where smaller ones are cut off."""
    cone, found = Cone.of(walk, value), Verdict.SILENT
    for factor in (1.0, 64.0, 4096.0):
        if cone is not None and found is Verdict.SILENT:
            found = probe(cone, partial(_filled, factor=factor))
    return found is Verdict.AGREES


def _filled(cone: Cone, known: Any, factor: float) -> Iterator[Any]:
    rng = Draws(cone.walk.seed, cone.original)
    return (samplers.filled(known, rng, factor, positive=positive) for positive in (False, True))


# -- decisions -------------------------------------------------------------------------------------------


def undecided(walk: Walk, sameness: Sameness) -> dict[str, bool]:
    """Decisions that are nearly the same in all cases: on numbers far from these, and integers equal to each other."""
    settled = walk.cuts.union(walk.pending)
    little = (v for v in walk.b.maker if v in settled and v in walk.pairs.of and _says_little(walk, v))
    found = list(itertools.islice((v for v in little if not sameness.is_made_alike(v)), _MAX_VALUES))
    if not found:
        return {}
    a, b = Breakpoints(walk.a), Breakpoints(walk.b)
    asked: dict[str, bool] = {}
    for value in found:
        mine, theirs = _cones(walk, value)
        points = sorted({*a.of(mine), *b.of(theirs)})
        cone = Cone.of(walk, value)
        beyond = Beyond(between(points, points), samplers.ALL_FACTORS, flips=True)
        asked[value] = differs(cone, beyond, grossly) or _differs_where_equal(cone, points)
    return asked | dict.fromkeys(little, False)


def _differs_where_equal(cone: Cone | None, points: Sequence[float]) -> bool:
    if cone is None or any(n.op_type not in _ARITHMETIC for n in cone.operators):
        return False
    walk = cone.walk
    asked = walk.a.entries(walk.a.cone(cone.asked, cone.fed_of_a), cone.fed_of_a)  # what B reads is made of these
    return differs(cone, partial(samplers.equals, free=cone.both.union(asked) & _free(walk), points=points))


def _free(walk: Walk) -> set[str]:
    """Depends on more than sizes, and which turn of a loop it is: those may not be equal to anything else."""
    found = set(walk.a.given)
    if walk.enclosing is not None and walk.enclosing.nodes[0].op_type == "Loop" and walk.a.graph.input:
        found.discard(walk.a.graph.input[0].name)
    return changing_values(walk.a, found)


def _says_little(walk: Walk, value: str) -> bool:
    """Are these booleans, of which at most a few are not as the others, in all cases; or integers that are all one?"""
    kind = walk.replay.kind(value)
    known = [v for v in _known(walk, value) if v.size] if kind in _DECISIONS else []
    if not known:
        return False
    every = np.concatenate([v.reshape(-1) for v in known])
    others, most = int(np.count_nonzero(every != every[0])), _ODD if kind == "tensor(bool)" else 0
    return min(others, every.size - others) <= most


# -- breakpoints -----------------------------------------------------------------------------------------


def _of_other_points(walk: Walk, values: Iterable[str], *, epsilons: bool = False) -> Iterator[tuple[str, list[float]]]:
    """(value, numbers around breakpoints that only one of A and B has in its cone)."""
    a, b = Breakpoints(walk.a, epsilons=epsilons), Breakpoints(walk.b, epsilons=epsilons)
    for value in values:
        mine, theirs = _cones(walk, value)
        x, y = a.of(mine), b.of(theirs)
        if (others := only_in_one(x, y)) and not walk.sameness.is_made_alike(value):
            yield value, between(others, sorted({0.0, *x, *y}))


def _picked(walk: Walk, sameness: Sameness) -> dict[str, bool]:
    """Indices that other breakpoints make, as where only one of both drops what is below zero before it takes the
    largest: where all is on one side of these."""
    values = [v for v in _cuts(walk) if walk.replay.kind(v) in _INTEGERS and _picks(walk, v)]
    found = itertools.islice(_of_other_points(walk, values), _MAX_VALUES) if values else ()
    return {v: differs(Cone.of(walk, v), Beyond(points), grossly) for v, points in found}


def _picks(walk: Walk, value: str) -> bool:
    """Is it made in both by what takes the first of the largest or smallest?"""
    pieces = (walk.a, walk.pairs.of[value], walk.fed_of_a), (walk.b, value, walk.fed)
    return all(any(p.nodes[i].op_type in _PICKING for i in p.cone([v], fed, MAX_NODES)) for p, v, fed in pieces)


def have_other_points(a: Program, b: Program) -> bool:
    """Are there breakpoints in one program that are none in the other?"""
    return bool(only_in_one(*(Breakpoints(p, epsilons=True).all() for p in (a, b))))


def unreached(walk: Walk) -> list[str]:
    """The cuts of B that other breakpoints make than A's, and that differ beyond them, as does what is made of them."""
    found = itertools.islice(_of_other_points(walk, _cuts(walk), epsilons=True), _MAX_VALUES)
    return [
        v
        for v, points in found
        if _reaches_output(walk, v, Beyond(points, samplers.POSITIVE_FACTORS), iter(range(_FOLLOWED)))
    ]


def _reaches_output(
    walk: Walk,
    value: str,
    beyond: Beyond,
    budget: Iterator[int],
    behind: frozenset[str] = frozenset(),
    depth: int = _DEPTH,
) -> bool:
    """Does this value differ, and with it what is made of it? A bound that was moved on purpose (a quantizer, before
    what only moves numbers) is made up for by what reads the value. `behind`: values that differ before it."""
    if next(budget, None) is None or not differs(Cone.of(walk, value, behind), beyond, grossly):
        return False
    if not depth or value in {walk.pairs.by_original.get(o, o) for o in walk.a.outputs}:
        return True
    cuts = walk.cuts.intersection(walk.pairs.of) - behind
    following = made_of(walk.b, [value], cuts)[1]
    return any(_reaches_output(walk, v, beyond, budget, behind | {value}, depth - 1) for v in following)


# -- narrower integers -----------------------------------------------------------------------------------


def _narrowed(walk: Walk, sameness: Sameness) -> dict[str, bool]:
    """Values that are made by way of narrower integers than A has there: on numbers too large for these."""
    found = itertools.islice(_by_narrower(walk, sameness), _MAX_STEPS) if integer_ends(walk.b.nodes) else ()
    far = samplers.WIDE_FACTORS
    return {v: differs(Cone.of(walk, v), Beyond(between(ends, ends), far), grossly) for v, ends in found}


def _by_narrower(walk: Walk, sameness: Sameness) -> Iterator[tuple[str, list[float]]]:
    """(value, the ends of these integers)."""
    for value in _cuts(walk):
        mine, theirs = _cones(walk, value)
        ends = integer_ends(walk.b.nodes[i] for i in theirs)
        if not ends or sameness.is_made_alike(value):
            continue
        has_such = integer_ends(walk.a.nodes[i] for i in mine)  # what is too large for these A has no right result of
        if not (has_such or _makes_sizes(walk.a, mine) or _makes_sizes(walk.b, theirs)):
            yield value, ends


def _makes_sizes(program: Program, nodes: Iterable[int]) -> bool:
    """Is anything computed there how much there is of something else? Of that there would be too much."""
    return any(
        not program.is_constant(name)
        for node in (program.nodes[i] for i in nodes)
        for k, name in enumerate(node.input)
        if name and k in SINKS.get(node.op_type, ())
    )


# -- steps, and what drops some of what it reads ---------------------------------------------------------


def _behind_steps(walk: Walk, sameness: Sameness) -> dict[str, bool]:
    """Values that agree and are made of what does not, by way of a step: on numbers like those of a case. A scale may
    have been moved through that on purpose; or no number was near enough to an edge to show that it is wrong."""
    found = itertools.islice(_made_of_moved(walk, sameness), _MAX_STEPS)
    return {v: differs(Cone.of(walk, v), _like(walk, v)) for v in found}


def _like(walk: Walk, value: str) -> Any:
    if _is_step(walk, value):
        return partial(samplers.near, most=_NEAR)
    return partial(samplers.elsewhere, most=_ELSEWHERE)  # what is below zero is too far from it


def _could_tell(walk: Walk, value: str) -> bool:
    """Would it say something of what it is made of where it does not saturate?"""
    return not (is_discrete(walk.replay.kind(value)) or walk.replay.are_steps(value))


def _made_of_moved(walk: Walk, sameness: Sameness) -> Iterator[str]:
    """The steps among B's cuts between which and those before them stands a value that both have, and that differs by
    more than roundings."""
    known: dict[str, bool] = {}
    between_ = _steps(walk, sameness)
    while some := list(itertools.islice(between_, _AT_ONCE)):
        open_ = dict.fromkeys(v for _, values in some for v in values if v not in known)
        noise = walk.noise(list(open_))
        known.update((v, _is_rounded(walk, v, noise.get(v, []))) for v in open_)
        yield from (output for output, values in some if not all(known[v] for v in values))


def _steps(walk: Walk, sameness: Sameness) -> Iterator[tuple[str, list[str]]]:
    """The steps among B's cuts, and what differs between them and the cuts before."""
    of, behind = walk.pairs.of, set[str]()
    for node, reads in zip(walk.b.nodes, walk.b.reads):
        is_behind = not behind.isdisjoint(reads)
        for output in filter(None, node.output):
            if output not in walk.cuts:
                behind.update([output] if is_behind or output in walk.latest else ())
            elif is_behind and output in of and _hides(walk, output) and not sameness.is_made_alike(output):
                yield output, _differing(walk, output)


def _differing(walk: Walk, value: str) -> list[str]:
    """What differs in the cone of a cut of B."""
    inside = walk.b.made(walk.b.cone([value], walk.fed))
    return [v for v in inside if v in walk.latest and v not in walk.cuts]


def _hides(walk: Walk, value: str) -> bool:
    """May it be the same, whatever it is made of?"""
    return _is_step(walk, value) or _drops(walk, value)


def _drops(walk: Walk, value: str) -> bool:
    """Is something in its cone the same whatever some of the numbers are: those below zero, or not the largest? Of
    many rows hardly any channel is that in all."""
    if not are_few(least_rows(v.shape) for v in _known(walk, value)):
        return False
    return any(p.nodes[i].op_type in DROPPING for p, nodes in zip((walk.a, walk.b), _cones(walk, value)) for i in nodes)


def _is_step(walk: Walk, value: str) -> bool:
    if not walk.replay.kind(value).startswith("tensor("):
        return False
    known = _known(walk, value)
    return not _could_tell(walk, value) or (len(known) == len(walk.original.values) and all(map(is_dull, known)))


def _is_rounded(walk: Walk, value: str, noise: Sequence[Difference]) -> bool:
    """Is what differs of it, from cuts alone, no more than roundings do?"""
    differences = walk.latest[value]
    if any(d.note for d in differences):
        return False
    return explains(walk, walk.replay, value, differences, noise, (walk.fed, walk.fed_of_a))


Find = Callable[["Walk", "Sameness"], dict[str, bool]]
_KINDS: Final[tuple[tuple[Find, str, str], ...]] = (
    (undecided, "says next to nothing in any case", "differs on numbers that none of them has"),
    (_picked, "is made by other bounds", "differs where all that it picks from is on one side of one"),
    (_narrowed, "is made of narrower integers", "differs where others are too large for these"),
    (decided_otherwise, "is made of a decision", "differs where that is another than in any case"),
    (_behind_steps, "is made of what differs", "differs itself on numbers near those of these cases"),
)
