"""A factor that broadcasts to a tensor, seen from before its elements were moved."""

from __future__ import annotations

from math import prod
from typing import Final

import numpy as np

from onnxopt.analysis.shapes.sizes import order_of
from onnxopt.graph.node import Node
from onnxopt.graph.value import Shape
from onnxopt.operators import SAME_ORDER
from onnxopt.protos import Array

LARGE: Final = 1 << 20  # elements of a factor


def narrowed(factor: Array) -> Array:
    """Axes along which nothing changes have one element, and none of these is in front. What has no elements
    stays."""
    if not factor.size:
        return factor
    for axis in [i for i, d in enumerate(factor.shape) if d > 1]:
        first = factor.take([0], axis)
        if (factor == first).all():
            factor = first
    varying = [i for i, d in enumerate(factor.shape) if d > 1]
    return factor.reshape(factor.shape[varying[0] :]) if varying else factor.reshape(())


def fits(factor: Array, shape: Shape) -> bool:
    """Does it broadcast to the shape, and is each of its axes as long?"""
    return factor.ndim <= len(shape) and all(f in (1, d) for f, d in zip(factor.shape[::-1], shape[::-1]))


def before_move(node: Node, factor: Array, given: Shape, made: Shape) -> Array | None:
    """The factor of what `node` moves from shape `given` to shape `made`, where `factor` is one of its result."""
    if node.op == "Transpose":
        back = np.argsort(order_of(node, len(given)))
        return factor.reshape((1,) * (len(given) - factor.ndim) + factor.shape).transpose(back)
    return _regrouped(factor, given, made) if node.op in SAME_ORDER else None


def _regrouped(factor: Array, given: Shape, made: Shape) -> Array | None:
    """`factor` of a tensor of shape `made` as one of the same elements, in order, in shape `given`: it begins anew
    after each block of the last axes, and so it does along the last axes of `given` that whole blocks fill."""
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
