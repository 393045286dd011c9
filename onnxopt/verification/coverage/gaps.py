"""Coverage gaps: values that agree in every case but would not have to, and the results of probes.

A gap is a value of B computed differently from A, of a kind that hides a difference: a decision constant in all cases,
a value computed from a constant decision, a step, a narrower integer, or a bound never reached.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import ne
from typing import Final

import numpy as np

from onnxopt.verification.compare import is_dull
from onnxopt.verification.coverage.conditions import running
from onnxopt.verification.coverage.cones import Breakpoints, Cone, between, integer_ends, made_of, only_in_one, tensors
from onnxopt.verification.coverage.decisions import decided_otherwise
from onnxopt.verification.coverage.probe import (
    ALL_FACTORS,
    POSITIVE_FACTORS,
    WIDE_FACTORS,
    beyond,
    by_noise,
    changing_values,
    differs,
    elsewhere,
    equals,
    filled,
    grossly,
    near,
    probe,
    special,
)
from onnxopt.verification.inputs.windows import are_few, least_rows
from onnxopt.verification.model.operators import DROPPING, RARE, SINKS, having
from onnxopt.verification.pieces.noise import is_discrete
from onnxopt.verification.pieces.outcome import Fault
from onnxopt.verification.pieces.paths import paths
from onnxopt.verification.pieces.walk import Walk
from onnxopt.verification.programs.program import Program
from onnxopt.verification.records import AND

_MAX_VALUES: Final = 32  # probed, of each kind
_MAX_STEPS: Final = 16  # likewise, for kinds with more samples
_NOISE_BATCH: Final = 16  # values with noise measured together
_NEAR_SAMPLES: Final = 16  # samples close to the numbers of a case
_FAR_SAMPLES: Final = 128  # permutations of the numbers of a case: each may be a row with some channel positive
_ODD: Final = 8  # booleans different from the majority
_differs_specially: Final = partial(differs, sampler=special, tolerance=grossly)
# Types of decisions; quantizers have further types.
_DECISIONS: Final = ("tensor(bool)", "tensor(int32)", "tensor(int64)")
_INTEGER_DECISIONS: Final = _DECISIONS[1:]
_PICKING: Final = having("ranks")
# Operators on arbitrary integers that make no sizes or indices.
_ARITHMETIC: Final = (
    having("whole", "affine", "joined", "bends", "forgets") - having("measures", "ranks", "open") - {"Div"}
) | {"Constant"}


@dataclass(eq=False, repr=False)
class Gap:
    """A coverage gap, or a fault in a part that no case ran."""

    why: str  # description of the gap, or ""
    scope: str = ""  # path of the body
    walk: Walk | None = None  # comparison of the body
    faults: list[Fault] = field(default_factory=list)  # in `walk`
    silent: bool = False  # agrees on drawn numbers
    stays: bool = False  # differs on drawn numbers, and no case can close the gap


def gaps(walk: Walk) -> Iterator[Gap]:
    """Yield the values that agree without proof, by kind. The first values of each kind are probed."""
    for find, part, how in _KINDS:
        for value, found in find(walk).items():
            stays = find is _behind_steps and found and not _could_tell(walk, value)
            yield Gap(f"`{value}` {part}{f'{AND}{how}' if found else ''}", silent=not found, stays=stays)


def paired_cuts(walk: Walk) -> Iterator[str]:
    """Yield the agreeing values of B with a counterpart, in order."""
    return (v for v in walk.b.maker if v in walk.cuts and v in walk.pairs.of)


def _nodes(walk: Walk, value: str) -> tuple[list[int], list[int]]:
    """Return the nodes of A and of B between cutpoints and a value."""
    return walk.a.cone([walk.pairs.of[value]], walk.fed_of_a), walk.b.cone([value], walk.fed)


def _operators(walk: Walk, value: str) -> tuple[set[str], set[str]]:
    """Return the operators of the same nodes."""
    mine, theirs = _nodes(walk, value)
    return walk.a.kinds(mine), walk.b.kinds(theirs)


# -- blank values ---------------------------------------------------------------------------------------


def changed_blanks(walk: Walk) -> list[str]:
    """Return the cutpoints zero, NaN or empty in all cases, and computed differently in B."""
    return [v for v in walk.sameness.made_differently(walk.blank) if not _is_of_no_turn(walk, v)]


def unproven_blanks(walk: Walk, changed: Sequence[str] | None = None) -> list[str]:
    """Return the changed blank values without a probe that agrees on drawn numbers."""
    return [v for v in (changed_blanks(walk) if changed is None else changed) if not _is_proven(walk, v)]


def _is_of_no_turn(walk: Walk, value: str) -> bool:
    """Return whether a value is stacked by a zero-trip Loop, whose body is compared separately."""
    mine, theirs = walk.a.nodes[walk.a.maker[walk.pairs.of[value]]], walk.b.nodes[walk.b.maker[value]]
    return mine.op_type == theirs.op_type == "Loop" and not running(walk, mine, "body")


def _is_proven(walk: Walk, value: str) -> bool:
    """Return whether a probe agrees. Larger numbers are used only if smaller numbers are cut off."""
    cone = Cone.of(walk, value)
    found = (probe(cone, partial(filled, factor=factor)) for factor in (1.0, 64.0, 4096.0) if cone is not None)
    return next((agrees for agrees in found if agrees is not None), False)


# -- decisions ------------------------------------------------------------------------------------------


def undecided(walk: Walk) -> dict[str, bool]:
    """Return {nearly constant decision: whether it differs on distant numbers or equal integers}."""
    little = _nearly_constant(walk)
    found = list(itertools.islice(walk.sameness.made_differently(little), _MAX_VALUES))
    if not found:
        return {}
    a, b = Breakpoints(walk.a), Breakpoints(walk.b)
    asked: dict[str, bool] = {}
    for value in found:
        mine, theirs = _nodes(walk, value)
        points = sorted({*a.of(mine), *b.of(theirs)})
        numbers = [*between(points, points), *(points if _is_exact(walk, value) else ())]
        cone = Cone.of(walk, value)
        differs_far = _differs_far(cone, numbers, ALL_FACTORS, flip=True)
        asked[value] = differs_far or _differs_specially(cone) or _differs_where_equal(cone, points)
    return asked | dict.fromkeys(little, False)


def _nearly_constant(walk: Walk) -> Iterator[str]:
    """Yield the values of B with a counterpart that are nearly constant decisions."""
    settled = walk.cuts.union(walk.pending)
    return (v for v in walk.b.maker if v in settled and v in walk.pairs.of and _says_little(walk, v))


def _differs_far(
    cone: Cone | None, points: Sequence[float], factors: Sequence[float] = (), *, flip: bool = False
) -> bool:
    """Return whether a value differs on numbers far from a case's numbers (see `beyond`), if stepped by any step."""
    sampler = partial(beyond, points=points, factors=factors, flip=flip)
    is_stepped = cone is not None and cone.walk.replay.are_steps(cone.value)
    return differs(cone, sampler, by_noise if is_stepped else grossly)


