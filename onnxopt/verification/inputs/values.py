"""Values for the inputs of a plan, determined by the seed: random, wide, and around breakpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np

from onnxopt.proto.element_types import BY_NAME, TYPES, ElementType, element_kind, of
from onnxopt.verification.inputs.cases import Recipe, turned_flags
from onnxopt.verification.inputs.plan import LARGE_SIZE, InputSpec, Plan
from onnxopt.verification.inputs.uses import INDEX, SIZE
from onnxopt.verification.rounding import Draws
from onnxopt.worker.serving import Refused

# Ranges of integers, tried in this order until the original runs.
MODES: Final = ("bounded", "binary", "zeros", "ones")
# Attempts for the case `wide`: beyond all breakpoints, then within indexed sizes, with small sizes.
WIDE: Final = ("wide", "near")
# Tried last: only strings named in the model, which may accept no others.
KNOWN: Final = "known"
# Axis of sequences, in modes tried after those without lengths: behind the batch, or last.
AXES: Final = {"lengths": 1, "last lengths": -1}

_EQUAL: Final = {"zeros": 0.0, "ones": 1.0}  # all numbers of these modes
_FACTORS: Final = {"wide": 8.0, "near": 3.0}
_HALF: Final = {"float16": 4.0}
_NEAR_SHARE: Final = 0.75  # of elements near a breakpoint, if any
_CLOSE: Final = 0.875  # of elements near a breakpoint, or extremely close
_BESIDE: Final = np.array([0.75, 1.25, 2.0])  # times a breakpoint
_NEXT: Final = 2.0**-13  # relative; closer than a narrower type can distinguish
_FLOATING: Final = 1000  # as floats: large enough for a time step, small enough for the sine to be accurate
_TRIPS: Final = {"wide": 5, "near": 3}
_BEFORE: Final = -3  # an index counted from the end
_MAX_COUNT: Final = 4096
_MAX_INTEGER: Final = 2**62
_LARGE_INTEGER: Final = 101  # may be used as a size
_SMALL_SIZE: Final = 8
_SHARE: Final = 0.25  # of elements set to comparands
_NO_BOUND: Final = 1 << 31
# Large enough for exp to overflow, small enough for intermediate rounding to stay below the tolerance of saturated
# outputs. Squares of float16 must not overflow, or every output is NaN.
_SCALE_OF: Final = {"float16": (32.0, 1e-4)}
# Images or quantized data, hardly sizes or indices.
_BYTES: Final = {t.name: (int(t.low), int(t.high) + 1) for t in TYPES if t.kind in "iu" and t.bits <= 8}
_LENGTHS: Final = ("int32", "int64")
_STEP: Final = 3  # each sequence is shorter by a third of the longest
_STREAMS: Final = {"uniform": 1, "wide": 2, "edges": 3, "another": 4, "below": 5, "above": 6}


def covering(values: Sequence[Any], shape: Sequence[int], rng: Draws) -> Any:
    """Return the values in random order, each used before any repeats."""
    found = np.array(values, object if isinstance(values[0], str) else None)
    count = math.prod(shape)
    order = rng.orders(-(-count // len(found)) or 1, len(found))
    return found[order.reshape(-1)[:count]].reshape(shape)


# -- a tensor ---------------------------------------------------------------------------------------------


class _Tensor(NamedTuple):
    """A tensor of an input to be drawn."""

    i: InputSpec
    shape: list[int]
    rng: Draws
    recipe: Recipe
    mode: str

    @property
    def type(self) -> ElementType:
        """The element type."""
        return BY_NAME[self.i.kind]

    @property
    def is_single(self) -> bool:
        """Whether the tensor has one element."""
        return math.prod(self.shape) == 1

    def covering(self, values: Sequence[Any]) -> Any:
        """Return the values in random order, each used before any repeats."""
        return covering(values, self.shape, self.rng)

    def spread(self) -> Any:
        """Return numbers in [0, 1), stratified, so few numbers also include small and large ones."""
        count = math.prod(self.shape)
        if count > _MAX_COUNT:
            return self.rng.uniform(self.shape)
        found = self.rng.orders(1, count)[0] + self.rng.uniform([count])
        return (found / max(count, 1)).reshape(self.shape)

    def amplified(self, values: Any) -> Any:
        """Return floats of the type, half of which are enlarged to reach cutoffs inside the model."""
        values = np.asarray(values).astype(self.type.dtype)
        factor = _HALF.get(values.dtype.name, _FACTORS[self.mode])
        return (values * np.where(self.spread() < 0.5, factor, 1.0)).astype(values.dtype)

    def drawn(self) -> Any:
        """Return the tensor, in any mode."""
        if self.i.kind == "string":
            return self.covering(self._texts())
        mode = "bounded" if self.mode in AXES else self.mode
        if mode == KNOWN:
            mode = "near" if self.recipe.wide else "bounded"
        value = np.asarray(self._replace(mode=mode)._filled()).astype(self.type.dtype, copy=False)
        return np.asarray(np.clip(value, *BY_NAME["int32"].integers)) if self.i.int32 else value

    def _texts(self) -> Sequence[str]:
        """Return the strings to feed."""
        named, values = self.i.use.words, self.recipe.values
        if self.mode == KNOWN and named:
            return {"ones": named[:1], "zeros": named[-1:]}.get(values, named)
        strings = {"ones": ["a"], "zeros": [""], "extremes": ["", "text" * 50]}
        return strings.get(values, [*named, "a", "b", "text"])

    def _filled(self) -> Any:
        """Return the numbers of an input in a recipe."""
        i, recipe = self.i, self.recipe
        if recipe.wide:
            return self._wide()
        if i.is_mask and (recipe.mask or not recipe.drawn):
            return _mask(self.shape, recipe.mask or "ones")
        if recipe.drawn:
            return self._random(int(recipe.values == "uniform"))
        if self.type.kind in "iu" and self.mode != "bounded":
            return self._integers(0)
        if recipe.values == "extremes":
            return self.covering(self._extremes())
        one = min(1, i.bound - 1) if i.bound else 1
        return np.full(self.shape, one * (recipe.values == "ones"))

    # -- random numbers -----------------------------------------------------------------------------------

    def _random(self, variant: int) -> Any:
        """Return random numbers: normal (0) or uniform (1); some floats amplified in wide modes."""
        if self.mode not in WIDE:
            return self._usual(variant)
        values = self._replace(mode="bounded")._usual(variant)
        return self.amplified(values) if self.type.kind == "f" else values

    def _usual(self, variant: int) -> Any:
        i, shape, rng = self.i, self.shape, self.rng
        is_integer = self.type.kind in "iu"
        if i.kind == "bool":
            return np.full(shape, variant % 2 == 0) if self.is_single else rng.flags(shape)
        if i.is_mask and (i.use.mask or is_integer) and self.mode == "bounded":  # a single number cannot be padded
            return _mask(shape, "right" if variant else "ones")
        if is_integer:
            return self._integers(variant)
        if i.use.size:
            return rng.integers(1, 2 * _SMALL_SIZE >> variant, shape)
        return 2 * self.spread() - 1 if variant else rng.normal(shape)

    def _integers(self, variant: int) -> Any:
        i, shape, is_bounded = self.i, self.shape, self.mode == "bounded"
        if self.mode in _EQUAL:
            return np.full(shape, _EQUAL[self.mode])
        high = self._beyond_last(variant) if is_bounded else 2
        if decisive := [n for n in i.compared if is_bounded and 0 <= n < (i.bound or _NO_BOUND)]:
            return self._decisive(decisive, variant, high)
        if not shape:
            return np.array(min(high - 1, 1) if i.bound else 1 + variant)
        limits = _BYTES.get(i.kind, (0, high)) if is_bounded and not i.bound else (0, high)
        return self.rng.integers(*limits, shape)

    def _beyond_last(self, variant: int) -> int:
        """Return the exclusive bound of integers; indices that may repeat do so along any axis of the second case."""
        high = self.i.bound or 2
        return max(min(high, min(self.shape, default=0) // 2), 1) if self.i.use.repeats and variant else high

    def _decisive(self, compared: Sequence[int], variant: int, high: int) -> Any:
        """Return integers with some of `compared`, like a padding token, among further numbers."""
        if self.is_single:
            return np.full(self.shape, compared[variant % len(compared)])
        chosen = self.spread() < _SHARE
        return np.where(chosen, self.covering(compared), self.rng.integers(0, high, self.shape))

    def _extremes(self) -> Any:
        """Return the finite values of the case `extremes`: large, small, zero; integers within bounds."""
        kind, bound = self.type, self.i.bound
        if kind.kind == "b":
            return np.array([False, True])
        if kind.kind in "iu":
            if bound or kind.bits > 8:
                return np.array([0, (bound or _LARGE_INTEGER) - 1])
            low, high = kind.integers
            return np.array([low, 0, high])
        large, small = _SCALE_OF.get(kind.name, (4.0, 0.5) if kind.bits <= 8 else (100.0, 1e-6))
        return np.array([large, -large, small, -small, 0.0, -0.0, 1.0])

    # -- wide numbers, and numbers around breakpoints -----------------------------------------------------

    def _wide(self) -> Any:
        """Return numbers beyond breakpoints, as far as an input asks for them."""
        i, values = self.i, self.recipe.values
        if self.recipe.on_one_side and i.is_levelled:
            return self._beside(above=values == "above")
        if self.recipe.on_one_side or i.is_mask or not (i.asks or i.kind.startswith("float")):
            return self._replace(mode="bounded")._usual(0)
        turn = int(values == "edges")  # a single number lies above all breakpoints (0) or below (1)
        if self.type.kind == "f":
            return self._wide_floats(turn)
        return np.clip(self._wide_integers(turn), self.type.low, self.type.high)

    def _within(self, edges: Sequence[float]) -> list[float]:
        """Return the breakpoints that the type reaches, and those that are not finite."""
        largest = min(1e30 if self.type.high > 1e30 else 1e3, self.type.high)
        return [e for e in edges if not math.isfinite(e) or abs(e) < largest]

    def _beside(self, *, above: bool) -> Any:
        """Return floats all above, or below, every breakpoint."""
        met = [*filter(math.isfinite, self._within(self.i.use.edges))]
        distance = np.abs(self.amplified(self.rng.normal(self.shape)))
        return max(met, default=0.0) + distance if above else min(met, default=0.0) - distance

    def _wide_floats(self, turn: int) -> Any:
        """Return floats around breakpoints."""
        base, use = self.amplified(self.rng.normal(self.shape)), self.i.use
        met = self._within((*use.edges, *(use.whole if (self.mode, turn) == ("wide", 0) else ())))
        if not met:
            return base
        # Exact breakpoints get a separate case: noise of last bits explains any difference at a breakpoint.
        around = met if turn else [n for e in met for n in (_BESIDE * e if e else _BESIDE - 1).tolist()]
        if self.is_single:
            finite = [*filter(math.isfinite, around)] or around
            return np.full(self.shape, min(finite) if turn else max(finite))
        rank = self.spread()
        found = np.where(rank < _NEAR_SHARE, self.covering(around), base)
        return found if turn else self._with_close(found, rank, met)

    def _with_close(self, found: Any, rank: Any, met: Sequence[float]) -> Any:
        """Return the floats with numbers next to breakpoints at some of the elements. `rank`: see `spread`."""
        step = max(_NEXT, 4 * self.type.epsilon)
        close = [e * factor for e in met if e and math.isfinite(e) for factor in (1 - step, 1 + step)]
        if not close:
            return found
        return np.where((rank >= _NEAR_SHARE) & (rank < _CLOSE), self.covering(close), found)

    def _wide_integers(self, turn: int) -> Any:
        """Return integers of all magnitudes, and around breakpoints."""
        met = [round(e) for e in self.i.use.edges if abs(e) < _MAX_INTEGER]
        around = sorted({n for e in met for n in (e - 1, e, e + 1) if self.type.low <= n <= self.type.high})
        if self.i.use.role == SIZE:
            return self._sizes(turn, max([_TRIPS[self.mode], *(n for n in around if n <= LARGE_SIZE)]))
        if self.i.use.role == INDEX:
            return self._indices(turn, around)
        return self._magnitudes(turn, around)

    def _sizes(self, turn: int, high: int) -> Any:
        few = np.full(self.shape, 0 if turn else high)
        return few if self.is_single else self.rng.integers(1, high + 1, self.shape)

    def _magnitudes(self, turn: int, around: Sequence[int]) -> Any:
        """Return integers of all magnitudes, half of them near breakpoints."""
        use = self.i.use
        # Squares do not overflow, and are exact where floats are needed.
        most = math.isqrt(int(self.type.high))
        if use.floats and (self.mode == "near" or use.origin or not use.linear):
            most = min(most, _FLOATING)
        sign = -1 if self.type.low else 1
        origin = round(use.origin) if abs(use.origin) < _MAX_INTEGER else 0
        if self.is_single:
            beyond = max(map(abs, around), default=min(most, _FLOATING)) // 3 + 1
            beside = min(around, default=origin) + sign * beyond if turn else max(around, default=origin) + beyond
            return np.full(self.shape, beside)
        sizes = np.trunc(np.exp(self.spread() * math.log(most + 1)))
        sizes[sizes == sizes.max(initial=0)] = most
        return self._among(around, origin + np.where(self.spread() < 0.5, sizes, sign * sizes))

    def _indices(self, turn: int, around: Sequence[int]) -> Any:
        """Return indices beyond both ends if breakpoints handle them; within range in mode `near`."""
        rows = self.i.bound or 2
        if self.mode == "near":
            around = [n for n in around if -rows <= n < rows]
            low, high = (-rows if any(n < 0 for n in around) else 0), rows - 1
        else:
            low, high = min([_BEFORE, *around]), max([rows, *around]) + 1
        if self.is_single:
            return np.full(self.shape, low if turn else high)
        return self._among(around, self.rng.integers(low, high + 1, self.shape))

    def _among(self, around: Sequence[int], numbers: Any) -> Any:
        """Return numbers, half of which are replaced by numbers near breakpoints."""
        chosen = self.spread() < 0.5
        return np.where(chosen, self.covering(around), numbers) if around else numbers


def _mask(shape: list[int], kind: str) -> Any:
    """Return a mask with ones for tokens along the last axis.

    Rows have different padding, and at least a token each.
    """
    length = shape[-1]
    if kind == "ones" or not length:
        return np.ones(shape)
    rows = np.arange(int(np.prod(shape[:-1])))
    count = np.ones_like(rows) if kind == "one" else np.maximum(1, length - 1 - rows % length)
    at = np.arange(length)
    found = at >= length - count[:, None] if kind == "left" else at < count[:, None]
    return found.reshape(shape)


# -- all inputs -------------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class Case:
    """Values for a run."""

    name: str
    dims: dict[str, int] = field(default_factory=dict)
    feeds: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class InputMaker:
    """Makes feeds for the inputs of `plan`; `given` values are used unchanged. Raises Refused."""

    plan: Plan
    given: dict[str, Any]
    seed: int

    def fill(self, recipe: Recipe, dims: dict[str, int], mode: str = "bounded", *, daring: bool = False) -> Case:
        """Return a case of a recipe. mode: range of integers; daring: use longer sequences, and override integers."""
        rng = Draws(self.seed, _STREAMS.get(recipe.values, 0))
        most = _longest(self.plan, dims, mode)
        case = Case(recipe.name, dims, dict(self.given))
        turned = turned_flags(recipe, self.plan, self.given) if recipe.flags else ()
        for i in self.plan.left(self.given):
            if i.why:
                raise Refused(i.why)
            shape = i.sized(dims)
            if most is not None and says_lengths(i):
                case.feeds[i.name] = _lengths(most, shape).astype(BY_NAME[i.kind].dtype)
                continue
            tensor = _Tensor(_bounded(i, dims), shape, rng, recipe, mode)
            values = [tensor.drawn() for _ in range(2 + daring if i.sequence else 1)]
            if i.name in turned:  # a single boolean
                np.logical_not(values[0], out=values[0])
            case.feeds[i.name] = values if i.sequence else values[0]
        if recipe.override:
            self._override(case.feeds, daring=daring)
        return case

    def bytes(self, dims: dict[str, int]) -> int:
        """Return the bytes of the inputs made; of a string, bytes of its reference."""
        items = ((i, BY_NAME[i.kind or "string"].dtype.itemsize) for i in self.plan.left(self.given))
        return sum(math.prod(i.sized(dims)) * size * (3 if i.sequence else 1) for i, size in items)

    def _override(self, feeds: dict[str, Any], *, daring: bool) -> None:
        """Change overridable initializers: floats, with `daring` all."""
        rng = Draws(self.seed, 99)
        for initializer, value in self.plan.overridable.items():
            if element_kind(value) == "f":
                other = 0.9 + 0.2 * rng.uniform(value.shape)
                feeds[initializer] = np.where(value == 0, other - 1, value * other).astype(value.dtype)
            elif daring and element_kind(value) == "b":
                feeds[initializer] = ~value
            elif daring and element_kind(value) in "iu":
                feeds[initializer] = value + np.where(value < of(value.dtype).high, 1, -1).astype(value.dtype)


def _bounded(i: InputSpec, dims: Mapping[str, int]) -> InputSpec:
    """Return the input with the smallest size of an indexed axis as its bound."""
    rows = [dims.get(r, 0) or 1 for r in i.use.rows if isinstance(r, str)]
    return replace(i, bound=min([*rows, i.bound or rows[0]])) if rows else i


def _lengths(most: int, shape: Sequence[int]) -> Any:
    """Return lengths in descending order, from `most`."""
    return np.maximum(1, most - np.arange(math.prod(shape)) * max(1, most // _STEP)).reshape(shape)


def says_lengths(i: InputSpec) -> bool:
    """Return whether an input may hold lengths.

    Conditions: 32- or 64-bit integers, at most a vector, neither an index nor compared.
    """
    return i.kind in _LENGTHS and len(i.shape) < 2 and not (i.sequence or i.bound or i.compared or i.is_mask)


def _longest(plan: Plan, dims: Mapping[str, int], mode: str) -> int | None:
    """Return the size of the sequence axis in the first batched float input; None in modes without lengths."""
    if mode not in AXES:
        return None
    shapes = [i.shape for i in plan.inputs if i.kind.startswith("float") and len(i.shape) > 1]
    size = shapes[0][AXES[mode]] if shapes else None
    return dims.get(size) if isinstance(size, str) else size
