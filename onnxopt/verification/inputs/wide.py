"""Informative numbers: wide numbers of both signs, and numbers around breakpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.proto.element_types import BY_NAME, of
from onnxopt.proto.element_types import is_float as is_float_type
from onnxopt.verification.inputs.plan import LARGE_SIZE, InputSpec
from onnxopt.verification.inputs.uses import INDEX, SIZE

if TYPE_CHECKING:
    from onnxopt.verification.numbers.draws import Draws

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


def wide(i: InputSpec, shape: Sequence[int], rng: Draws, turn: int, mode: str, dtype: Any) -> Any:
    """Return values of an input. `turn`: a single number lies above all breakpoints (0) or below (1)."""
    if is_float_type(dtype):
        return _wide_floats(i, shape, rng, turn, mode).astype(dtype)
    limits = of(dtype)
    return np.asarray(np.clip(_wide_integers(i, shape, rng, turn, mode, limits), limits.low, limits.high)).astype(dtype)


def beside(i: InputSpec, shape: Sequence[int], rng: Draws, mode: str, *, above: bool) -> Any:
    """Return floats all above, or below, every breakpoint."""
    met = [e for e in i.use.edges if math.isfinite(e) and abs(e) < _largest(i.kind)]
    distance = np.abs(amplified(rng.normal(shape).astype(BY_NAME[i.kind].dtype), rng, mode))
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
    base = amplified(rng.normal(shape).astype(BY_NAME[i.kind].dtype), rng, mode)
    every = (*i.use.edges, *(i.use.whole if mode == "wide" and not turn else ()))
    met = [e for e in every if not math.isfinite(e) or abs(e) < _largest(i.kind)]
    if not met:
        return base
    # Exact breakpoints get a separate case: noise of last bits explains any difference at a breakpoint.
    around = met if turn else [n for e in met for n in (_BESIDE * e if e else _BESIDE - 1).tolist()]
    if math.prod(shape) == 1:
        finite = [n for n in around if math.isfinite(n)] or around
        return np.full(shape, min(finite) if turn else max(finite))
    rank = spread(shape, rng)
    found = np.where(rank < _NEAR_SHARE, covering(around, shape, rng), base)
    close = [
        e * (1 + sign * max(_NEXT, 4 * BY_NAME[i.kind].epsilon))
        for e in met
        if e and math.isfinite(e)
        for sign in (-1, 1)
    ]
    if turn or not close:
        return found
    return np.where((rank >= _NEAR_SHARE) & (rank < _CLOSE), covering(close, shape, rng), found)


def _largest(kind: str) -> float:
    return min(1e30 if BY_NAME[kind].high > 1e30 else 1e3, BY_NAME[kind].high)


def _wide_integers(i: InputSpec, shape: Sequence[int], rng: Draws, turn: int, mode: str, limits: Any) -> Any:
    met = [round(e) for e in i.use.edges if abs(e) < _MAX_INTEGER]
    around = sorted({n for e in met for n in (e - 1, e, e + 1) if limits.low <= n <= limits.high})
    single = math.prod(shape) == 1
    if i.use.role == SIZE:
        high = max([_TRIPS[mode], *(n for n in around if n <= LARGE_SIZE)])
        return np.full(shape, 0 if turn else high) if single else rng.integers(1, high + 1, shape)
    if i.use.role == INDEX:
        return _indices(i, shape, rng, turn, mode, around)
    most = math.isqrt(int(limits.high))  # squares do not overflow
    most = min(most, _FLOATING) if i.use.floats and (mode == "near" or i.use.origin or not i.use.linear) else most
    sign = -1 if limits.low else 1
    origin = round(i.use.origin) if abs(i.use.origin) < _MAX_INTEGER else 0
    if single:
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