def _is_exact(walk: Walk, value: str) -> bool:
    """Return whether neither model rounds between cutpoints and a value: a tie is the same in both."""
    mine = paths(walk.a, [walk.pairs.of[value]], walk.fed_of_a, walk.original.types)
    return not any(path.depth for path in (*mine.values(), *paths(walk.b, [value], walk.fed, {}).values()))


def _differs_where_equal(cone: Cone | None, points: Sequence[float]) -> bool:
    if cone is None:
        return False
    walk = cone.walk
    mine, (_, theirs) = walk.a.kinds(cone.nodes), _operators(walk, cone.value)
    if not _ARITHMETIC.issuperset(mine | theirs):
        return False
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
    known = [v for v in tensors(walk, walk.pairs.of[value]) if v.size] if kind in _DECISIONS else []
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
        mine, theirs = _nodes(walk, value)
        x, y = a.of(mine), b.of(theirs)
        if (others := only_in_one(x, y)) and not walk.sameness.is_made_alike(value):
            yield value, between(others, sorted({0.0, *x, *y}))


def _picked(walk: Walk) -> dict[str, bool]:
    """Return {index of an extreme element, made differently: whether it differs for ties, or numbers on one side}.

    Examples: only one model applies Relu before ArgMax, or takes the last of several.
    """
    values = [v for v in _made_by(walk, _PICKING) if walk.replay.kind(v) in _INTEGER_DECISIONS]
    return _beyond_points(walk, values, values)


