"""Algebra shared by Conv, ConvTranspose and Gemm: scaling and shifting of output channels.

  a * op(x; W, b) + c = op(x; aW, a b + c)      with a, c per output channel

Arithmetic is in float64; rounding to the weights' type happens once, when the constant is made.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from onnxopt.analysis.weights.underflow import is_small
from onnxopt.graph.node import Node
from onnxopt.proto.messages import Array

_MAX_COMPARED: Final = 1 << 12


def holds(condition: Array) -> bool:
    """Whether a condition is true for all elements; faster than `numpy.all`, and for few elements than counting."""
    if condition.size <= _MAX_COMPARED:
        return 0 not in condition.tobytes()  # the number 0 is found faster than the bytes b"\0"
    return int(np.count_nonzero(condition)) == condition.size


def is_finite(array: Array) -> bool:
    return holds(np.isfinite(array))


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
    """Return operands whose product, rounded once, equals the float64 product: two float32 multiply exactly in
    48 bits."""
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
    """Return the contribution of a constant `c` per input channel to each output channel of a Conv (group 1) or Gemm;
    float64.

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
    """Return (a, c) with BatchNormalization (inference) = a x + c, per channel, float64; None unless var + eps is
    positive."""
    variance = var.astype(np.float64) + epsilon
    a = scale / np.sqrt(variance)
    if not is_finite(a) and not holds(variance > 0):  # otherwise root and quotient are not finite
        return None
    return a, shift - a * mean
