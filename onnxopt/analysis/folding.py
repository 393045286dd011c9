"""Constant folding without a runtime: nodes worth computing, equal calls, quantization, results not worth storing."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Hashable, Mapping, Sequence
from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import kernels
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.operators import SAME_ORDER
from onnxopt.proto.element_types import BY_CODE, TYPES
from onnxopt.proto.messages import Array, attribute_bytes, element_type, numpy_dtype, tensor_bytes

# -- equal calls -----------------------------------------------------------------------------------------------


class KernelCache:
    """Cache of kernel results for equal calls on the same values, and of their copies for the model."""

    def __init__(self) -> None:
        self._results: dict[Hashable, list[Array]] = {}
        self._stored: dict[int, tuple[Array, Array]] = {}  # by id of the computed array, which is kept alive

    def evaluate(self, node: Node, inputs: Sequence[Array | None], opset: int) -> list[Array] | None:
        """Return the results of `kernels.evaluate`, cached."""
        if all(len(v.users) < 2 for v in node.operands):
            return kernels.evaluate(node, inputs, opset)
        call = node.op, tuple(node.inputs), len(node.outputs), attribute_bytes(node.proto)
        results = self._results.get(call) or kernels.evaluate(node, inputs, opset)
        if results is not None:
            self._results[call] = results
        return results

    def stored(self, computed: Array) -> Array:
        """Return a read-only C-contiguous copy, the same for the same array."""
        if id(computed) not in self._stored:
            array = np.array(computed, order="C")
            array.flags.writeable = False
            self._stored[id(computed)] = computed, array
        return self._stored[id(computed)][1]


# -- nodes worth computing: nodes with a kept result, and all upstream nodes -----------------------------------

_LAYOUTS: Final = (*SAME_ORDER, "Transpose")


def is_read(v: Value, gone: Container[Node], stays: Container[Node]) -> bool:
    """Whether a value is read by a node outside `gone`, or in `stays`, or is an output."""
    return v.is_output or any(user not in gone or user in stays for user in v.users)


def worth_running(
    nodes: Sequence[Node], is_too_large: Callable[[Node, list[Value]], bool]
) -> tuple[list[Node], list[Value]]:
    """Return (nodes to run, results to keep) of `nodes`, given in topological order.

    A node with results known to be too large stays, and its operands are kept instead.
    """
    inside = set(nodes)
    stays: set[Node] = set()
    running: list[Node] = []
    wanted: list[Value] = []
    read: set[Value | None] = set()
    for node in reversed(nodes):
        found = [v for v in node.results if is_read(v, inside, stays)]
        if found and is_too_large(node, found):
            stays.add(node)
            found = []
        if found or not read.isdisjoint(node.outputs):
            running.append(node)
            read.update(node.inputs)
        wanted += reversed(found)
    return running[::-1], wanted[::-1]


def is_second_layout(node: Node, gone: Container[Node], stays: Container[Node]) -> bool:
    """Whether `node` only permutes a stored weight kept for other readers."""
    while node.op in _LAYOUTS and (x := node.inputs[0]) is not None:
        if x.is_stored:
            return x.is_output or any(
                u not in gone or u in stays or u.op in _LAYOUTS for u in x.users if not _is_equal(u, node)
            )
        if x.producer is None:
            return False
        node = x.producer
    return False


def _is_equal(a: Node, b: Node) -> bool:
    return a is b or (a.op == b.op and a.inputs == b.inputs and attribute_bytes(a.proto) == attribute_bytes(b.proto))


# -- weights stored in fewer bits than used in computation -----------------------------------------------------

_DEEP = 16  # nodes between


def is_widened(node: Node, results: Sequence[Array], inside: Collection[Node]) -> bool:
    """Whether a result has as many elements as a constant stored in at most half the bytes.

    Constants are searched from `node` through nodes `inside`. Booleans do not count as weights.
    """
    sizes = {array.size: array.nbytes for array in results}
    stack, seen = [node], {node}
    while stack:
        for v in stack.pop().operands:
            maker = v.producer
            if maker is None or maker not in inside:
                if v.constant and _is_half(*v.constant_type(), sizes):
                    return True
            elif maker not in seen and len(seen) < _DEEP:
                seen.add(maker)
                stack.append(maker)
    return False


def _is_half(kind: int, dims: Sequence[int], sizes: Mapping[int, int]) -> bool:
    return kind != TensorProto.BOOL and 2 * tensor_bytes(kind, dims) <= sizes.get(math.prod(dims), 0)


# -- quantization, where every correct runtime computes the same bits ------------------------------------------

_INTEGERS: Final = frozenset(t.code for t in TYPES if t.kind in "iu" and t.bits in (4, 8, 16))
_FLOAT8: Final = frozenset(t.code for t in TYPES if t.name.startswith(("float8_e4", "float8_e5")))
_INT32: Final = 2.0**31


def quantize(node: Node, inputs: Sequence[Array | None]) -> Array | None:
    """Return the result of a QuantizeLinear of float32 data; None where runtimes may differ.

    Runtimes differ for NaN, infinities, scale 0 and quotients outside int32. The quotient is rounded to float32, then
    to the nearest integer or float8, ties to even, and saturates at the range's ends.
    """
    x, scale, zero = (*inputs, None)[:3]
    if x is None or scale is None or not (x.dtype == scale.dtype == np.float32) or node.attr("precision", 0):
        return None
    kind = element_type(zero) if zero is not None else node.attr("output_dtype", 0) or TensorProto.UINT8
    quotient = _quotient(node, x, scale)
    if quotient is None:
        return None
    if kind in _FLOAT8:
        return _as_float8(quotient, zero, kind, node.attr("saturate", 1))
    return _as_integers(node, quotient, zero, kind)


def _quotient(node: Node, x: Array, scale: Array) -> Array | None:
    """Return x over its scales; None if runtimes differ."""
    steps = _along(node, scale, x.shape)
    if steps is None or not np.isfinite(steps).all():
        return None
    quotient = x / steps
    return quotient if (np.abs(quotient) < _INT32).all() else None


def _as_integers(node: Node, quotient: Array, zero: Array | None, kind: int) -> Array | None:
    offset = np.zeros((), np.int64) if zero is None else _along(node, zero.astype(np.int64), quotient.shape)
    if offset is None or kind not in _INTEGERS:
        return None
    low, high = BY_CODE[kind].integers
    whole = np.rint(np.clip(quotient.astype(np.float64), low - offset, high - offset)).astype(np.int64) + offset
    return np.asarray(whole.astype(numpy_dtype(kind)))


def _as_float8(quotient: Array, zero: Array | None, kind: int, saturates: int) -> Array | None:
    largest = BY_CODE[kind].high
    if (zero is not None and zero.astype(np.float32).any()) or not (saturates or (np.abs(quotient) <= largest).all()):
        return None
    return np.asarray(np.clip(quotient, -largest, largest).astype(numpy_dtype(kind)))


def _along(node: Node, parameter: Array, shape: tuple[int, ...]) -> Array | None:
    """Return the scale or zero point broadcast to elements: for the whole tensor, along an axis, or by block."""
    if parameter.size == 1 and parameter.ndim < 2:
        return parameter.reshape(())
    axis, rank, block = int(node.attr("axis", 1)), len(shape), int(node.attr("block_size", 0) or 0)
    if not -rank <= axis < rank:
        return None
    if not block:
        each = (1,) * (axis % rank) + (-1,) + (1,) * (rank - 1 - axis % rank)
        return parameter.reshape(each) if parameter.shape == (shape[axis],) else None
    if parameter.ndim != rank or block * parameter.shape[axis] < shape[axis]:
        return None
    wide = np.take(parameter, np.arange(shape[axis]) // block, axis)
    return wide if wide.shape == shape else None


def dequantize(node: Node, inputs: Sequence[Array | None]) -> Array | None:
    """Return the result of a DequantizeLinear, each product rounded once; None where runtimes may differ."""
    x, scale = inputs[0], inputs[1]
    zero = inputs[2] if len(inputs) > 2 else None
    if x is None or scale is None or scale.dtype not in (np.float32, np.float16) or node.attr("output_dtype", 0):
        return None
    steps = _along(node, scale.astype(np.float32), x.shape)
    wide = np.float32 if element_type(x) in _FLOAT8 else np.int64
    offset = np.zeros((), wide) if zero is None else _along(node, zero.astype(wide), x.shape)
    if steps is None or offset is None:
        return None
    return np.asarray(((x.astype(wide) - offset).astype(np.float32) * steps).astype(scale.dtype))
