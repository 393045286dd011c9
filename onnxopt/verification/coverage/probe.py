"""Probe: run the cone of influence of a value in A and B on different numbers, and compare.

The numbers may never occur, so a difference is a coverage gap, not a fault.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from onnxopt.proto.element_types import element_kind, of
from onnxopt.verification.compare import is_blank
from onnxopt.verification.coverage.cones import EPSILON, Cone
from onnxopt.verification.inputs.values import covering
from onnxopt.verification.model.nodes import adds_up
from onnxopt.verification.model.operators import MEASURING
from onnxopt.verification.pieces.noise import noise_of
from onnxopt.verification.pieces.precise import is_rounding
from onnxopt.verification.pieces.replay import Replay
from onnxopt.verification.pieces.walk import Walk
from onnxopt.verification.programs.program import Program
from onnxopt.verification.programs.runner import is_stepped
from onnxopt.verification.programs.stream import Stream
from onnxopt.verification.rounding import Draws, are_integers, overflows
from onnxopt.verification.run import Failed

# -- samplers ---------------------------------------------------------------------------------------------
# Non-negative entries stay non-negative. Entries stay within the range of their operators, except blank values,
# replaced by any numbers.

POSITIVE_FACTORS: Final = (8.0, 64.0, 4096.0)
WIDE_FACTORS: Final = tuple(sign * 8.0**k for k in (1, 2, 3, 4) for sign in (1.0, -1.0))
ALL_FACTORS: Final = tuple(sign * 8.0**k for k in (1, 2, 3, 4, 0, -1, -2, -3, -4) for sign in (1.0, -1.0))
MAX_TURNING: Final = 4  # samples for a cone with loops, as each may take hundreds of iterations
_ELEMENTS_IF_EMPTY: Final = 3
_MAX_NUMBERS: Final = 1 << 16  # in all samples of a cone; larger tensors are rolled, not permuted
_MAX_EQUAL: Final = 12  # pairs of an integer and its comparand
_TESTING: Final = ("IsInf", "IsNaN")
_NO_NUMBERS: Final = (math.inf, -math.inf, math.nan)
_SCATTERING: Final = ("ScatterElements", "ScatterND")
_NEXT: Final = (0, -1, 1, -2, 2)
_NEAR_SHARE: Final = 0.5  # relative: numbers change by up to half of this
_LEVELS: Final = ("int8", "uint8", "int4", "uint4")  # quantized integers, hardly sizes or indices


# -- far from a case's numbers ---------------------------------------------------------------------------


def beyond(
    cone: Cone, known: Known, points: Sequence[float], factors: Sequence[float] = (), *, flip: bool = False
) -> Iterator[Known]:
    """Yield multiples of a case's floats, and numbers between breakpoints.

    The numbers are mixed, all on one side, and as small as an epsilon. A breakpoint present in only one of two programs
    shows as a difference. flip: negate booleans too, if both programs read all.
    """
    free = {n: v for n, v in sorted(known.items()) if _may_be_far(cone, n, v)}
    floats = _far(free, points, factors, Draws(cone.walk.replay.seed, cone.original)) if free else ()
    every: list[Known] = [{n: cone.possible(n, v) for n, v in found.items()} for found in floats]
    every += _negated(cone, known) if flip else []
    takes_turns = not cone.walk.a.kinds(cone.nodes).isdisjoint(("Loop", "Scan"))
    yield from every[:: -(-len(every) // MAX_TURNING)] if every and takes_turns else every


def _negated(cone: Cone, known: Known) -> list[Known]:
    booleans = {n: np.asarray(~v) for n, v in known.items() if element_kind(v) == "b"}
    return [booleans] if booleans and booleans.keys() <= cone.both else []


def _far(known: Known, points: Sequence[float], factors: Sequence[float], rng: Draws) -> Iterator[Known]:
    with np.errstate(all="ignore"):
        yield from (_multiplied(known, factor) for factor in factors)
        for bound, sign in zip((*points[-1:], *points[:1]), (1, -1)):
            yield {n: _on_one_side(v, bound, sign) for n, v in known.items()}
        for epsilon in (p for p in points if 0 < p < EPSILON):  # negligible beside larger numbers
            yield {n: np.full_like(v, epsilon) for n, v in known.items()}
            yield {n: np.asarray(v * v.dtype.type(math.sqrt(epsilon))) for n, v in known.items()}  # the variance
        for point in points:
            yield {n: _mixed(v, points, point, rng) for n, v in known.items()}


def _multiplied(known: Known, factor: float) -> Known:
    """Return the numbers times a factor; numbers without negative ones keep their sign."""
    signed = {n: abs(factor) if v.min() >= 0 else factor for n, v in known.items()}
    return {n: np.asarray(v * v.dtype.type(signed[n])) for n, v in known.items()}


def _mixed(value: Any, points: Sequence[float], point: float, rng: Draws) -> Any:
    """Return all points in one tensor; for a single element, `point`."""
    possible = [p for p in ((point,) if value.size == 1 else points) if _may_be(value, p)]
    return covering(possible, value.shape, rng).astype(value.dtype) if possible else value


def _on_one_side(value: Any, bound: float, sign: int) -> Any:
    found = np.asarray(bound + sign * np.abs(value), value.dtype)
    return found if found.min() >= 0 or value.min() < 0 else value


def special(cone: Cone, known: Known) -> Iterator[Known]:
    """Yield infinities and NaN in operands of IsInf and IsNaN, and floats on few levels: several are the largest."""
    nodes, floats = [*cone.walk.a.at(cone.nodes)], {n: v for n, v in sorted(known.items()) if element_kind(v) == "f"}
    tested = sorted(cone.both.intersection(known, (r for n in nodes if n.op_type in _TESTING for r in n.input)))
    for number in _NO_NUMBERS if tested else ():
        yield {name: np.full_like(known[name], number) for name in tested}
    yield {n: cone.possible(n, np.sign(v)) for n, v in floats.items()}
    if any(n.op_type in _SCATTERING for n in nodes):
        yield from _scattered(cone, known, repeats=any(map(adds_up, nodes)))


def _scattered(cone: Cone, known: Known, *, repeats: bool) -> Iterator[Known]:
    """Yield floats without zeros, and a single index if elements of equal index are reduced (`repeats`)."""
    free = {n: known[n] for n in sorted(changing_values(cone.walk.a).intersection(cone.both, known))}
    yield {n: _without_zeros(cone, n, v) for n, v in free.items() if element_kind(v) == "f"}
    yield {n: np.broadcast_to(v[:1], v.shape) for n, v in free.items() if repeats and element_kind(v) == "i" and v.ndim}


def _without_zeros(cone: Cone, name: str, value: Any) -> Any:
    numbers = Draws(cone.walk.replay.seed, name).normal(value.shape)
    return cone.possible(name, np.where(value == 0, numbers.astype(value.dtype), value))


def _comparands(known: Known, free: Collection[str], points: Sequence[float]) -> dict[tuple[str, int], None]:
    """Return the pairs of an integer in `free` and a possible comparand."""
    integers = {n: v for n, v in sorted(known.items()) if element_kind(v) == "i" and v.size}
    some = [*filter(free.__contains__, integers)]
    entries = ((x, int(v.flat[0])) for x in some for y, v in integers.items() if x != y)
    return dict.fromkeys((*entries, *((x, int(p)) for x in some for p in points if p == int(p))))


def equals(cone: Cone, known: Known, free: Collection[str], points: Sequence[float]) -> Iterator[Known]:
    """Yield integers equal or close to possible comparands: entries and breakpoints.

    free: names of arbitrary integers.
    """
    for name, other in itertools.islice(_comparands(known, free, points), _MAX_EQUAL):
        value, limits = known[name], cone.range(name)
        for number in (other + step for step in _NEXT):
            if _may_be(value, number) and limits.takes(number, number):
                yield {name: np.full_like(value, number)}


def filled(cone: Cone, known: Known, factor: float) -> Iterator[Known]:
    """Yield random numbers in place of blank values, multiplied by `factor` against cutoffs, with and without sign."""
    rng = Draws(cone.walk.replay.seed, cone.original)
    for positive in (False, True):
        yield {name: _filled(known[name], rng, factor, positive=positive) for name in sorted(known)}


def _filled(value: Any, rng: Draws, factor: float, *, positive: bool) -> Any:
    shape = [size or _ELEMENTS_IF_EMPTY for size in value.shape]
    kind = element_kind(value)
    if kind == "f":
        numbers = rng.normal(shape) if is_blank(value) or np.isnan(value).any() else value
        return np.asarray((np.abs(numbers) if positive else numbers) * factor, value.dtype)
    if value.size:
        return value
    return rng.integers(0, 2, shape).astype(value.dtype) if kind in "iub" else np.empty(shape, value.dtype)


# -- close to a case's numbers ---------------------------------------------------------------------------


def elsewhere(cone: Cone, known: Known, most: int, *, is_near: bool = False) -> Iterator[Known]:
    """Yield at most `most` permutations of floats and quantized levels, with a different largest or negative number.

    Fewer for more elements. is_near: floats change by up to a quarter, and levels lie between those present.
    """
    movable = [(n, v) for n, v in sorted(known.items()) if element_kind(v) == "f" or v.dtype.name in _LEVELS]
    count = max(min(most, _MAX_NUMBERS // max(sum(v.size for v in known.values()), 1)), 1) if movable else 0
    for rng in (Draws(cone.walk.replay.seed, cone.original, k) for k in range(count)):
        if is_near:
            yield {n: cone.possible(n, _near(cone, n, v, rng)) for n, v in movable}
        else:
            yield {n: _permuted(v, rng) for n, v in movable}


near: Final = partial(elsewhere, is_near=True)


def _near(cone: Cone, name: str, value: Any, rng: Draws) -> Any:
    if element_kind(value) == "f" and not are_integers(value) and not is_stepped(cone.walk.a, name):
        with np.errstate(over="ignore"):  # of stand-ins for infinity; those samples are left out
            return np.asarray(value * (1 + _NEAR_SHARE * (rng.uniform(value.shape) - 0.5)), value.dtype)
    found = _permuted(value, rng)
    if value.dtype.name in _LEVELS and value.size:
        between = rng.integers(int(value.min()), int(value.max()) + 1, value.shape).astype(value.dtype)
        return np.where(rng.flags(value.shape), between, found)
    return found


def _permuted(value: Any, rng: Draws) -> Any:
    flat = value.reshape(-1)
    if flat.size > _MAX_NUMBERS:
        return np.roll(flat, int(rng.integers(1, flat.size, (1,))[0])).reshape(value.shape)
    return flat[rng.orders(1, flat.size)[0]].reshape(value.shape)


# -- possible values ------------------------------------------------------------------------------------


def _may_be(value: Any, number: float) -> bool:
    """Return whether the type holds a number, and negative numbers occur if it is negative."""
    limits = of(value.dtype)
    return limits.low <= number <= limits.high and (number >= 0 or bool(value.min() < 0))


def _may_be_far(cone: Cone, name: str, value: Any) -> bool:
    """Return whether a value is unbounded floats, not quantized."""
    limits = cone.range(name)
    is_free = limits.integer or not limits.is_bounded
    return element_kind(value) == "f" and value.size > 0 and is_free and not is_stepped(cone.walk.a, name)


def changing_values(program: Program, given: Collection[str] | None = None) -> set[str]:
    """Return the values that depend on more than sizes of the inputs, or of `given`."""
    found = set(program.given if given is None else given)
    for node, reads in zip(program.nodes, program.reads):
        if node.op_type not in MEASURING and not found.isdisjoint(reads):
            found.update(node.output)
    return found


# -- the probe --------------------------------------------------------------------------------------------

_LARGER: Final = 16.0  # times the numbers of the cases
_GROSS: Final = 1e-2  # relative; smaller differences may be rounding of much larger numbers
_GROSS_SHARE: Final = 0.1  # of elements of discrete values

Known = Mapping[str, Any]
Sampler = Callable[["Cone", Known], Iterator[Known]]  # maps the entries of a case to many alternatives
Tolerance = Callable[["Cone", "Replay"], bool]


def differs(cone: Cone | None, sampler: Sampler, tolerance: Tolerance | None = None) -> bool:
    """Return whether a probe of the cone differs; False without a cone."""
    return cone is not None and probe(cone, sampler, tolerance) is False


def probe(cone: Cone, sampler: Sampler, tolerance: Tolerance | None = None) -> bool | None:
    """Return whether A's and B's nodes agree on the samples drawn for each case.

    None if no sample runs, or all results are blank (zero, NaN, empty). Cases are probed separately, so the verdict is
    independent of their grouping.
    """
    found = None
    for case in range(len(cone.walk.original.values)):
        agrees = _of_case(cone, case, sampler, tolerance or by_noise)
        if agrees is False:
            return False
        found = found or agrees
    return found


def _of_case(cone: Cone, case: int, sampler: Sampler, agrees: Tolerance) -> bool | None:
    walk = cone.walk
    try:
        made = list(_made(cone, case, sampler))
        if made and not agrees(cone, walk.replay.drawn(Stream(walk.runner, made, walk.original.types), case)):
            return False
    except (Failed, ValueError, IndexError, KeyError):  # numbers rejected, or a view does not fit
        return None
    return None if all(is_blank(values[cone.original]) for values in made) else True


def _made(cone: Cone, case: int, sampler: Sampler) -> Iterator[dict[str, Any]]:
    """Yield values fed to and made by A's nodes, by sample. Samples that overflow are left out."""
    known = {e: cone.walk.original.values[case][e] for e in cone.entries}
    for others in sampler(cone, known):
        results = cone.opened.run({**known, **others})
        if not any(map(overflows, results.values())):
            yield {**known, **others, **results}


