"""Coverage gaps: values that agree in every case but would not have to, and the results of probes.

A gap is a value of B computed differently from A, of a kind that hides a difference: a decision constant in all cases,
a value computed from a constant decision, a step, a narrower integer, or a bound never reached.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from onnxopt.verification.compare import is_dull
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
from onnxopt.verification.coverage.probe import (
    ALL_FACTORS,
    POSITIVE_FACTORS,
    WIDE_FACTORS,
    Beyond,
    Verdict,
    changing_values,
    differs,
    elsewhere,
    equals,
    explains,
    filled,
    grossly,
    near,
    probe,
)
from onnxopt.verification.inputs.windows import are_few, least_rows
from onnxopt.verification.model.operators import DROPPING, SINKS, having
from onnxopt.verification.pieces.noise import is_discrete
from onnxopt.verification.pieces.pairs import Sameness
from onnxopt.verification.pieces.walk import Walk
from onnxopt.verification.programs.program import Program
from onnxopt.verification.rounding import Difference, Draws

_MAX_VALUES: Final = 32  # probed, of each kind
_MAX_STEPS: Final = 16  # likewise, for kinds with more samples
_NOISE_BATCH: Final = 16  # values with noise measured together
_NEAR_SAMPLES: Final = 16  # samples close to the numbers of a case
_FAR_SAMPLES: Final = 128  # permutations of the numbers of a case: each may be a row with some channel positive
_ODD: Final = 8  # booleans different from the majority
# Types of decisions; quantizers have further types.
_DECISIONS: Final = ("tensor(bool)", "tensor(int32)", "tensor(int64)")
_INTEGER_DECISIONS: Final = _DECISIONS[1:]
_PICKING: Final = having("ranks")
_DEPTH: Final = 4  # consecutive cutpoints through which a difference is followed
_FOLLOWED: Final = 12  # cutpoints in total
# Operators on arbitrary integers that make no sizes or indices.
_ARITHMETIC: Final = (
    having("whole", "affine", "joined", "bends", "forgets") - having("measures", "ranks", "open") - {"Div"}
) | {"Constant"}


@dataclass(frozen=True)
class Gap:
    """A coverage gap."""

    value: str  # of B
    part: str  # kind, in words
    how: str  # the probe that shows a difference, in words
    differs: bool
    stays: bool = False  # no further case closes the gap


def gaps(walk: Walk, sameness: Sameness) -> Iterator[Gap]:
    """Yield the gaps by kind. The first values of each kind are probed."""
    for find, part, how in _KINDS:
        for value, found in find(walk, sameness).items():
            stays = find is _behind_steps and found and not _could_tell(walk, value)
            yield Gap(value, f"`{value}` {part}", how, found, stays)


def _cuts(walk: Walk) -> Iterator[str]:
    """Yield the agreeing values of B with a counterpart, in order."""
    return (v for v in walk.b.maker if v in walk.cuts and v in walk.pairs.of)


def _cones(walk: Walk, value: str) -> tuple[list[int], list[int]]:
    """Return the nodes of A and of B between cutpoints and a value."""
    return walk.a.cone([walk.pairs.of[value]], walk.fed_of_a), walk.b.cone([value], walk.fed)


def _known(walk: Walk, value: str) -> list[Any]:
    """Return A's tensors of a value still in memory, by case."""
    return [v for known in walk.original.values if isinstance(v := known.get(walk.pairs.of[value]), np.ndarray)]


# -- blank values ---------------------------------------------------------------------------------------


def changed_blanks(walk: Walk) -> list[str]:
    """Return the cutpoints zero, NaN or empty in all cases, and computed differently in B."""
    return [v for v in walk.blank if not walk.sameness.is_made_alike(v) and not _is_of_no_turn(walk, v)]


def unproven_blanks(walk: Walk, changed: Sequence[str] | None = None) -> list[str]:
    """Return the changed blank values without a probe that agrees on drawn numbers."""
    return [v for v in (changed_blanks(walk) if changed is None else changed) if not _is_proven(walk, v)]