def _rare(walk: Walk) -> dict[str, bool]:
    """Return {value of an operator with another setting: whether it differs for rare numbers, or beyond a bound}."""
    values = [*walk.sameness.made_differently(_made_by(walk, RARE))]
    changed = [v for v in values if ne(*map(_settings, (walk.a, walk.b), _nodes(walk, v)))]
    return _beyond_points(walk, values, changed)


def _settings(program: Program, nodes: Iterable[int]) -> set[bytes]:
    """Return the attributes of operators with settings for rare numbers."""
    return {a.SerializeToString() for n in program.at(nodes) if n.op_type in RARE for a in n.attribute}


def _made_by(walk: Walk, kinds: Collection[str]) -> list[str]:
    """Return the agreeing values of B that both models compute by operators of some kinds, from cutpoints."""
    agreed = walk.agreed
    cuts = {walk.pairs.of[v]: v for v in paired_cuts(walk) if v in agreed}
    mine, theirs = _results(walk.a, kinds, cuts), _results(walk.b, kinds, {*cuts.values()})
    return [v for name, v in cuts.items() if name in mine and v in theirs]


def _results(program: Program, kinds: Iterable[str], cuts: Collection[str]) -> set[str]:
    """Return the next cutpoints that depend on operators of some kinds."""
    made = {o for kind in kinds for n in program.at(program.places.get(kind, ())) for o in n.output}
    inside = made.difference(cuts)
    return made.intersection(cuts).union(made_of(program, inside, cuts)[1] if inside else ())


def _beyond_points(walk: Walk, values: Sequence[str], tied: Sequence[str]) -> dict[str, bool]:
    """Return {value with other breakpoints: whether it differs far off}, and values of `tied` that differ specially."""
    found = dict(itertools.islice(_of_other_points(walk, values), _MAX_VALUES)) if values else {}
    ties = [*itertools.islice(walk.sameness.made_differently(tied), _MAX_VALUES)]
    far: dict[str, bool] = {}
    for value in dict.fromkeys((*found, *ties)):
        cone = Cone.of(walk, value)
        if value in ties and _differs_specially(cone):
            far[value] = True
        elif value in found:
            far[value] = _differs_far(cone, found[value])
    return far


def have_other_points(a: Program, b: Program) -> bool:
    """Return whether a program has breakpoints absent in the second."""
    return bool(only_in_one(*(Breakpoints(p, epsilons=True).of(range(len(p.nodes))) for p in (a, b))))


def unreached(walk: Walk) -> list[str]:
    """Return the cutpoints with different breakpoints that differ beyond them."""
    found = itertools.islice(_of_other_points(walk, paired_cuts(walk), epsilons=True), _MAX_VALUES)
    cones = ((v, Cone.of(walk, v), points) for v, points in found)
    return [
        v
        for v, cone, points in cones
        if _differs_far(cone, points, POSITIVE_FACTORS)
        or (walk.replay.kind(v) == _DECISIONS[0] and _differs_specially(cone))
    ]


# -- narrower integers ----------------------------------------------------------------------------------


def _narrowed(walk: Walk) -> dict[str, bool]:
    """Return {value computed through narrower integers than in A: whether it differs on numbers too large for them}."""
    found = itertools.islice(_by_narrower(walk), _MAX_STEPS) if integer_ends(walk.b.nodes) else ()
    return {v: _differs_far(Cone.of(walk, v), between(ends, ends), WIDE_FACTORS) for v, ends in found}


def _by_narrower(walk: Walk) -> Iterator[tuple[str, list[float]]]:
    """Yield (value, bounds of the narrower integers)."""
    for value in paired_cuts(walk):
        mine, theirs = _nodes(walk, value)
        ends = integer_ends(walk.b.at(theirs))
        if not ends or walk.sameness.is_made_alike(value):
            continue
        # Numbers too large for A's own narrow integers have no right result.
        has_such = integer_ends(walk.a.at(mine))
        if not (has_such or _makes_sizes(walk.a, mine) or _makes_sizes(walk.b, theirs)):
            yield value, ends


def _makes_sizes(program: Program, nodes: Iterable[int]) -> bool:
    """Return whether sizes or indices are computed, which would be too large."""
    return any(
        not program.is_constant(name)
        for node in program.at(nodes)
        for k, name in enumerate(node.input)
        if name and k in SINKS.get(node.op_type, ())
    )


