"""The algebra that Conv, ConvTranspose and Gemm share: scaling and shifting their output channels.

    a * op(x; W, b) + c = op(x; aW, a b + c)      with a, c per output channel

All arithmetic is in float64; the rounding to the weights' type happens once, when the constant is made.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from onnxopt.analysis.weights.underflow import is_small
from onnxopt.graph.node import Node
from onnxopt.protos import Array

_FEW: Final = 1 << 12


def holds(condition: Array) -> bool:
    """Is it true of all elements? Faster than `all`, which numpy has written in Python; of a few, than its counting."""
    if condition.size <= _FEW:
        return 0 not in condition.tobytes()  # a number: of b"\0" Python asks first, by an error, whether it is one
    return int(np.count_nonzero(condition)) == condition.size


def is_finite(array: Array) -> bool:
    return holds(np.isfinite(array))


def output_channels(node: Node, w: Array) -> int:
    """Number of output channels (Conv [M, C/g, …], ConvTranspose [C, M/g, …], Gemm B [K, N] or [N, K])."""
    if node.op == "ConvTranspose":
        return int(w.shape[1]) * int(node.attr("group"))
    if node.op == "Gemm":
        return int(w.shape[0 if node.attr("transB") else 1])
    return int(w.shape[0])


def scale_outputs(node: Node, w: Array, a: Array) -> Array:
    """Weights that give `a` (one factor per output channel) times the result; float64, or products rounded once.
    Infinite where these overflow."""
    wide, a = _exact_operands(w, a)
    if node.op == "ConvTranspose":
        group = int(node.attr("group"))
        wide = wide.reshape(group, w.shape[0] // group, *w.shape[1:])
        a = a.reshape(group, 1, w.shape[1], *[1] * (w.ndim - 2))
    elif node.op != "Gemm" or node.attr("transB"):
        a = a.reshape(-1, *[1] * (w.ndim - 1))
    product = np.asarray(wide * a)
    if product.dtype == np.float32 and is_small(product):
        product = np.asarray(wide.astype(np.float64) * a)  # what is lost in float32 is for whoever rounds it to see
    return product if product.shape == w.shape else product.reshape(w.shape)


def _exact_operands(w: Array, a: Array) -> tuple[Array, Array]:
    """Operands whose product, rounded once, is that of float64: two float32 multiply exactly in 48 bits."""
    if w.dtype == np.float32:
        narrow = a.astype(np.float32, copy=False)
        if narrow is a or holds(narrow == a):
            return w, narrow
    return w.astype(np.float64), a


def scale_inputs(node: Node, w: Array, a: Array) -> Array:
    """Weights of a Conv (group 1) or Gemm that take x where they took a * x, `a` per input channel; float64."""
    wide = w.astype(np.float64)
    if node.op == "Gemm" and not node.attr("transB"):
        return wide * a.reshape(-1, 1)
    return wide * a.reshape(1, -1, *[1] * (w.ndim - 2))


def sum_over_inputs(node: Node, w: Array, c: Array) -> Array:
    """What a constant `c` per input channel adds to each output channel of a Conv (group 1) or Gemm; float64.

    Not finite where a weight is infinite, even of a channel to which nothing is added: then the sign of the whole input
    decides, x + c and not x.
    """
    wide = w.astype(np.float64)
    if node.op == "Gemm":
        return np.asarray((wide @ c) if node.attr("transB") else (c @ wide)) * float(node.attr("alpha"))
    return np.tensordot(wide.sum(axis=tuple(range(2, w.ndim))), c, axes=1)


def bias_of(node: Node, b: Array | None, channels: int) -> Array | None:
    """The additive term per output channel in float64; None if it is not one per channel (a Gemm's full matrix)."""
    if b is None:
        return np.zeros(channels)
    wide = b.astype(np.float64)
    if node.op == "Gemm":
        if b.ndim > 2 or (b.ndim == 2 and b.shape[0] != 1) or (b.size != 1 and b.shape[-1] != channels):
            return None
        return np.broadcast_to(added_by_gemm(node, b).reshape(-1), (channels,))
    return wide if b.shape == (channels,) else None


def added_by_gemm(node: Node, b: Array) -> Array:
    """beta b in float64: where beta is 0 runtimes do not look at b, though it may be infinite."""
    beta = float(node.attr("beta"))
    return b.astype(np.float64) * beta if beta else np.zeros(b.shape)


def per_channel(z: Array, rank: int, channels: int) -> Array | None:
    """A constant that broadcasts along the channels (axis 1) of a result of that rank, as float64[channels].

    None where it has more axes, varies along another axis, or would widen the result: [C] against rank 4 is along
    the last axis, not the channels.
    """
    if z.ndim > rank or rank < 2:
        return None
    shape = (1,) * (rank - z.ndim) + z.shape
    if any(d != 1 for i, d in enumerate(shape) if i != 1) or shape[1] not in (1, channels):
        return None
    return np.broadcast_to(z.astype(np.float64).reshape(-1), (channels,))


def unpadded(node: Node) -> bool:
    """Does a Conv read nothing but its input? Padding is zero before, not after, an affine function of x."""
    if node.op != "Conv":
        return node.op == "Gemm"
    auto = node.attr("auto_pad") or "NOTSET"
    return auto == "VALID" or (auto == "NOTSET" and not any(node.attr("pads") or ()))


def batch_norm_affine(
    scale: Array, shift: Array, mean: Array, var: Array, epsilon: float
) -> tuple[Array, Array] | None:
    """BatchNormalization in inference as y = a x + c, per channel, float64; None where var + eps is not positive."""
    variance = var.astype(np.float64) + epsilon
    a = scale / np.sqrt(variance)
    if not is_finite(a) and not holds(variance > 0):  # where it is not, neither the root nor what it divides is finite
        return None
    return a, shift - a * mean