def _is_of_no_turn(walk: Walk, value: str) -> bool:
    """Return whether a value is stacked by a zero-trip Loop, whose body is compared separately."""
    mine, theirs = walk.a.nodes[walk.a.maker[walk.pairs.of[value]]], walk.b.nodes[walk.b.maker[value]]
    return mine.op_type == theirs.op_type == "Loop" and not runs(walk, mine, "body")


def _is_proven(walk: Walk, value: str) -> bool:
    """Return whether a probe agrees. Larger numbers are used only if smaller numbers are cut off."""
    cone, found = Cone.of(walk, value), Verdict.SILENT
    for factor in (1.0, 64.0, 4096.0):
        if cone is not None and found is Verdict.SILENT:
            found = probe(cone, partial(_filled, factor=factor))
    return found is Verdict.AGREES


def _filled(cone: Cone, known: Any, factor: float) -> Iterator[Any]:
    rng = Draws(cone.walk.seed, cone.original)
    return (filled(known, rng, factor, positive=positive) for positive in (False, True))


# -- decisions ------------------------------------------------------------------------------------------


def undecided(walk: Walk, sameness: Sameness) -> dict[str, bool]:
    """Return {nearly constant decision: whether it differs on distant numbers or equal integers}."""
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
        beyond = Beyond(between(points, points), ALL_FACTORS, flips=True)
        asked[value] = differs(cone, beyond, grossly) or _differs_where_equal(cone, points)
    return asked | dict.fromkeys(little, False)


def _differs_where_equal(cone: Cone | None, points: Sequence[float]) -> bool:
    if cone is None or any(n.op_type not in _ARITHMETIC for n in cone.operators):
        return False
    walk = cone.walk
    asked = walk.a.entries(walk.a.cone(cone.asked, cone.fed_of_a), cone.fed_of_a)  # operands of B computed from these
    return differs(cone, partial(equals, free=cone.both.union(asked) & _free(walk), points=points))


def _free(walk: Walk) -> set[str]:
    """Return the values that depend on more than sizes and a loop's iteration number, which equal nothing else."""
    found = set(walk.a.given)
    if walk.enclosing is not None and walk.enclosing.nodes[0].op_type == "Loop" and walk.a.graph.input:
        found.discard(walk.a.graph.input[0].name)
    return changing_values(walk.a, found)


def _says_little(walk: Walk, value: str) -> bool:
    """Return whether booleans are nearly all equal in all cases, or integers all equal."""
    kind = walk.replay.kind(value)
    known = [v for v in _known(walk, value) if v.size] if kind in _DECISIONS else []
    if not known:
        return False
    every = np.concatenate([v.reshape(-1) for v in known])
    others, most = int(np.count_nonzero(every != every[0])), _ODD if kind == "tensor(bool)" else 0
    return min(others, every.size - others) <= most


# -- breakpoints ----------------------------------------------------------------------------------------


def _of_other_points(walk: Walk, values: Iterable[str], *, epsilons: bool = False) -> Iterator[tuple[str, list[float]]]:
    """Yield (value, numbers around breakpoints in the cone of only one of A and B)."""
    a, b = Breakpoints(walk.a, epsilons=epsilons), Breakpoints(walk.b, epsilons=epsilons)
    for value in values:
        mine, theirs = _cones(walk, value)
        x, y = a.of(mine), b.of(theirs)
        if (others := only_in_one(x, y)) and not walk.sameness.is_made_alike(value):
            yield value, between(others, sorted({0.0, *x, *y}))


def _picked(walk: Walk, sameness: Sameness) -> dict[str, bool]:
    """Return {index with different breakpoints upstream: whether it differs with all numbers on the same side}.

    Example: only one model applies Relu before ArgMax.
    """
    values = [v for v in _cuts(walk) if walk.replay.kind(v) in _INTEGER_DECISIONS and _picks(walk, v)]
    found = itertools.islice(_of_other_points(walk, values), _MAX_VALUES) if values else ()
    return {v: differs(Cone.of(walk, v), Beyond(points), grossly) for v, points in found}