# -- steps and dropped numbers --------------------------------------------------------------------------


def _behind_steps(walk: Walk) -> dict[str, bool]:
    """Return {agreeing value behind a step, with a differing operand: whether it differs close to a case's numbers}.

    A scale may have been moved through the step on purpose, or no number was close enough to a breakpoint.
    """
    found = itertools.islice(_made_of_moved(walk), _MAX_STEPS)
    # Of dropped numbers, the negative are too far from zero for small changes.
    samplers = partial(elsewhere, most=_FAR_SAMPLES), partial(near, most=_NEAR_SAMPLES)
    return {v: differs(Cone.of(walk, v), samplers[_is_step(walk, v)]) for v in found}


def _could_tell(walk: Walk, value: str) -> bool:
    """Return whether a value reflects its operands unless saturated."""
    return not (is_discrete(walk.replay.kind(value)) or walk.replay.are_steps(value))


def _made_of_moved(walk: Walk) -> Iterator[str]:
    """Yield the steps with a shared value upstream that differs by more than rounding.

    A value that agrees on A's values only hands on the differences of earlier values.
    """
    known: dict[str, bool] = {}  # whether rounding explains the difference

    def is_rounding(value: str) -> bool:
        if value not in known:
            is_alike = not any(d.note for d in walk.latest[value])
            known[value] = is_alike and walk.is_rounding(value, noise.get(value, ()))
        return known[value]

    steps = _steps(walk)
    while some := list(itertools.islice(steps, _NOISE_BATCH)):
        new = dict.fromkeys(v for _, values in some for v in values if v not in known)
        known |= dict.fromkeys(filter(walk.agrees_between, new), True)
        own = [v for v in new if v not in known]
        noise = walk.noise(own) if own else {}
        for output, values in some:  # values known to differ first, as float64 takes long
            if not all(map(is_rounding, sorted(values, key=lambda v: known.get(v, True)))):
                yield output


def _steps(walk: Walk) -> Iterator[tuple[str, list[str]]]:
    """Yield (step, differing values between the step and preceding cutpoints)."""
    behind = set[str]()
    for node, reads in zip(walk.b.nodes, walk.b.reads):
        is_behind = not behind.isdisjoint(reads)
        for output in filter(None, node.output):
            if output not in walk.cuts:
                behind.update([output] if is_behind or output in walk.latest else ())
                continue
            if is_behind and _may_agree(walk, output):
                inside = walk.b.made(walk.b.cone([output], walk.fed))
                yield output, [v for v in inside if v in walk.latest and v not in walk.cuts]


def _may_agree(walk: Walk, output: str) -> bool:
    """Return whether a value may agree although its operands differ."""
    is_deaf = output in walk.pairs.of and (_is_step(walk, output) or _drops(walk, output))
    return is_deaf and not walk.sameness.is_made_alike(output)


def _drops(walk: Walk, value: str) -> bool:
    """Return whether an operator in the cone ignores some numbers: negative, or not the largest.

    In many rows, hardly any channel is ignored in all.
    """
    if not are_few(least_rows(v.shape) for v in tensors(walk, walk.pairs.of[value])):
        return False
    return not all(map(DROPPING.isdisjoint, _operators(walk, value)))


def _is_step(walk: Walk, value: str) -> bool:
    if not walk.replay.kind(value).startswith("tensor("):
        return False
    known = tensors(walk, walk.pairs.of[value])
    return not _could_tell(walk, value) or (len(known) == len(walk.original.values) and all(map(is_dull, known)))


Find = Callable[["Walk"], dict[str, bool]]
_KINDS: Final[tuple[tuple[Find, str, str], ...]] = (
    (undecided, "is nearly constant in each case", "differs on other numbers"),
    (_picked, "ranks differently", "differs for ties, or where all operands are on one side of a bound"),
    (_rare, "treats rare numbers differently", "differs for infinities, repeated indices or zeros, or beyond a bound"),
    (_narrowed, "is computed in narrower integers", "differs for numbers beyond their range"),
    (decided_otherwise, "depends on a decision", "differs for a decision that no case makes"),
    (_behind_steps, "is computed from a value that differs", "differs itself on numbers near those of the cases"),
)
