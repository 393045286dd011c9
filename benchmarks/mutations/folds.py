"""A BatchNormalization folded into weights, the formula wrong: y = (conv - mean) * factor + shift."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from mutations.place import Edit, Place


@dataclass(frozen=True)
class _Fold:
    """The statistics that were folded into the weights `w` and the bias `b`, in float64; channels along `axis`."""

    place: Place
    w: Any
    b: Any
    axis: int
    scale: Any
    shift: Any
    mean: Any
    var: Any
    epsilon: float

    def again(self, what: str, ratio: Any = 1.0, more: Any = 0.0) -> Edit | None:
        """Returns the fold with factors multiplied by `ratio`, and `more` added to the bias."""
        along = np.reshape(ratio, [-1 if i == self.axis else 1 for i in range(self.w.ndim)])
        bias = (self.b - self.shift) * ratio + self.shift + more
        return self.place.with_constants({1: self.w * along, 2: bias.astype(self.place.array(1).dtype)}, what)


def _fold(place: Place) -> _Fold | None:
    """Returns the fold of a node that computes a BatchNormalization of the original, from constants."""
    was = place.original.makers.get(place.node.output[0])
    axis = weight_axis(place)
    if was is None or was.op_type != "BatchNormalization" or axis is None or place.op == "MatMul":
        return None
    statistics = [place.original.constants.get(name) for name in was.input[1:5]]
    w, b = place.floats(1), place.floats(2) if place.input(2) else 0.0
    if w is None or b is None or any(t is None for t in statistics):
        return None
    scale, shift, mean, var = (numpy_helper.to_array(t).astype(np.float64) for t in statistics if t is not None)
    if len(scale) != w.shape[axis]:
        return None
    epsilon = next((helper.get_attribute_value(a) for a in was.attribute if a.name == "epsilon"), 1e-5)
    return _Fold(place, w.astype(np.float64), np.float64(b), axis, scale, shift, mean, var, epsilon)


def weight_axis(place: Place) -> int | None:
    """Returns the axis of the constant second input with one slice per channel of the result."""
    w = place.array(1)
    if w is None or w.ndim < 2:
        return None
    if place.op == "Conv":
        return 0
    if place.op == "ConvTranspose":
        return 1 if place.attribute("group", 1) == 1 else None
    if place.op == "Gemm":
        return 0 if place.attribute("transB", 0) else 1
    return w.ndim - 1 if place.op == "MatMul" else None


def epsilon_of_fold_left_out(place: Place, _: Random) -> Edit | None:
    fold = _fold(place)
    if fold is None or not fold.var.all():
        return None
    return fold.again("the epsilon is left out", np.sqrt((fold.var + fold.epsilon) / fold.var))


def epsilon_of_fold_too_large(place: Place, _: Random) -> Edit | None:
    fold = _fold(place)
    if fold is None:
        return None
    ratio = np.sqrt((fold.var + fold.epsilon) / (fold.var + 100 * fold.epsilon))
    return fold.again("the epsilon is 100 times too large", ratio)


def sign_of_mean(place: Place, _: Random) -> Edit | None:
    fold = _fold(place)
    if fold is None:
        return None
    factor = fold.scale / np.sqrt(fold.var + fold.epsilon)
    return fold.again("the mean is added, not subtracted", more=2 * fold.mean * factor)


def shift_of_fold_left_out(place: Place, _: Random) -> Edit | None:
    fold = _fold(place)
    return None if fold is None else fold.again("the shift is left out", more=-fold.shift)


def variance_not_rooted(place: Place, _: Random) -> Edit | None:
    fold = _fold(place)
    return None if fold is None else fold.again("the variance has no root", 1 / np.sqrt(fold.var + fold.epsilon))
