"""Values for the inputs of a plan, determined by the seed: random, wide, and around breakpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from onnxopt.proto.element_types import BY_NAME, TYPES, element_kind, of
from onnxopt.proto.element_types import is_float as is_float_type
from onnxopt.verification.inputs.cases import Recipe, turned_flags
from onnxopt.verification.inputs.plan import LARGE_SIZE, InputSpec, Plan
from onnxopt.verification.inputs.uses import INDEX, SIZE
from onnxopt.verification.rounding import Draws
from onnxopt.worker.serving import Refused

# -- wide numbers, and numbers around breakpoints ---------------------------------------------------------

# Attempts for the case `wide`: beyond all breakpoints, then within indexed sizes, with small sizes.
WIDE: Final = ("wide", "near")
_FACTORS: Final = {"wide": 8.0, "near": 3.0}
_NEAR_SHARE: Final = 0.75  # of elements near a breakpoint, if any
_FLOATING: Final = 1000  # as floats: large enough for a time step, small enough for the sine to be accurate
_TRIPS: Final = {"wide": 5, "near": 3}
_BEFORE: Final = -3  # an index counted from the end
_MAX_COUNT: Final = 4096
_MAX_INTEGER: Final = 2**62
_HALF: Final = {"float16": 4.0}
_BESIDE: Final = np.array([0.75, 1.25, 2.0])  # times a breakpoint
_CLOSE: Final = 0.875  # of elements near a breakpoint, or extremely close
_NEXT: Final = 2.0**-13  # relative; closer than a narrower type can distinguish


def beside(i: InputSpec, shape: Sequence[int], rng: Draws, mode: str, *, above: bool) -> Any:
    """Return floats all above, or below, every breakpoint."""
    met = [*filter(math.isfinite, _within(i.kind, i.use.edges))]
    distance = np.abs(amplified(rng.normal(shape).astype(_dtype(i.kind)), rng, mode))
    return max(met, default=0.0) + distance if above else min(met, default=0.0) - distance


def covering(values: Sequence[Any], shape: Sequence[int], rng: Draws) -> Any:
    """Return the values in random order, each used before any repeats."""
    found = np.array(values, object if isinstance(values[0], str) else None)
    count = math.prod(shape)
    order = rng.orders(-(-count // len(found)) or 1, len(found))
    return found[order.reshape(-1)[:count]].reshape(shape)


def spread(shape: Sequence[int], rng: Draws) -> Any:
    """Return numbers in [0, 1), stratified, so few numbers also include small and large ones."""
    count = math.prod(shape)
    if count > _MAX_COUNT:
        return rng.uniform(shape)
    return ((rng.orders(1, count)[0] + rng.uniform([count])) / max(count, 1)).reshape(shape)


def amplified(values: Any, rng: Draws, mode: str) -> Any:
    """Return floats, half of which are enlarged to reach cutoffs inside the model."""
    factor = _HALF.get(values.dtype.name, _FACTORS[mode])
    return (values * np.where(spread(values.shape, rng) < 0.5, factor, 1.0)).astype(values.dtype)


def _wide_floats(i: InputSpec, shape: Sequence[int], rng: Draws, turn: int, mode: str) -> Any:
    """Return floats around breakpoints. `turn`: a single number lies above all of them (0) or below (1)."""
    base = amplified(rng.normal(shape).astype(_dtype(i.kind)), rng, mode)
    met = _within(i.kind, (*i.use.edges, *(i.use.whole if (mode, turn) == ("wide", 0) else ())))
    if not met:
        return base
    # Exact breakpoints get a separate case: noise of last bits explains any difference at a breakpoint.
    around = met if turn else [n for e in met for n in (_BESIDE * e if e else _BESIDE - 1).tolist()]
    if math.prod(shape) == 1:
        finite = [*filter(math.isfinite, around)] or around
        return np.full(shape, min(finite) if turn else max(finite))
    rank = spread(shape, rng)
    found = np.where(rank < _NEAR_SHARE, covering(around, shape, rng), base)
    close = _close(i.kind, met)
    if turn or not close:
        return found
    return np.where((rank >= _NEAR_SHARE) & (rank < _CLOSE), covering(close, shape, rng), found)


def _within(kind: str, edges: Sequence[float]) -> list[float]:
    """Return the breakpoints that a type reaches, and those that are not finite."""
    return [e for e in edges if not math.isfinite(e) or abs(e) < _largest(kind)]


def _close(kind: str, edges: Sequence[float]) -> list[float]:
    """Return the numbers extremely close to finite breakpoints except 0, on both sides."""
    step = max(_NEXT, 4 * BY_NAME[kind].epsilon)
    return [e * factor for e in edges if e and math.isfinite(e) for factor in (1 - step, 1 + step)]


def _largest(kind: str) -> float:
    return min(1e30 if BY_NAME[kind].high > 1e30 else 1e3, BY_NAME[kind].high)


def _wide_integers(i: InputSpec, shape: Sequence[int], rng: Draws, turn: int, mode: str, limits: Any) -> Any:
    """Return integers of all magnitudes, and around breakpoints. `turn`: see `_wide_floats`."""
    met = [round(e) for e in i.use.edges if abs(e) < _MAX_INTEGER]
    around = sorted({n for e in met for n in (e - 1, e, e + 1) if limits.low <= n <= limits.high})
    if i.use.role == SIZE:
        return _trips(shape, rng, turn, max([_TRIPS[mode], *(n for n in around if n <= LARGE_SIZE)]))
    if i.use.role == INDEX:
        return _indices(i, shape, rng, turn, mode, around)
    return _magnitudes(i, shape, rng, turn, mode, limits, around)


def _trips(shape: Sequence[int], rng: Draws, turn: int, high: int) -> Any:
    if math.prod(shape) == 1:
        return np.full(shape, 0 if turn else high)
    return rng.integers(1, high + 1, shape)


def _magnitudes(
    i: InputSpec, shape: Sequence[int], rng: Draws, turn: int, mode: str, limits: Any, around: Sequence[int]
) -> Any:
    """Return integers of all magnitudes, half of them near breakpoints."""
    # Squares do not overflow, and are exact where floats are needed.
    most = math.isqrt(int(limits.high))
    if i.use.floats and (mode == "near" or i.use.origin or not i.use.linear):
        most = min(most, _FLOATING)
    sign = -1 if limits.low else 1
    origin = round(i.use.origin) if abs(i.use.origin) < _MAX_INTEGER else 0
    if math.prod(shape) == 1:
        beyond = max(map(abs, around), default=min(most, _FLOATING)) // 3 + 1
        beside = min(around, default=origin) + sign * beyond if turn else max(around, default=origin) + beyond
        return np.full(shape, beside)
    sizes = np.trunc(np.exp(spread(shape, rng) * math.log(most + 1)))
    sizes[sizes == sizes.max(initial=0)] = most
    return _among(around, origin + np.where(spread(shape, rng) < 0.5, sizes, sign * sizes), rng)


def _among(around: Sequence[int], numbers: Any, rng: Draws) -> Any:
    """Return numbers, half of which are replaced by numbers near breakpoints."""
    chosen = spread(numbers.shape, rng) < 0.5
    return np.where(chosen, covering(around, numbers.shape, rng), numbers) if around else numbers


def _indices(i: InputSpec, shape: Sequence[int], rng: Draws, turn: int, mode: str, around: Sequence[int]) -> Any:
    """Return indices beyond both ends if breakpoints handle them; within range in mode `near`."""
    rows = i.bound or 2
    if mode == "near":
        around = [n for n in around if -rows <= n < rows]
        low, high = (-rows if any(n < 0 for n in around) else 0), rows - 1
    else:
        low, high = min([_BEFORE, *around]), max([rows, *around]) + 1
    if math.prod(shape) == 1:
        return np.full(shape, low if turn else high)
    return _among(around, rng.integers(low, high + 1, shape), rng)


# -- all inputs -------------------------------------------------------------------------------------------

# Ranges of integers, tried in this order until the original runs.
MODES: Final = ("bounded", "binary", "zeros", "ones")
# Tried last: only strings named in the model, which may accept no others.
KNOWN: Final = "known"
# Axis of sequences, in modes tried after those without lengths: behind the batch, or last.
AXES: Final = {"lengths": 1, "last lengths": -1}
_LENGTHS: Final = ("int32", "int64")
_STEP: Final = 3  # each sequence is shorter by a third of the longest


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
        """Return a case of a recipe.

        mode: range of integers; daring: use longer sequences, and override integers.
        """
        rng = Draws(self.seed, _STREAMS.get(recipe.values, 0))
        most = _longest(self.plan, dims, mode)
        case = Case(recipe.name, dims, dict(self.given))
        turned = turned_flags(recipe, self.plan, self.given) if recipe.flags else ()
        for i in self.plan.left(self.given):
            if i.why:
                raise Refused(i.why)
            shape = i.sized(dims)
            if most is not None and says_lengths(i):
                case.feeds[i.name] = _lengths(most, shape).astype(_dtype(i.kind))
                continue
            spec = _bounded(i, dims)
            values = [_drawn(spec, shape, rng, recipe, mode) for _ in range(2 + daring if i.sequence else 1)]
            if i.name in turned:  # a single boolean
                np.logical_not(values[0], out=values[0])
            case.feeds[i.name] = values if i.sequence else values[0]
        if recipe.override:
            self._override(case.feeds, daring=daring)
        return case

    def bytes(self, dims: dict[str, int]) -> int:
        """Return the bytes of the inputs made; of a string, bytes of its reference."""
        items = ((i, _dtype(i.kind or "string").itemsize) for i in self.plan.left(self.given))
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


_STREAMS: Final = {"uniform": 1, "wide": 2, "edges": 3, "another": 4, "below": 5, "above": 6}
_SHARE: Final = 0.25  # of elements set to comparands
_EQUAL: Final = {"zeros": 0.0, "ones": 1.0}  # all numbers of these modes
_NO_BOUND: Final = 1 << 31
_SMALL_SIZE: Final = 8
# Images or quantized data, hardly sizes or indices.
_BYTES: Final = {t.name: (int(t.low), int(t.high) + 1) for t in TYPES if t.kind in "iu" and t.bits <= 8}


def _tensor(i: InputSpec, shape: list[int], rng: Draws, variant: int, mode: str) -> Any:
    if i.kind == "bool":
        return rng.flags(shape) if math.prod(shape) != 1 else np.full(shape, variant % 2 == 0)
    is_integer = element_kind(_dtype(i.kind)) in "iu"
    if i.is_mask and (i.use.mask or is_integer) and mode == "bounded":  # a single number cannot be padded
        return _mask(shape, "right" if variant else "ones")
    return _integers(i, shape, rng, variant, mode) if is_integer else _floats(i, shape, rng, variant)


def _floats(i: InputSpec, shape: list[int], rng: Draws, variant: int) -> Any:
    if i.use.size:
        return rng.integers(1, 2 * _SMALL_SIZE >> variant, shape)
    return rng.normal(shape) if variant == 0 else 2 * spread(shape, rng) - 1


def _integers(i: InputSpec, shape: list[int], rng: Draws, variant: int, mode: str) -> Any:
    if mode in _EQUAL:
        return np.full(shape, _EQUAL[mode])
    high = i.bound if mode == "bounded" and i.bound else 2
    if decisive := _decisive(i, mode):
        return _among_comparands(decisive, shape, rng, variant, high)
    if not shape:
        return np.array(min(high - 1, 1) if i.bound else 1 + variant)
    return rng.integers(*(_BYTES.get(i.kind, (0, high)) if mode == "bounded" and not i.bound else (0, high)), shape)


def _decisive(i: InputSpec, mode: str) -> list[int]:
    """Return the comparands in range."""
    return [n for n in i.compared if mode == "bounded" and 0 <= n < (i.bound or _NO_BOUND)]


def _among_comparands(decisive: Sequence[int], shape: list[int], rng: Draws, variant: int, high: int) -> Any:
    """Return a comparand as a single number, else comparands, like a padding token, among further numbers."""
    if math.prod(shape) == 1:
        return np.full(shape, decisive[variant % len(decisive)])
    chosen = spread(shape, rng) < _SHARE
    return np.where(chosen, covering(decisive, shape, rng), rng.integers(0, high, shape))


def _drawn(i: InputSpec, shape: list[int], rng: Draws, recipe: Recipe, mode: str) -> Any:
    """Return the tensor of an input, in any mode."""
    if i.kind == "string":
        return covering(_texts(i.use.words, recipe, is_known=mode == KNOWN), shape, rng)
    if mode == KNOWN:
        mode = "near" if recipe.wide else "bounded"
    value = np.asarray(_filled(i, shape, rng, recipe, "bounded" if mode in AXES else mode))
    value = value.astype(_dtype(i.kind), copy=False)
    return np.asarray(np.clip(value, *BY_NAME["int32"].integers)) if i.int32 else value


def _texts(named: Sequence[str], recipe: Recipe, *, is_known: bool) -> Sequence[str]:
    """Return the strings to feed. `named`: in the model; `is_known`: no others."""
    if is_known and named:
        return {"ones": named[:1], "zeros": named[-1:]}.get(recipe.values, named)
    strings = {"ones": ["a"], "zeros": [""], "extremes": ["", "text" * 50]}
    return strings.get(recipe.values, [*named, "a", "b", "text"])


def _filled(i: InputSpec, shape: list[int], rng: Draws, recipe: Recipe, mode: str) -> Any:
    """Return the numbers of an input in a recipe."""
    if recipe.wide:
        return _wide(i, shape, rng, recipe, mode)
    if i.is_mask and (recipe.mask or not recipe.drawn):
        return _mask(shape, recipe.mask or "ones")
    if recipe.drawn:
        return _random(i, shape, rng, recipe, mode)
    dtype = _dtype(i.kind)
    if element_kind(dtype) in "iu" and mode != "bounded":
        return _integers(i, shape, rng, 0, mode)
    if recipe.values == "extremes":
        return covering(_extremes(i, dtype), shape, rng)
    one = min(1, i.bound - 1) if i.bound else 1
    return np.full(shape, one * (recipe.values == "ones"))


def _random(i: InputSpec, shape: list[int], rng: Draws, recipe: Recipe, mode: str) -> Any:
    """Return random numbers, some floats amplified in wide modes."""
    if mode not in WIDE:
        return _tensor(i, shape, rng, int(recipe.values == "uniform"), mode)
    values, dtype = _tensor(i, shape, rng, int(recipe.values == "uniform"), "bounded"), _dtype(i.kind)
    return amplified(np.asarray(values).astype(dtype), rng, mode) if is_float_type(dtype) else values


def _wide(i: InputSpec, shape: list[int], rng: Draws, recipe: Recipe, mode: str) -> Any:
    """Return numbers beyond breakpoints, as far as an input asks for them."""
    if recipe.on_one_side and i.is_levelled:
        return beside(i, shape, rng, mode, above=recipe.values == "above")
    if recipe.on_one_side or i.is_mask or not (i.asks or i.kind.startswith("float")):
        return _tensor(i, shape, rng, 0, "bounded")
    turn, limits = int(recipe.values == "edges"), of(_dtype(i.kind))
    if limits.kind == "f":
        return _wide_floats(i, shape, rng, turn, mode)
    return np.clip(_wide_integers(i, shape, rng, turn, mode, limits), limits.low, limits.high)


def _extremes(i: InputSpec, dtype: Any) -> Any:
    """Return the finite values of the case `extremes`: large, small, zero; integers within bounds."""
    if element_kind(dtype) == "b":
        return np.array([False, True])
    if element_kind(dtype) in "iu":
        if i.bound or dtype.itemsize > 1:
            return np.array([0, (i.bound or _LARGE_INTEGER) - 1])
        low, high = of(dtype).integers
        return np.array([low, 0, high])
    large, small = _SCALE_OF.get(dtype.name, (4.0, 0.5) if dtype.itemsize == 1 else (100.0, 1e-6))
    return np.array([large, -large, small, -small, 0.0, -0.0, 1.0])


_LARGE_INTEGER: Final = 101  # may be used as a size
# Large enough for exp to overflow, small enough for intermediate rounding to stay below the tolerance of saturated
# outputs. Squares of float16 must not overflow, or every output is NaN.
_SCALE_OF: Final = {"float16": (32.0, 1e-4)}


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


def _dtype(name: str) -> Any:
    return BY_NAME[name].dtype


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