# -- tolerances ------------------------------------------------------------------------------------------


def grossly(cone: Cone, replay: Replay) -> bool:
    """Tolerance for samples far from a case's numbers: return whether a value agrees roughly."""
    found = replay.hold(cone.value, cone.results(replay), 0.0)[1]
    return not any(d.note or d.relative > (_GROSS_SHARE if d.discrete else _GROSS) for d in found)


def by_noise(cone: Cone, replay: Replay) -> bool:
    """Tolerance for samples close to a case's numbers: return whether rounding in the cone explains the difference."""
    walk, value, original = cone.walk, cone.value, cone.original
    share = walk.share(value)
    agrees, differences, _ = replay.hold(value, cone.results(replay), share)
    if agrees or any(d.note for d in differences):
        return agrees
    jumps = {original: replay.unexplained(value, cone.fed, share)}
    noise = noise_of(replay.original, [original], cone.fed_of_a, walk.replay.seed, walk.replay.dtype, jumps)
    return is_rounding(replay, value, differences, noise.get(original, ()), cone.fed, share)


def overflowing(walk: Walk) -> Iterator[str]:
    """Yield the changed floats that overflow in B alone for numbers a few times as large as in the cases."""

    def is_finite(cone: Cone, replay: Replay) -> bool:
        return not any(map(overflows, cone.results(replay)))

    larger = partial(beyond, points=(), factors=(_LARGER,))
    shared = walk.cuts & walk.pairs.of.keys() & walk.b.maker.keys()
    changed = walk.sameness.made_differently(v for v in sorted(shared) if "float" in walk.replay.kind(v))
    return (v for v in changed if differs(Cone.of(walk, v), larger, is_finite))
