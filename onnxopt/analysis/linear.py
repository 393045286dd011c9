"""Algebra of Conv, ConvTranspose and Gemm on constants: scaling and shifting of output channels, and loss of precision.

  a * op(x; W, b) + c = op(x; aW, a b + c)      with a, c per output channel

Arithmetic is in float64; rounding to the weights' type happens once, when the constant is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sizes import broadcast_shape, order_of
from onnxopt.graph.node import Node
from onnxopt.graph.value import Shape, Value
from onnxopt.operators import IN_PLACE, SAME_ORDER
from onnxopt.proto.element_types import of
from onnxopt.proto.messages import Array

# -- loss of precision -----------------------------------------------------------------------------------------

_MAX_ROUNDINGS: Final = 4
_FIRST: Final = 1024  # elements checked first; mostly enough to exclude underflow


def underflows(wide: Array, narrow: Array, each: bool = False) -> bool:
    """Whether rounding `wide` to `narrow` errs by more than a few eps of the largest element; with `each`, of each.

    Normal numbers have an error of half an eps at most, so only tensors that are small throughout underflow. In others,
    zero or subnormal elements are negligible in sums of products, and common in half precision, whose normal numbers
    end at 6e-5. Elementwise factors and divisors are not summed: there each element counts.
    """
    if not each and not is_small(narrow):
        return False
    kind = of(narrow.dtype)
    tiny, eps = kind.tiny, kind.epsilon
    small = np.abs(narrow) < tiny
    exact = np.abs(np.asarray(wide, np.float64)[small])
    off = np.abs(exact - np.abs(narrow[small]).astype(np.float64))
    return bool((off > _MAX_ROUNDINGS * eps * (exact if each else exact.max(initial=0))).any())


def is_small(array: Array) -> bool:
    """Whether a float array has no normal number, infinity or NaN."""
    tiny = of(array.dtype).tiny
    if array.size and not abs(array.item(0)) < tiny:  # mostly decided by the first element
        return False
    first = array.reshape(-1)[:_FIRST] if array.flags.c_contiguous else array[:1]
    return not _largest(first) >= tiny and _largest(array) < tiny


def _largest(array: Array) -> float:
    """Return the largest absolute value; 0 for an empty array, NaN if any is NaN."""
    return float(max(array.max(), -array.min())) if array.size else 0.0


# -- Conv, ConvTranspose and Gemm ------------------------------------------------------------------------------

_MAX_COMPARED: Final = 1 << 12


def holds(condition: Array) -> bool:
    """Whether a condition is true for all elements; faster than `numpy.all`, and for few elements than counting."""
    if condition.size <= _MAX_COMPARED:
        return 0 not in condition.tobytes()  # the number 0 is found faster than the bytes b"\0"
    return int(np.count_nonzero(condition)) == condition.size


def is_finite(array: Array) -> bool:
    return holds(np.isfinite(array))


def is_affine(node: Node) -> bool:
    """Whether a node is a Conv, ConvTranspose or Gemm."""
    return node.op in ("Conv", "ConvTranspose", "Gemm")


def output_channels(node: Node, w: Array) -> int:
    """Return the number of output channels (Conv [M, C/g, …], ConvTranspose [C, M/g, …], Gemm B [K, N] or [N, K])."""
    if node.op == "ConvTranspose":
        return int(w.shape[1]) * int(node.attr("group"))
    if node.op == "Gemm":
        return int(w.shape[0 if node.attr("transB") else 1])
    return int(w.shape[0])


def scale_outputs(node: Node, w: Array, a: Array) -> Array:
    """Return weights that multiply the result by `a` (a factor per output channel); float64, or products rounded once.

    Infinite on overflow.
    """
    wide, a = _exact_operands(w, a)
    if node.op == "ConvTranspose":
        group = int(node.attr("group"))
        wide = wide.reshape(group, w.shape[0] // group, *w.shape[1:])
        a = a.reshape(group, 1, w.shape[1], *[1] * (w.ndim - 2))
    elif node.op != "Gemm" or node.attr("transB"):
        a = a.reshape(-1, *[1] * (w.ndim - 1))
    product = np.asarray(wide * a)
    if product.dtype == np.float32 and is_small(product):
        product = np.asarray(wide.astype(np.float64) * a)  # float64, so that the caller detects underflow when rounding
    return product if product.shape == w.shape else product.reshape(w.shape)


def _exact_operands(w: Array, a: Array) -> tuple[Array, Array]:
    """Return operands whose product, rounded once, is the float64 product: two float32 multiply exactly in 48 bits."""
    if w.dtype == np.float32:
        narrow = a.astype(np.float32, copy=False)
        if narrow is a or holds(narrow == a):
            return w, narrow
    return w.astype(np.float64), a


def scale_inputs(node: Node, w: Array, a: Array) -> Array:
    """Return weights of a Conv (group 1) or Gemm for input x instead of a * x, `a` per input channel; float64."""
    wide = w.astype(np.float64)
    if node.op == "Gemm" and not node.attr("transB"):
        return wide * a.reshape(-1, 1)
    return wide * a.reshape(1, -1, *[1] * (w.ndim - 2))


def sum_over_inputs(node: Node, w: Array, c: Array) -> Array:
    """Return the float64 term in each output channel of a Conv (group 1) or Gemm for a constant `c` per input channel.

    Not finite if a weight is infinite, even with c = 0: the sign of the whole input x + c decides then.
    """
    wide = w.astype(np.float64)
    if node.op == "Gemm":
        return np.asarray((wide @ c) if node.attr("transB") else (c @ wide)) * float(node.attr("alpha"))
    return np.tensordot(wide.sum(axis=tuple(range(2, w.ndim))), c, axes=1)


def bias_of(node: Node, b: Array | None, channels: int) -> Array | None:
    """Return the bias per output channel in float64; None for a Gemm's full matrix."""
    if b is None:
        return np.zeros(channels)
    wide = b.astype(np.float64)
    if node.op == "Gemm":
        if b.ndim > 2 or (b.ndim == 2 and b.shape[0] != 1) or (b.size != 1 and b.shape[-1] != channels):
            return None
        return np.broadcast_to(added_by_gemm(node, b).reshape(-1), (channels,))
    return wide if b.shape == (channels,) else None


