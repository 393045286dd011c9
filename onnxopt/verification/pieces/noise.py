"""Differences of a piece through a view and by channel, and its noise: the effect of last bits of its entries."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from onnxopt.proto.element_types import element_kind
from onnxopt.verification.pieces.paths import is_coarse
from onnxopt.verification.programs.runner import Opened, Runner
from onnxopt.verification.programs.stream import Stream
from onnxopt.verification.rounding import NOISE, Difference, Draws, allowed, difference, is_float, last_bit, noisier
from onnxopt.verification.run import Failed

# Values with a different shape or axis order in B: A's value through a Reshape or Transpose.

_MOST_ORDERS: Final = 24


@dataclass(frozen=True)
class View:
    """Layout of a value in B: A's value transposed, then reshaped."""

    axes: tuple[int, ...] | None  # axis order; None: unchanged
    shapes: tuple[tuple[int, ...], ...]  # by case

    def __call__(self, value: Any, case: int) -> Any:
        turned = value if self.axes is None else value.transpose(self.axes)
        return np.ascontiguousarray(turned).reshape(self.shapes[case])

    def of_case(self, case: int, count: int) -> View:
        """Return a view with the shape of one case, for `count` cases."""
        return View(self.axes, (self.shapes[case],) * count)


def views(a: list[Any], b: list[Any]) -> Iterator[View]:
    """Yield the views of A's values `a` with the shapes of B's values `b`, by case."""
    if not all(isinstance(x, np.ndarray) and isinstance(y, np.ndarray) for x, y in zip(a, b)):
        return
    if any(x.dtype != y.dtype or x.size != y.size for x, y in zip(a, b)) or not a:
        return
    shapes = tuple(y.shape for y in b)
    if any(x.shape != y.shape for x, y in zip(a, b)):
        yield View(None, shapes)
    first, rank = a[0], a[0].ndim
    if rank < 2 or any(x.ndim != rank for x in a):
        return
    if math.factorial(rank) > _MOST_ORDERS * 30:
        return
    exact = [axes for axes in itertools.permutations(range(rank)) if axes != tuple(range(rank))]
    turned = [axes for axes in exact if all(tuple(x.shape[i] for i in axes) == y.shape for x, y in zip(a, b))]
    for axes in turned[:_MOST_ORDERS]:
        yield View(axes, shapes)
    if first.shape == b[0].shape:
        return
    for axes in (axes for axes in exact if axes not in turned and rank <= 4):
        yield View(axes, shapes)


# Rows and channels of a value, each compared relative to its own range.
#
# In float16, a few roundings of the whole range exceed a channel a few hundred times smaller. A value therefore also
# differs if a channel differs far beyond the rounding of its own elements, unless noise of last bits changes the same
# channel as much. For float32, channels are compared if an output is uneven: beside a channel a million times larger.

_CRUDE: Final = 0.05  # relative to the channel; more than the rounding of a narrow type that can represent its elements
_FINE: Final = 1e-3  # for float32
_ROUNDINGS: Final = 4.0  # times the tolerance of the whole, for types that cannot
_PART: Final = 16  # elements; with fewer, a few samples of noise are no bound
_NARROW: Final = 2.0 * allowed(2.0**-23, 16.0)  # relative tolerance of float32


class Channels:
    """Rows and channels of B's value that differ from A's by much of their own range, unexplained by noise so far."""

    def __init__(
        self, a: Any, b: Any, share: float, view: Callable[[Any], Any] | None = None, *, fine: bool = False
    ) -> None:
        """Compare two values.

        share: tolerance relative to the whole range; view: maps A's layout to B's; fine: examine float32 too, not only
        narrow types.
        """
        self._view = view or (lambda value: value)
        a = self._view(a)
        crude = _CRUDE if share > _NARROW else _FINE
        counts = (fine or share > _NARROW) and _are_tensors(a, b)
        self._left = {axis: far for axis, far in _far(a, b, share, crude) if far.any()} if counts else {}

    @property
    def any(self) -> bool:
        """Whether any row or channel differs, unexplained by noise."""
        return bool(self._left)

    def see(self, before: Any, after: Any) -> None:
        """Remove channels that noise changes as much. `before`, `after`: A's value without and with noise."""
        if not self._left:
            return
        apart = _apart(self._view(before), self._view(after))
        for axis, far in list(self._left.items()):
            moved = NOISE * _largest(apart, axis)
            self._left[axis] = np.where(moved >= far, 0.0, far)
            if not self._left[axis].any():
                del self._left[axis]


def _are_tensors(a: Any, b: Any) -> bool:
    """Return whether both are float tensors of equal shape with enough elements."""
    return (
        isinstance(a, np.ndarray)
        and isinstance(b, np.ndarray)
        and element_kind(a) == element_kind(b) == "f"
        and a.shape == b.shape
        and a.size >= _PART
    )


def _far(a: Any, b: Any, share: float, crude: float) -> Iterator[tuple[int, Any]]:
    """Yield (axis, difference of each row, 0 if small).

    Rows smaller than a rounding of the largest element are ignored.
    """
    apart, sizes = _apart(a, b), _finite(np.abs(_wide(a)))
    if not apart.any():
        return
    crude, least = max(crude, _ROUNDINGS * share), share * float(sizes.max()) / _ROUNDINGS
    for axis in range(a.ndim):
        if a.size < _PART * a.shape[axis]:
            continue
        off, own = _largest(apart, axis), _largest(sizes, axis)
        yield axis, np.where(off > crude * np.maximum(own, least), off, 0.0)


def _apart(a: Any, b: Any) -> Any:
    with np.errstate(all="ignore"):
        return _finite(np.abs(_wide(a) - _wide(b)))


def _wide(value: Any) -> Any:
    return value.astype(np.float32) if value.dtype.itemsize < 4 else value


def _finite(sizes: Any) -> Any:
    return np.nan_to_num(sizes, nan=0.0, posinf=0.0)


def _largest(sizes: Any, axis: int) -> Any:
    return sizes.max(tuple(k for k in range(sizes.ndim) if k != axis))


# Noise of a piece: changes of its results by last bits of inputs and weights.
#
# Discrete values, integer-valued floats and dequantized numbers jump at breakpoints, and the number of jumps says
# nothing about their targets. Each element that differs in B must therefore equal some sample of A. While elements
# remain unexplained, further samples are taken, with perturbations up to the largest noise allowed for floats.

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
