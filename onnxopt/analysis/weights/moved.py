"""Broadcastable factors, moved in front of an operator that moves elements."""

from __future__ import annotations

from math import prod
from typing import Final

import numpy as np

from onnxopt.analysis.shapes.sizes import order_of
from onnxopt.graph.node import Node
from onnxopt.graph.value import Shape
from onnxopt.operators import SAME_ORDER
from onnxopt.proto.messages import Array

LARGE: Final = 1 << 20  # elements of a factor


def narrowed(factor: Array) -> Array:
    """Return the factor with constant axes reduced to size 1 and leading ones dropped; an empty factor is unchanged."""
    if not factor.size:
        return factor
    for axis in [i for i, d in enumerate(factor.shape) if d > 1]:
        first = factor.take([0], axis)
        if (factor == first).all():
            factor = first
    varying = [i for i, d in enumerate(factor.shape) if d > 1]
    return factor.reshape(factor.shape[varying[0] :]) if varying else factor.reshape(())


def fits(factor: Array, shape: Shape) -> bool:
    """Whether the factor broadcasts to the shape without widening."""
    return factor.ndim <= len(shape) and all(f in (1, d) for f, d in zip(factor.shape[::-1], shape[::-1]))


def before_move(node: Node, factor: Array, given: Shape, made: Shape) -> Array | None:
    """Return the factor for the input of `node` (shape `given`) equal to `factor` on its result (shape `made`), or
    None."""
    if node.op == "Transpose":
        back = np.argsort(order_of(node, len(given)))
        return factor.reshape((1,) * (len(given) - factor.ndim) + factor.shape).transpose(back)
    return _regrouped(factor, given, made) if node.op in SAME_ORDER else None


def _regrouped(factor: Array, given: Shape, made: Shape) -> Array | None:
    """Return `factor` of shape `made` for the same elements in shape `given`, or None.

    The factor repeats with the block of the last axes, and along the last axes of `given` filled by whole blocks.
    """
    numbers = [d for d in made[len(made) - factor.ndim :] if isinstance(d, int)]
    if len(numbers) < factor.ndim or not 0 < prod(numbers) <= LARGE:
        return None
    block = np.broadcast_to(factor, numbers).reshape(-1)
    size = 1
    for axis in range(len(given))[::-1]:
        d = given[axis]
        if not isinstance(d, int) or not 0 < size * d <= LARGE:
            return None
        size *= d
        if size % block.size == 0:
            return np.tile(block, size // block.size).reshape([int(n) for n in given[axis:] if n is not None])
    return None
