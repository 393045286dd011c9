"""QuantizeLinear and DequantizeLinear of constants, where every correct runtime computes the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.graph.node import Node
from onnxopt.proto.messages import Array, element_type, numpy_dtype

# Smallest and largest integer; for float8 the largest finite number.
_RANGES: Final = {
    TensorProto.UINT8: (0, 255),
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT16: (0, 65535),
    TensorProto.INT16: (-32768, 32767),
    TensorProto.UINT4: (0, 15),
    TensorProto.INT4: (-8, 7),
}
_MAX_QUANTIZED: Final = {
    TensorProto.FLOAT8E4M3FN: 448.0,
    TensorProto.FLOAT8E4M3FNUZ: 240.0,
    TensorProto.FLOAT8E5M2: 57344.0,
    TensorProto.FLOAT8E5M2FNUZ: 57344.0,
}
_INT32: Final = 2.0**31


def quantize(node: Node, inputs: Sequence[Array | None]) -> Array | None:
    """Return the result of a QuantizeLinear of float32 data; None where runtimes may differ.

    Runtimes differ for NaN, infinities, scale 0 and quotients outside int32. The quotient is rounded to float32, then
    to the nearest integer or float8, ties to even, and saturates at the range's ends.
    """
    x, scale = inputs[0], inputs[1]
    zero = inputs[2] if len(inputs) > 2 else None
    if x is None or scale is None or not (x.dtype == scale.dtype == np.float32) or node.attr("precision", 0):
        return None
    kind = element_type(zero) if zero is not None else node.attr("output_dtype", 0) or TensorProto.UINT8
    steps = _along(node, scale, x.shape)
    if steps is None or kind not in _RANGES | _MAX_QUANTIZED:
        return None
    quotient = x / steps
    if not (np.abs(quotient) < _INT32).all() or not np.isfinite(steps).all():
        return None
    if kind in _MAX_QUANTIZED:
        largest = _MAX_QUANTIZED[kind]
        if (zero is not None and zero.astype(np.float32).any()) or (
            not node.attr("saturate", 1) and (np.abs(quotient) > largest).any()
        ):
            return None
        return np.asarray(np.clip(quotient, -largest, largest).astype(numpy_dtype(kind)))
    offset = np.zeros((), np.int64) if zero is None else _along(node, zero.astype(np.int64), x.shape)
    if offset is None:
        return None
    low, high = _RANGES[kind]
    whole = np.rint(np.clip(quotient.astype(np.float64), low - offset, high - offset)).astype(np.int64) + offset
    return np.asarray(whole.astype(numpy_dtype(kind)))


def _along(node: Node, parameter: Array, shape: tuple[int, ...]) -> Array | None:
    """Return the scale or zero point broadcast to elements: for the whole tensor, along an axis, or by block."""
    if parameter.ndim == 0 or (parameter.ndim == 1 and parameter.size == 1):
        return parameter.reshape(())
    axis, rank, block = int(node.attr("axis", 1)), len(shape), int(node.attr("block_size", 0) or 0)
    if not -rank <= axis < rank:
        return None
    axis %= rank
    if block:
        if parameter.ndim != rank or block * parameter.shape[axis] < shape[axis]:
            return None
        wide = np.take(parameter, np.arange(shape[axis]) // block, axis)
        return wide if wide.shape == shape else None
    if parameter.shape != (shape[axis],):
        return None
    return parameter.reshape([-1 if i == axis else 1 for i in range(rank)])


def dequantize(node: Node, inputs: Sequence[Array | None]) -> Array | None:
    """Return the result of a DequantizeLinear, each product rounded once; None where runtimes may differ."""
    x, scale = inputs[0], inputs[1]
    zero = inputs[2] if len(inputs) > 2 else None
    if x is None or scale is None or scale.dtype not in (np.float32, np.float16) or node.attr("output_dtype", 0):
        return None
    steps = _along(node, scale.astype(np.float32), x.shape)
    wide = np.float32 if element_type(x) in _MAX_QUANTIZED else np.int64
    offset = np.zeros((), wide) if zero is None else _along(node, zero.astype(wide), x.shape)
    if steps is None or offset is None:
        return None
    return np.asarray(((x.astype(wide) - offset).astype(np.float32) * steps).astype(scale.dtype))