def _picks(walk: Walk, value: str) -> bool:
    """Return whether ArgMax, ArgMin or TopK makes a value in both."""
    pieces = (walk.a, walk.pairs.of[value], walk.fed_of_a), (walk.b, value, walk.fed)
    return all(any(p.nodes[i].op_type in _PICKING for i in p.cone([v], fed, MAX_NODES)) for p, v, fed in pieces)


def have_other_points(a: Program, b: Program) -> bool:
    """Return whether a program has breakpoints absent in the second."""
    return bool(only_in_one(*(Breakpoints(p, epsilons=True).all() for p in (a, b))))


def unreached(walk: Walk) -> list[str]:
    """Return the cutpoints with different breakpoints that differ beyond them, together with downstream values."""
    found = itertools.islice(_of_other_points(walk, _cuts(walk), epsilons=True), _MAX_VALUES)
    return [
        v for v, points in found if _reaches_output(walk, v, Beyond(points, POSITIVE_FACTORS), iter(range(_FOLLOWED)))
    ]


def _reaches_output(
    walk: Walk,
    value: str,
    beyond: Beyond,
    budget: Iterator[int],
    behind: frozenset[str] = frozenset(),
    depth: int = _DEPTH,
) -> bool:
    """Return whether a value differs, and values downstream as well.

    A bound moved on purpose (a quantizer before operators that move numbers) is compensated by its readers. behind:
    values upstream that differ.
    """
    if next(budget, None) is None or not differs(Cone.of(walk, value, behind), beyond, grossly):
        return False
    if not depth or value in {walk.pairs.by_original.get(o, o) for o in walk.a.outputs}:
        return True
    cuts = walk.cuts.intersection(walk.pairs.of) - behind
    following = made_of(walk.b, [value], cuts)[1]
    return any(_reaches_output(walk, v, beyond, budget, behind | {value}, depth - 1) for v in following)


# -- narrower integers ----------------------------------------------------------------------------------


def _narrowed(walk: Walk, sameness: Sameness) -> dict[str, bool]:
    """Return {value computed through narrower integers than in A: whether it differs on numbers too large for them}."""
    found = itertools.islice(_by_narrower(walk, sameness), _MAX_STEPS) if integer_ends(walk.b.nodes) else ()
    far = WIDE_FACTORS
    return {v: differs(Cone.of(walk, v), Beyond(between(ends, ends), far), grossly) for v, ends in found}


def _by_narrower(walk: Walk, sameness: Sameness) -> Iterator[tuple[str, list[float]]]:
    """Yield (value, bounds of the narrower integers)."""
    for value in _cuts(walk):
        mine, theirs = _cones(walk, value)
        ends = integer_ends(walk.b.nodes[i] for i in theirs)
        if not ends or sameness.is_made_alike(value):
            continue
        # Numbers too large for A's own narrow integers have no right result.
        has_such = integer_ends(walk.a.nodes[i] for i in mine)
        if not (has_such or _makes_sizes(walk.a, mine) or _makes_sizes(walk.b, theirs)):
            yield value, ends


def _makes_sizes(program: Program, nodes: Iterable[int]) -> bool:
    """Return whether sizes or indices are computed, which would be too large."""
    return any(
        not program.is_constant(name)
        for node in (program.nodes[i] for i in nodes)
        for k, name in enumerate(node.input)
        if name and k in SINKS.get(node.op_type, ())
    )


# -- steps and dropped numbers --------------------------------------------------------------------------


def _behind_steps(walk: Walk, sameness: Sameness) -> dict[str, bool]:
    """Return {agreeing value behind a step, with a differing operand: whether it differs close to a case's numbers}.

    A scale may have been moved through the step on purpose, or no number was close enough to a breakpoint.
    """
    found = itertools.islice(_made_of_moved(walk, sameness), _MAX_STEPS)
    return {v: differs(Cone.of(walk, v), _like(walk, v)) for v in found}


def _like(walk: Walk, value: str) -> Any:
    if _is_step(walk, value):
        return partial(near, most=_NEAR_SAMPLES)
    return partial(elsewhere, most=_FAR_SAMPLES)  # negative numbers are too far from zero