def added_by_gemm(node: Node, b: Array) -> Array:
    """Return beta b in float64; for beta = 0 runtimes ignore b, even if infinite."""
    beta = float(node.attr("beta"))
    return b.astype(np.float64) * beta if beta else np.zeros(b.shape)


def per_channel(z: Array, rank: int, channels: int) -> Array | None:
    """Return a constant as float64[channels] if it varies along the channels (axis 1) of a result of this rank only.

    None for more axes, variation along another axis, or a widened result: [C] against rank 4 is along the last axis.
    """
    if z.ndim > rank or rank < 2:
        return None
    shape = (1,) * (rank - z.ndim) + z.shape
    if any(d != 1 for i, d in enumerate(shape) if i != 1) or shape[1] not in (1, channels):
        return None
    return np.broadcast_to(z.astype(np.float64).reshape(-1), (channels,))


def unpadded(node: Node) -> bool:
    """Whether a Conv reads its input only. Padding zeros do not commute with an affine function of x."""
    if node.op != "Conv":
        return node.op == "Gemm"
    auto = node.attr("auto_pad") or "NOTSET"
    return auto == "VALID" or (auto == "NOTSET" and not any(node.attr("pads") or ()))


def batch_norm_affine(
    scale: Array, shift: Array, mean: Array, var: Array, epsilon: float
) -> tuple[Array, Array] | None:
    """Return (a, c) per channel, float64, with BatchNormalization(x) = a x + c; None unless var + eps is positive."""
    variance = var.astype(np.float64) + epsilon
    a = scale / np.sqrt(variance)
    if not is_finite(a) and not holds(variance > 0):  # otherwise root and quotient are not finite
        return None
    return a, shift - a * mean


# -- factors moved in front of an operator that moves elements -------------------------------------------------

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


def of_rank(array: Array, rank: int) -> Array:
    """Return the array with leading axes of size 1."""
    return array.reshape((1,) * (rank - array.ndim) + array.shape)


def lengths_of(parts: Sequence[Value | None], axis: int) -> list[int] | None:
    """Return the lengths of all parts along an axis; None if one is unknown."""
    found = [n for v in parts if (n := types.length_of(v, axis)) is not None]
    return found if len(found) == len(parts) else None


def before_move(node: Node, factor: Array) -> Array | None:
    """Return the factor for the first input of `node` equal to `factor` on its result, or None."""
    if not factor.ndim or node.op in IN_PLACE:
        return factor
    given, made = types.shape(node.inputs[0]), types.shape(node.output)
    if given is None or made is None:
        return None
    if node.op == "Transpose":
        back = np.argsort(order_of(node, len(given)))
        return of_rank(factor, len(given)).transpose(back)
    return _regrouped(factor, given, made) if node.op in SAME_ORDER else None


def before_split(split: Node, parts: Mapping[Value, Array], rest: float) -> Array | None:
    """Return the factor for the input of a Split equal to these on `parts`, and to `rest` on other results, or None."""
    shape = types.shape(split.inputs[0])
    if not shape:
        return None
    axis = int(split.attr("axis") or 0) % len(shape)
    lengths, other = lengths_of(split.outputs, axis), np.full((), rest)
    wide = [of_rank(other if v is None else parts.get(v, other), len(shape)) for v in split.outputs]
    widest = broadcast_shape(*(_put(f.shape, axis, 1) for f in wide))
    if lengths is None or not 0 < prod(widest) * sum(lengths) <= LARGE:
        return None
    return np.concatenate([np.broadcast_to(f, _put(widest, axis, n)) for f, n in zip(wide, lengths)], axis)


def _put(shape: tuple[int, ...], axis: int, length: int) -> tuple[int, ...]:
    return (*shape[:axis], length, *shape[axis + 1 :])


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
