"""Differences of a piece through a view and by channel, and its noise: the effect of last bits of its entries."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from onnxopt.proto.element_types import element_kind
from onnxopt.verification.pieces.paths import is_coarse
from onnxopt.verification.programs.runner import Opened, Values
from onnxopt.verification.programs.stream import Stream
from onnxopt.verification.rounding import (
    NOISE,
    Difference,
    Draws,
    allowed,
    as_single,
    difference,
    is_float,
    last_bit,
    noisier,
)
from onnxopt.verification.run import Failed

# -- views ------------------------------------------------------------------------------------------------

_MAX_ORDERS: Final = 24
_MAX_RANK: Final = 6
_MAX_MERGED_RANK: Final = 4


Shape = tuple[int, ...]


@dataclass(frozen=True)
class View:
    """Layout of a value in B: A's value transposed, then reshaped."""

    axes: tuple[int, ...] | None  # axis order; None: unchanged
    shapes: tuple[tuple[int, ...], ...]  # by case

    def __call__(self, value: Any, case: int) -> Any:
        turned = value if self.axes is None else value.transpose(self.axes)
        return np.ascontiguousarray(turned).reshape(self.shapes[case])


def views(a: list[Any], b: list[Any]) -> Iterator[View]:
    """Yield the views of A's values `a` with the shapes of B's values `b`, by case."""
    if not a or not all(map(_can_be_viewed, a, b)):
        return
    mine, shapes = (tuple(v.shape for v in values) for values in (a, b))
    if mine != shapes:
        yield View(None, shapes)
    if 2 <= a[0].ndim <= _MAX_RANK and len({*map(len, mine)}) == 1:
        yield from (View(axes, shapes) for axes in _orders(mine, shapes))


def _orders(a: Sequence[Shape], b: Sequence[Shape]) -> Iterator[tuple[int, ...]]:
    """Yield the orders of axes that may turn shapes `a` into `b`: first those that do without a reshape."""
    orders = list(itertools.permutations(range(len(a[0]))))[1:]
    exact = [o for o in orders if all(tuple(x[i] for i in o) == shape for x, shape in zip(a, b))]
    yield from exact[:_MAX_ORDERS]
    if len(a[0]) <= _MAX_MERGED_RANK and a[0] != b[0]:  # merged axes give further shapes
        yield from (o for o in orders if o not in exact)


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


Layout = Callable[[Any], Any]  # maps A's layout of a value to B's


class Channels:
    """Rows and channels of B's value that differ from A's by much of their own range, unexplained by noise so far."""

    def __init__(self, a: Any, b: Any, share: float, view: Layout | None = None, *, fine: bool = False) -> None:
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

    def noted(self, noise: Difference) -> Difference:
        """Return the noise with whether rows or channels are left."""
        return noise._replace(uneven=self.any)


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
    apart, sizes = _apart(a, b), _finite(np.abs(as_single(a)))
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
        return _finite(np.abs(as_single(a) - as_single(b)))


def _finite(sizes: Any) -> Any:
    return sizes if np.isfinite(sizes.max(initial=0.0)) else np.nan_to_num(sizes, nan=0.0, posinf=0.0)


def _largest(sizes: Any, axis: int) -> Any:
    return sizes.max(tuple(k for k in range(sizes.ndim) if k != axis))


# -- jumps ------------------------------------------------------------------------------------------------
# Discrete values, integer-valued floats and dequantized numbers jump at breakpoints, and the number of jumps says
# nothing about their targets. Each element that differs in B must therefore equal some sample of A. While elements
# remain unexplained, further samples are taken, with perturbations up to the largest noise allowed for floats.

_MIN_NON_INDEX: Final = 2.0**16  # integers hardly used as indices; float32 rounding may change them by several


class Jumps:
    """Elements of B's value that differ from A's and from all samples so far."""

    def __init__(self, a: Any, b: Any, share: float, view: Layout | None = None) -> None:
        """Compare two values. `share`: tolerance relative to the range; `view`: maps A's layout to B's."""
        self._b, self._share, self._view = b, share, view or (lambda value: value)
        self._left: Any = True  # booleans by element, once values are comparable; None: no element is left
        self.see(a, a)

    @property
    def any(self) -> bool:
        """Whether any element is unexplained."""
        return self._left is not None

    @property
    def count(self) -> int:
        """The number of unexplained elements; 0 for values that cannot be compared."""
        return 0 if self._left is True or self._left is None else int(np.count_nonzero(self._left))

    def see(self, before: Any, after: Any) -> None:
        """Remove elements explained by noise. `before`, `after`: A's value without and with noise."""
        b = self._b
        if self._left is None or not _can_be_viewed(after, b):
            return
        sample, mine = self._view(after), self._view(before)
        if sample.shape != b.shape:
            return
        left = self._left & ~are_equal(sample, b, self._share)
        if element_kind(b) == "i" and b.dtype.itemsize > 2 and mine.shape == b.shape:
            mine = mine.astype(np.float64)  # large integers may move as far as in a sample
            left = left & ~((np.abs(mine) >= _MIN_NON_INDEX) & (np.abs(b - mine) <= NOISE * np.abs(sample - mine)))
        self._left = left if left.any() else None

    def noted(self, noise: Difference) -> Difference:
        """Return the noise with whether elements are left."""
        return noise._replace(unseen=self.any)


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


