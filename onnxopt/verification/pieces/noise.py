"""Noise of a piece: changes of its results by last bits of inputs and weights.

Discrete values, integer-valued floats and dequantized numbers jump at breakpoints, and the number of jumps says nothing
about their targets. Each element that differs in B must therefore equal some sample of A. While elements remain
unexplained, further samples are taken, with perturbations up to the largest noise allowed for floats.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from onnxopt.proto.element_types import element_kind
from onnxopt.verification.numbers.draws import Draws
from onnxopt.verification.numbers.perturbation import last_bit
from onnxopt.verification.numbers.rounding import NOISE, Difference, difference, is_float, noisier
from onnxopt.verification.pieces.channels import Channels
from onnxopt.verification.pieces.paths import is_coarse
from onnxopt.verification.pieces.views import View
from onnxopt.verification.programs.runner import Opened, Runner
from onnxopt.verification.programs.stream import Stream
from onnxopt.verification.run import Failed

_SEEDS: Final = 4  # samples; weights change in every second only, as each change needs a new session
_MORE: Final = 16  # samples while searching jumps; the search continues as long as more are explained
_MAX_PERTURBATIONS: Final = 64  # samples in total; every second one leaves the fed numbers unchanged
_CONCLUSIVE_COUNT: Final = 64  # unexplained elements; of as many, last bits would have explained some
_IN_VAIN: Final = 2  # samples after which the previous limit applies

_MIN_NON_INDEX: Final = 2.0**16  # integers hardly used as indices; float32 rounding may change them by several

# (A's values by case, B's values by case, view of B, tolerance relative to the range for equal numbers).
Held = tuple[Sequence[Any], Sequence[Any], View | None, float]


def noise_of(
    runner: Runner,
    original: Stream,
    wanted: Sequence[str],
    cuts: Collection[str],
    seed: int,
    dtype: str = "",
    held: Mapping[str, Held] | None = None,
    channels: Mapping[str, Sequence[Channels]] | None = None,
    is_enough: Callable[[str, list[Difference]], bool] | None = None,
) -> dict[str, list[Difference]]:
    """Return the noise by value and case. Values with random draws in their pieces are left out.

    cuts: start of pieces, if still in memory; dtype: perturb last bits of a narrower type; held: discrete values to
    explain element by element; channels: differing channels to explain; is_enough: whether the noise of a value
    suffices, which ends sampling unless `held` or `channels` are given.
    """
    program = runner.program
    here = {v for v in cuts if all(v in known for known in original.values)}
    wanted = [v for v in wanted if program.random.isdisjoint(program.cone([v], here))]
    nodes = program.cone(wanted, here)
    if not nodes or any(r not in here for r in program.entries(nodes, here)):
        return {}
    fed = {r: original.types[r] for i in nodes for r in program.reads[i] if r in here}
    largest = {v: [Difference() for _ in original.values] for v in wanted}
    open_ = {v: _Open(*found) for v, found in (held or {}).items() if v in wanted}
    uneven = {v: seen for v, seen in (channels or {}).items() if v in wanted}
    times, left = 1.0, [math.inf]  # unexplained elements before each sample
    opened: Opened | None = None
    for k in range(_MAX_PERTURBATIONS if open_ else _SEEDS):
        if k == _SEEDS:  # only values with unexplained elements remain
            wanted = [v for v, jumps in open_.items() if jumps.count]
            nodes, times = program.cone(wanted, here), NOISE
        left.append(sum(jumps.count for jumps in open_.values()))
        if not wanted or (k >= _SEEDS and not left[-1]) or (k >= _MORE and left[-1] == left[-1 - _MORE]):
            break
        if k >= _SEEDS + _IN_VAIN and left[-1] >= _CONCLUSIVE_COUNT and left[-1] == left[-1 - _IN_VAIN]:
            break
        if k and is_enough is not None and not open_ and not uneven and all(is_enough(v, largest[v]) for v in wanted):
            break
        rng = Draws(seed, k)
        try:
            if k >= _SEEDS or not k % 2 or opened is None:
                change = functools.partial(last_bit, rng=rng, dtype=dtype, times=times)
                opened = runner.open(nodes, fed, wanted, change)
            for i, known in enumerate(original.values):
                # Every second sample feeds unchanged numbers: only rounding behind may have met a breakpoint, not the
                # inputs.
                moves = k < _SEEDS or not k % 2
                results = opened.run({r: last_bit(known[r], rng, dtype, times) if moves else known[r] for r in fed})
                for v in wanted:
                    if k < _SEEDS:
                        found = difference(known[v], results[v], coarse=is_coarse(original.types[v]))
                        largest[v][i] = noisier(largest[v][i], found)
                    if v in open_:
                        open_[v].see(results[v], i)
                    elif v in uneven:
                        uneven[v][i].see(known[v], results[v])
        except Failed:  # the model rejects a value one bit larger; noise is unknown
            continue
    for v in (v for v in largest if v in open_ or is_discrete(original.types[v])):
        there = open_[v].left if v in open_ else [True for _ in original.values]
        largest[v] = [replace(d, unseen=some is not None) for d, some in zip(largest[v], there)]
    for v, seen in uneven.items():
        largest[v] = [replace(d, uneven=far.any) for d, far in zip(largest[v], seen)]
    return largest


def is_discrete(kind: str) -> bool:
    """Return whether values of a type are compared for equality."""
    return is_coarse(kind) or not any(name in kind for name in ("float", "double"))


def are_equal(a: Any, b: Any, share: float) -> Any:
    """Return the elementwise equality. Floats may differ by `share` of the range of `a`."""
    if not share or not is_float(a):
        return a == b
    with np.errstate(all="ignore"):
        span = np.nan_to_num(np.abs(a), posinf=0.0).max(initial=0)
        return (a == b) | (np.abs(a - b) <= share * span)


class _Open:
    """Elements of B that differ from A's and from all samples so far, by case; None if none are left."""

    def __init__(self, mine: Sequence[Any], theirs: Sequence[Any], view: View | None, share: float) -> None:
        self._theirs = theirs
        self._mine = mine
        self._view = view
        self._share = share
        self.left: list[Any] = [True for _ in theirs]
        for i, value in enumerate(mine):
            self.see(value, i)

    @property
    def count(self) -> int:
        """The number of unexplained elements in all cases."""
        return sum(int(np.count_nonzero(left)) for left in self.left if left is not None and left is not True)

    def see(self, sample: Any, case: int) -> None:
        """Remove the elements explained by a possible value of A."""
        theirs, left = self._theirs[case], self.left[case]
        if left is None or not isinstance(sample, np.ndarray) or not isinstance(theirs, np.ndarray):
            return
        if self._view is not None:
            if sample.size != theirs.size:
                return
            sample = self._view(sample, case)
        if sample.shape != theirs.shape or sample.dtype != theirs.dtype:
            return
        left = left & ~are_equal(sample, theirs, self._share)
        if element_kind(theirs) == "i" and theirs.dtype.itemsize > 2:
            left = left & ~self._is_near(sample, case)
        self.left[case] = left if left.any() else None

    def _is_near(self, sample: Any, case: int) -> Any:
        """Return where large integers moved as far in a sample as B's differ."""
        theirs = self._theirs[case].astype(np.float64)
        mine = self._mine[case] if self._view is None else self._view(self._mine[case], case)
        if mine.shape != theirs.shape:
            return np.zeros(theirs.shape, bool)
        apart, moved = np.abs(theirs - mine), np.abs(sample.astype(np.float64) - mine)
        return (np.abs(mine.astype(np.float64)) >= _MIN_NON_INDEX) & (apart <= NOISE * moved)