def _could_tell(walk: Walk, value: str) -> bool:
    """Return whether a value reflects its operands unless saturated."""
    return not (is_discrete(walk.replay.kind(value)) or walk.replay.are_steps(value))


def _made_of_moved(walk: Walk, sameness: Sameness) -> Iterator[str]:
    """Yield the steps with a shared value upstream that differs by more than rounding."""
    known: dict[str, bool] = {}
    between_ = _steps(walk, sameness)
    while some := list(itertools.islice(between_, _NOISE_BATCH)):
        open_ = list(dict.fromkeys(v for _, values in some for v in values if v not in known))
        _measure(walk, [v for v in open_ if not walk.agrees_between(v)], known)
        for v in open_:
            if v not in known and _adds_nothing(walk, v, known):
                known[v] = True
        _measure(walk, [v for v in open_ if v not in known], known)
        yield from (output for output, values in some if not all(known[v] for v in values))


def _measure(walk: Walk, values: Sequence[str], known: dict[str, bool]) -> None:
    """Add to `known` whether rounding explains the differences of values from cutpoints."""
    noise = walk.noise(values) if values else {}
    known.update((v, _is_rounded(walk, v, noise.get(v, []))) for v in values)


def _adds_nothing(walk: Walk, value: str, known: Container[str]) -> bool:
    """Return whether a value differs only by differences of values in `known`, read by its smallest piece."""
    return walk.agrees_between(value) and all(e in walk.cuts or e in known for e in walk.first[value].entries)


def _steps(walk: Walk, sameness: Sameness) -> Iterator[tuple[str, list[str]]]:
    """Yield (step, differing values between the step and preceding cutpoints)."""
    of, behind = walk.pairs.of, set[str]()
    for node, reads in zip(walk.b.nodes, walk.b.reads):
        is_behind = not behind.isdisjoint(reads)
        for output in filter(None, node.output):
            if output not in walk.cuts:
                behind.update([output] if is_behind or output in walk.latest else ())
            elif is_behind and output in of and _hides(walk, output) and not sameness.is_made_alike(output):
                yield output, _differing(walk, output)


def _differing(walk: Walk, value: str) -> list[str]:
    """Return the differing values in the cone of a cutpoint."""
    inside = walk.b.made(walk.b.cone([value], walk.fed))
    return [v for v in inside if v in walk.latest and v not in walk.cuts]


def _hides(walk: Walk, value: str) -> bool:
    """Return whether a value may be equal despite different operands."""
    return _is_step(walk, value) or _drops(walk, value)


def _drops(walk: Walk, value: str) -> bool:
    """Return whether an operator in the cone ignores some numbers: negative, or not the largest.

    In many rows, hardly any channel is ignored in all.
    """
    if not are_few(least_rows(v.shape) for v in _known(walk, value)):
        return False
    return any(p.nodes[i].op_type in DROPPING for p, nodes in zip((walk.a, walk.b), _cones(walk, value)) for i in nodes)


def _is_step(walk: Walk, value: str) -> bool:
    if not walk.replay.kind(value).startswith("tensor("):
        return False
    known = _known(walk, value)
    return not _could_tell(walk, value) or (len(known) == len(walk.original.values) and all(map(is_dull, known)))


def _is_rounded(walk: Walk, value: str, noise: Sequence[Difference]) -> bool:
    """Return whether rounding explains a value's difference from cutpoints."""
    differences = walk.latest[value]
    if any(d.note for d in differences):
        return False
    return explains(walk, walk.replay, value, differences, noise, (walk.fed, walk.fed_of_a))


Find = Callable[["Walk", "Sameness"], dict[str, bool]]
_KINDS: Final[tuple[tuple[Find, str, str], ...]] = (
    (undecided, "is nearly constant in each case", "differs on other numbers"),
    (_picked, "has other bounds", "differs where all operands are on one side of a bound"),
    (_narrowed, "is computed in narrower integers", "differs for numbers beyond their range"),
    (decided_otherwise, "depends on a decision", "differs for a decision that no case makes"),
    (_behind_steps, "is computed from a value that differs", "differs itself on numbers near those of the cases"),
)