# -- noise ------------------------------------------------------------------------------------------------

_SEEDS: Final = 4  # samples; weights change in every second only, as each change needs a new session
_MORE: Final = 16  # samples while searching jumps; the search continues as long as more are explained
_MAX_PERTURBATIONS: Final = 64  # samples in total; every second one leaves the fed numbers unchanged
_CONCLUSIVE_COUNT: Final = 64  # unexplained elements; of as many, last bits would have explained some
_IN_VAIN: Final = 2  # samples after which the previous limit applies

Unexplained = Sequence[Jumps | Channels]  # by case
Noise = dict[str, list[Difference]]  # largest differences by value and case
Enough = Callable[[str, list[Difference]], bool]


def noise_of(
    original: Stream,
    wanted: Sequence[str],
    cuts: Collection[str],
    seed: int,
    dtype: str = "",
    unexplained: Mapping[str, Unexplained] | None = None,
    is_enough: Enough | None = None,
) -> dict[str, list[Difference]]:
    """Return the noise by value and case. Values with random draws in their pieces are left out.

    cuts: start of pieces, if still in memory; dtype: perturb last bits of a narrower type; unexplained: elements or
    channels to explain one by one; is_enough: whether the noise of a value suffices, which ends sampling unless
    something is left to explain.
    """
    program = original.runner.program
    unexplained = {v: cases for v, cases in (unexplained or {}).items() if cases}
    here = original.everywhere(cuts)
    wanted = [v for v in wanted if program.random.isdisjoint(program.cone([v], here))]
    nodes = program.cone(wanted, here)
    if not nodes or not here.issuperset(program.entries(nodes, here)):
        return {}
    largest = {v: [Difference() for _ in original.values] for v in wanted}
    _measure(_Samples(original, here, seed, dtype), largest, unexplained, is_enough)
    return {v: _noted(noise, unexplained.get(v), original.types[v]) for v, noise in largest.items()}


def _noted(noise: list[Difference], unexplained: Unexplained | None, kind: str) -> list[Difference]:
    """Return the noise of a value with whether elements or channels are left, by case."""
    if unexplained is not None:
        return [one.noted(d) for d, one in zip(noise, unexplained)]
    return [d._replace(unseen=True) for d in noise] if is_discrete(kind) else noise


def _measure(
    samples: _Samples, largest: Noise, unexplained: Mapping[str, Unexplained], is_enough: Enough | None
) -> None:
    """Add the differences of samples to `largest`, and jumps to `unexplained`, until enough is known."""
    asked, left = [*largest], list[int]()
    for k in range(_MAX_PERTURBATIONS):
        jumps = {v: sum(j.count for j in unexplained.get(v, ()) if isinstance(j, Jumps)) for v in asked}
        left.append(sum(jumps.values()))
        if _is_vain(left):
            break
        if k and not unexplained and is_enough is not None and all(is_enough(v, found) for v, found in largest.items()):
            break
        if k == _SEEDS:
            asked = [*filter(jumps.get, asked)]
        with contextlib.suppress(Failed):  # the model rejects a value one bit larger; noise is unknown
            for i, known, results in samples.draw(k, asked):
                if k < _SEEDS:
                    _enlarge(largest, i, known, results, samples.original.types)
                for v in results.keys() & unexplained.keys():
                    unexplained[v][i].see(known[v], results[v])


def _enlarge(largest: Noise, i: int, known: Values, results: Values, types: Mapping[str, str]) -> None:
    """Add the differences of case `i` to the largest ones."""
    for v, found in results.items():
        differs = difference(known[v], found, coarse=is_coarse(types[v]))
        largest[v][i] = noisier(largest[v][i], differs)


def _is_vain(left: Sequence[int]) -> bool:
    """Return whether further samples would explain no jump. `left`: unexplained elements before each sample."""
    if len(left) <= _SEEDS:
        return False
    window = _IN_VAIN if left[-1] >= _CONCLUSIVE_COUNT else _MORE
    return not left[-1] or (len(left) > max(window, _SEEDS + _IN_VAIN) and left[-1] == left[-1 - window])


class _Samples:
    """A's values with other last bits: four samples of small changes, then larger changes, in search of jumps."""

    def __init__(self, original: Stream, here: Collection[str], seed: int, dtype: str) -> None:
        self.original, self._here, self._seed, self._dtype = original, here, seed, dtype
        self._opened: Opened | None = None

    def draw(self, k: int, wanted: Sequence[str]) -> Iterator[tuple[int, Values, Values]]:
        """Yield (case, A's values, A's wanted values with other last bits) of sample `k`. Raises Failed."""
        original, is_search, rng = self.original, k >= _SEEDS, Draws(self._seed, k)
        change = functools.partial(last_bit, rng=rng, dtype=self._dtype, times=NOISE if is_search else 1.0)
        nodes = original.runner.program.cone(wanted, self._here)
        fed = {r: original.types[r] for r in original.runner.program.read(nodes) if r in self._here}
        if is_search or not k % 2 or self._opened is None:
            self._opened = original.runner.open(nodes, fed, wanted, change)
        # Every second sample of a search feeds unchanged numbers: only rounding behind may have met a breakpoint, not
        # the inputs.
        moves = not (is_search and k % 2)
        for i, known in enumerate(original.values):
            yield i, known, self._opened.run({r: change(known[r]) if moves else known[r] for r in fed})
