"""Probe: run the cone of influence of a value in A and B on different numbers, and compare.

The numbers may never occur, so a difference is a coverage gap, not a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from onnxopt.verification.numbers.compare import is_blank
from onnxopt.verification.numbers.rounding import Difference, overflows
from onnxopt.verification.pieces.noise import noise_of
from onnxopt.verification.pieces.precise import is_rounding
from onnxopt.verification.programs.stream import Stream
from onnxopt.verification.run import Failed

if TYPE_CHECKING:
    from onnxopt.verification.coverage.cones import Cone
    from onnxopt.verification.pieces.replay import Replay
    from onnxopt.verification.pieces.walk import Walk

_GROSS: Final = 1e-2  # relative; smaller differences may be rounding of much larger numbers
_GROSS_SHARE: Final = 0.1  # of elements of discrete values

Known = Mapping[str, Any]
Sampler = Callable[["Cone", Known], Iterator[Known]]  # maps the entries of a case to many alternatives
Tolerance = Callable[["Cone", "Replay"], bool]


class Verdict(Enum):
    """Result of a probe. SILENT: no sample runs, or all results are blank (zero, NaN, empty)."""

    SILENT = 0
    AGREES = 1
    DIFFERS = 2


def differs(cone: Cone | None, sampler: Sampler, tolerance: Tolerance | None = None) -> bool:
    """Return whether a probe of the cone differs; False without a cone."""
    return cone is not None and probe(cone, sampler, tolerance) is Verdict.DIFFERS


def probe(cone: Cone, sampler: Sampler, tolerance: Tolerance | None = None) -> Verdict:
    """Return the worst verdict over the cases, with A's and B's nodes run on the samples drawn for each case.

    Cases are probed separately, so the verdict is independent of their grouping.
    """
    found = Verdict.SILENT
    for case in range(len(cone.walk.original.values)):
        verdict = _of_case(cone, case, sampler, tolerance or by_noise)
        if verdict is Verdict.DIFFERS:
            return verdict
        found = verdict if verdict is Verdict.AGREES else found
    return found


def _of_case(cone: Cone, case: int, sampler: Sampler, agrees: Tolerance) -> Verdict:
    walk = cone.walk
    try:
        made = list(_made(cone, case, sampler))
        if not made:
            return Verdict.SILENT
        replay = walk.replay.drawn(Stream(walk.runner, made, walk.original.types), case)
        if not agrees(cone, replay):
            return Verdict.DIFFERS
    except (Failed, ValueError, IndexError, KeyError):  # numbers rejected, or a view does not fit
        return Verdict.SILENT
    return Verdict.SILENT if all(is_blank(values[cone.original]) for values in made) else Verdict.AGREES


def _made(cone: Cone, case: int, sampler: Sampler) -> Iterator[dict[str, Any]]:
    """Yield values fed to and made by A's nodes, by sample. Samples that overflow are left out."""
    runner, types, known = cone.walk.runner, cone.walk.original.types, cone.known(case)
    opened = None
    for others in sampler(cone, known):
        opened = opened or runner.open(cone.nodes, {e: types[e] for e in known}, [*cone.asked, cone.original])
        results = opened.run({**known, **others})
        if not any(map(overflows, results.values())):
            yield {**known, **others, **results}


# -- tolerances ------------------------------------------------------------------------------------------


def grossly(cone: Cone, replay: Replay) -> bool:
    """Tolerance for samples far from a case's numbers: return whether a value agrees roughly."""
    found = replay.hold(cone.value, replay.run([cone.value], cone.fed)[cone.value], 0.0)[1]
    return not any(d.note or d.relative > (_GROSS_SHARE if d.discrete else _GROSS) for d in found)


def by_noise(cone: Cone, replay: Replay) -> bool:
    """Tolerance for samples close to a case's numbers: return whether rounding in the cone explains the difference."""
    walk, value, original = cone.walk, cone.value, cone.original
    share = walk.share(value)
    agrees, differences, _ = replay.hold(value, replay.run([value], cone.fed)[value], share)
    if agrees or any(d.note for d in differences):
        return agrees
    jump = replay.jumping(value, cone.fed, share)
    held = {original: jump} if jump is not None else {}
    noise = noise_of(walk.runner, replay.original, [original], cone.fed_of_a, walk.seed, walk.dtype, held)
    return explains(walk, replay, value, differences, noise.get(original, []), (cone.fed, cone.fed_of_a))


def explains(
    walk: Walk,
    replay: Replay,
    value: str,
    differences: Sequence[Difference],
    noise: Sequence[Difference],
    fed: tuple[Collection[str], Collection[str]],
) -> bool:
    """Return whether noise, or float64, explains a value's differences. `fed`: cutpoints of B and of A."""
    if noise and all(d.explained(n) for d, n in zip(differences, noise)):
        return True
    share = walk.share(value)
    cases = [i for i, d in enumerate(differences) if not d.within(share)]
    return is_rounding(replay, value, cases, *fed, share, seed=walk.seed, memory=walk.memory)
