"""Constants with wrong numbers in them: weights, biases, scales, bounds, indices."""

from __future__ import annotations

from random import Random
from typing import Any, Final

import numpy as np
from onnx import helper, numpy_helper

from mutations.folds import weight_axis
from mutations.place import Edit, Place

BIASED: Final = (
    *("Conv", "ConvTranspose", "Gemm", "LayerNormalization", "BatchNormalization", "InstanceNormalization"),
    "GroupNormalization",
)
SCALED: Final = ("LayerNormalization", "RMSNormalization", *BIASED[4:])
# Inputs that are integers with a meaning of their own, which index_off_by_one leaves to others.
SIZES: Final = {"Reshape": (1,), "Expand": (1,), "Loop": (0,), "Split": (1,), "Tile": (1,), "TopK": (1,)}


def _pick(place: Place, rng: Random, fits: Any) -> tuple[int, Any]:
    """One of the constant inputs that fit, and its array; (-1, None) if there is none."""
    arrays = {i: place.array(i) for i in range(len(place.node.input))}
    found = [i for i, a in arrays.items() if a is not None and fits(i, a)]
    i = rng.choice(found) if found else -1
    return i, arrays.get(i)


def _channels(place: Place) -> tuple[int, Any, int]:
    """(input, array, axis) of constants with one slice for each channel; axis -1 and None where there are none."""
    if place.op in SCALED and place.floats(1) is not None:
        return 1, place.floats(1), place.floats(1).ndim - 1
    axis = weight_axis(place)
    w = place.floats(1)
    if axis is None or w is None:
        for i in (0, 1) if place.op in ("Mul", "Div") else ():
            vector = place.floats(i)
            if vector is not None and vector.size > 1 and vector.size == max(vector.shape):
                return i, vector, vector.shape.index(vector.size)
        return -1, None, -1
    return 1, w, axis


def _slice(array: Any, axis: int, k: int) -> tuple[Any, ...]:
    return tuple(k if a == axis else slice(None) for a in range(array.ndim))


def one_channel_scaled(place: Place, rng: Random) -> Edit | None:
    i, w, axis = _channels(place)
    if w is None:
        return None
    w, k = w.copy(), rng.randrange(w.shape[axis])
    w[_slice(w, axis, k)] *= 1.01
    return place.with_constants({i: w}, f"channel {k} of the weights is 1 % larger")


def channels_rolled(place: Place, _: Random) -> Edit | None:
    i, w, axis = _channels(place)
    return None if w is None else place.with_constants({i: np.roll(w, 1, axis)}, "the channels are rolled by one")


def two_channels_swapped(place: Place, rng: Random) -> Edit | None:
    i, w, axis = _channels(place)
    if w is None or w.shape[axis] < 2:
        return None
    j, k = rng.sample(range(w.shape[axis]), 2)
    w = w.copy()
    w[_slice(w, axis, j)], w[_slice(w, axis, k)] = w[_slice(w, axis, k)].copy(), w[_slice(w, axis, j)].copy()
    return place.with_constants({i: w}, f"channels {j} and {k} are swapped")


def _bias(place: Place) -> tuple[int, Any]:
    if place.op in BIASED:
        return 2, place.floats(2)
    for i in (0, 1) if place.op == "Add" else ():
        vector = place.floats(i)
        if vector is not None and vector.size > 1 and vector.size == max(vector.shape):
            return i, vector
    return -1, None


def bias_dropped(place: Place, _: Random) -> Edit | None:
    i, b = _bias(place)
    return None if b is None else place.with_constants({i: np.zeros_like(b)}, "the bias is zero")


def bias_of_one_channel_zero(place: Place, rng: Random) -> Edit | None:
    i, b = _bias(place)
    if b is None or not b.any():
        return None
    flat, k = b.copy().reshape(-1), rng.choice(np.flatnonzero(b).tolist())
    flat[k] = 0
    return place.with_constants({i: flat.reshape(b.shape)}, f"the bias of channel {k} is zero")


def one_weight_changed(place: Place, rng: Random) -> Edit | None:
    """By as much as weights differ from each other."""
    i, w = _pick(place, rng, lambda i, a: a.size > 8 and (a.dtype.kind == "f" or a.dtype.itemsize == 1))
    if w is None or w.dtype.kind not in "fiu":
        return None
    flat, k = w.copy().reshape(-1), rng.randrange(w.size)
    if w.dtype.kind == "f":
        spread = float(flat.astype(np.float64).std())
        flat[k] += spread if np.isfinite(spread) and spread else 1.0
    else:
        flat[k] ^= 16
    return place.with_constants({i: flat.reshape(w.shape)}, f"element {k} of input {i} is another")


