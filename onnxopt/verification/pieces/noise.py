"""Differences of a piece through a view and by channel, and its noise: the effect of last bits of its entries."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from onnxopt.proto.element_types import element_kind
from onnxopt.startup.record import record
from onnxopt.verification.pieces.paths import is_coarse
from onnxopt.verification.programs.runner import Opened
from onnxopt.verification.programs.stream import Stream
from onnxopt.verification.rounding import NOISE, Difference, Draws, allowed, difference, is_float, last_bit, noisier
from onnxopt.verification.run import Failed

# -- views ------------------------------------------------------------------------------------------------

_MOST_ORDERS: Final = 24


@record(frozen=True)
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
    if not a or not all(map(_can_be_viewed, a, b)):
        return
    shapes, rank = tuple(y.shape for y in b), a[0].ndim
    if any(x.shape != shape for x, shape in zip(a, shapes)):
        yield View(None, shapes)
    if rank < 2 or any(x.ndim != rank for x in a) or math.factorial(rank) > _MOST_ORDERS * 30:
        return
    for axes in _orders(a, shapes):
        yield View(axes, shapes)


def _orders(a: list[Any], shapes: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return the orders of axes that give all shapes; then the rest, if few axes have a different first shape."""
    rank = a[0].ndim
    orders = [axes for axes in itertools.permutations(range(rank)) if axes != tuple(range(rank))]
    exact = [o for o in orders if all(tuple(x.shape[i] for i in o) == shape for x, shape in zip(a, shapes))]
    rest = [o for o in orders if o not in exact] if rank <= 4 and a[0].shape != shapes[0] else []
    return [*exact[:_MOST_ORDERS], *rest]


def _can_be_viewed(a: Any, b: Any) -> bool:
    are_tensors = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
    return are_tensors and a.dtype == b.dtype and a.size == b.size


# -- channels ---------------------------------------------------------------------------------------------
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


# -- noise ------------------------------------------------------------------------------------------------
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
    program = original.runner.program
    here = {v for v in cuts if all(v in known for known in original.values)}
    wanted = [v for v in wanted if program.random.isdisjoint(program.cone([v], here))]
    nodes = program.cone(wanted, here)
    if not nodes or any(r not in here for r in program.entries(nodes, here)):
        return {}
    sampling = _Sampling(original, wanted, here, held or {}, channels or {})
    for k in range(_MAX_PERTURBATIONS if sampling.open else _SEEDS):
        if k == _SEEDS:
            sampling.search_jumps()
        if sampling.is_done(k, is_enough):
            break
        with contextlib.suppress(Failed):  # the model rejects a value one bit larger; noise is unknown
            sampling.draw(k, Draws(seed, k), dtype)
    return sampling.noise()


class _Sampling:
    """Samples of A's values, each with other last bits: a few for all values, then more while jumps are unexplained."""

    def __init__(
        self,
        original: Stream,
        wanted: Sequence[str],
        here: Collection[str],
        held: Mapping[str, Held],
        channels: Mapping[str, Sequence[Channels]],
    ) -> None:
        self._runner, self._original, self._here = original.runner, original, here
        self._wanted, self._nodes = wanted, self._runner.program.cone(wanted, here)
        reads = self._runner.program.reads
        self._fed = {r: original.types[r] for i in self._nodes for r in reads[i] if r in here}
        self._largest = {v: [Difference() for _ in original.values] for v in wanted}
        self.open = {v: _Open(*found) for v, found in held.items() if v in wanted}
        self._uneven = {v: seen for v, seen in channels.items() if v in wanted}
        self._times = 1.0
        self._left = [math.inf]  # unexplained elements before each sample
        self._opened: Opened | None = None

    def search_jumps(self) -> None:
        """Sample only values with unexplained elements, with larger perturbations."""
        self._wanted = [v for v, jumps in self.open.items() if jumps.count]
        self._nodes, self._times = self._runner.program.cone(self._wanted, self._here), NOISE

    def is_done(self, k: int, is_enough: Callable[[str, list[Difference]], bool] | None) -> bool:
        """Return whether sample `k` would tell nothing new."""
        self._left.append(sum(jumps.count for jumps in self.open.values()))
        if not self._wanted:
            return True
        if k >= _SEEDS:
            is_hopeless = self._stalls(k - _SEEDS, _IN_VAIN, _CONCLUSIVE_COUNT)
            return is_hopeless or not self._left[-1] or self._stalls(k, _MORE, 0)
        if not k or is_enough is None or self.open or self._uneven:
            return False
        return all(is_enough(v, self._largest[v]) for v in self._wanted)

    def _stalls(self, k: int, samples: int, least: int) -> bool:
        """Return whether the last samples explained none of at least `least` elements."""
        return k >= samples and self._left[-1] >= least and self._left[-1] == self._left[-1 - samples]

    def draw(self, k: int, rng: Draws, dtype: str) -> None:
        """Take a sample. Raises Failed."""
        is_search = k >= _SEEDS
        if is_search or not k % 2 or self._opened is None:
            change = functools.partial(last_bit, rng=rng, dtype=dtype, times=self._times)
            self._opened = self._runner.open(self._nodes, self._fed, self._wanted, change)
        # Every second sample of a search feeds unchanged numbers: only rounding behind may have met a breakpoint, not
        # the inputs.
        moves = not (is_search and k % 2)
        for i, known in enumerate(self._original.values):
            feeds = {r: last_bit(known[r], rng, dtype, self._times) if moves else known[r] for r in self._fed}
            results = self._opened.run(feeds)
            for v in self._wanted:
                self._see(v, i, known[v], results[v], is_search=is_search)

    def _see(self, value: str, case: int, before: Any, after: Any, *, is_search: bool) -> None:
        if not is_search:
            found = difference(before, after, coarse=is_coarse(self._original.types[value]))
            self._largest[value][case] = noisier(self._largest[value][case], found)
        if value in self.open:
            self.open[value].see(after, case)
        elif value in self._uneven:
            self._uneven[value][case].see(before, after)

    def noise(self) -> dict[str, list[Difference]]:
        """Return the largest change by value and case, and whether jumps and channels remain unexplained."""
        largest, types = self._largest, self._original.types
        for v in (v for v in largest if v in self.open or is_discrete(types[v])):
            there = self.open[v].left if v in self.open else [True for _ in largest[v]]
            largest[v] = [replace(d, unseen=some is not None) for d, some in zip(largest[v], there)]
        for v, seen in self._uneven.items():
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
        self._mine, self._theirs, self._view, self._share = mine, theirs, view, share
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
        if left is None or not _can_be_viewed(sample, theirs):
            return
        sample = sample if self._view is None else self._view(sample, case)
        if sample.shape != theirs.shape:
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