def factor_off(place: Place, rng: Random) -> Edit | None:
    """A number that everything is multiplied with, or divided by."""
    if place.op not in ("Mul", "Div"):
        return None
    i, a = _pick(place, rng, lambda i, a: a.size == 1 and a.dtype.kind == "f")
    return None if a is None else place.with_constants({i: a * 1.01}, "the factor is 1 % larger")


def exponent_changed(place: Place, _: Random) -> Edit | None:
    a = place.array(1) if place.op == "Pow" else None
    return None if a is None else place.with_constants({1: a + 1}, "the exponent is larger by one")


def clip_bound_changed(place: Place, rng: Random) -> Edit | None:
    if place.op != "Clip":
        return None
    i, a = _pick(place, rng, lambda i, a: i > 0)
    if a is None:
        return None
    new = a * 0.5 if a else np.ones_like(a) / 8
    return place.with_constants({i: new}, f"the {('lower', 'upper')[i - 1]} bound is {float(new):g}, not {float(a):g}")


def index_off_by_one(place: Place, rng: Random) -> Edit | None:
    """Where a Gather or Slice begins or ends, and other integers; not sizes, nor "as far as it goes"."""
    axes = (1,) if place.op.startswith(("Reduce", "Squeeze", "Unsqueeze")) else ()
    others = (*SIZES.get(place.op, ()), *axes)
    i, a = _pick(place, rng, lambda i, a: i not in others and a.dtype in (np.int64, np.int32) and _near(a))
    if a is None:
        return None
    flat, k = a.copy().reshape(-1), rng.choice(_near(a))
    old = int(flat[k])
    flat[k] = old - 1 if old > 0 and rng.random() < 0.5 else old + 1
    return place.with_constants({i: flat.reshape(a.shape)}, f"number {k} of input {i} is {flat[k]}, not {old}")


def _near(array: Any) -> list[int]:
    return [int(k) for k in np.flatnonzero(np.abs(array.astype(np.float64)) < 1 << 30)]


def quantization_scale_off(place: Place, rng: Random) -> Edit | None:
    if place.op not in ("QuantizeLinear", "DequantizeLinear"):
        return None
    scale = place.floats(1)
    if scale is None:
        return None
    flat = scale.copy().reshape(-1)
    k = rng.randrange(flat.size)
    flat[k] *= 1.01
    return place.with_constants({1: flat.reshape(scale.shape)}, f"scale {k} is 1 % larger")


def zero_point_off_by_one(place: Place, rng: Random) -> Edit | None:
    i = {"QuantizeLinear": 2, "DequantizeLinear": 2, "MatMulInteger": 2, "ConvInteger": 2}.get(place.op, -1)
    zero = place.array(i) if i > 0 else None
    if zero is None or zero.dtype not in (np.int8, np.uint8):
        return None
    flat = zero.copy().reshape(-1)
    k = rng.randrange(flat.size)
    old = int(flat[k])
    flat[k] = old + 1 if old < 100 else old - 1
    return place.with_constants({i: flat.reshape(zero.shape)}, f"zero point {k} is {flat[k]}")


def trip_count_off_by_one(place: Place, _: Random) -> Edit | None:
    if place.op != "Loop" or not place.input(0):
        return None
    one, fewer, loop = numpy_helper.from_array(np.int64(1), "broken_one"), "broken_trips", place.copy()
    loop.input[0] = fewer
    return Edit([helper.make_node("Sub", [place.input(0), one.name], [fewer]), loop], "one trip fewer", [one])


def neighbour_constant(place: Place, rng: Random) -> Edit | None:
    """The nearest other constant of the same type and shape, as a wrong name or a wrong merge would read."""
    names = list(place.known.constants)
    at = {name: k for k, name in enumerate(names)}
    i, a = _pick(place, rng, lambda i, a: a.size)
    if a is None:
        return None
    near = sorted(at, key=lambda name: abs(at[name] - at[place.input(i)]))
    mine = place.known.constants[place.input(i)]
    for name in near[1:200]:
        other = place.known.constants[name]
        if (other.data_type, other.dims) != (mine.data_type, mine.dims):
            continue
        if not np.array_equal(numpy_helper.to_array(other), a):
            inputs = [name if k == i else old for k, old in enumerate(place.node.input)]
            return place.with_inputs(inputs, f"input {i} is `{name}`, not `{place.input(i)}`")
    return None
