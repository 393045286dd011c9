"""Folds a constant factor of a value downstream: into the weights of its readers.

Nothing is changed: the result is a list of weight edits, together equal to the factor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from onnx import TensorProto

from onnxopt.analysis import linear, types
from onnxopt.analysis.scale_upstream import (
    REACH,
    READERS,
    Edit,
    commutes,
    into,
    is_quantized,
    own_weights,
    pads_zeros,
    scaled,
)
from onnxopt.analysis.shapes.sizes import order_of
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.operators import HOMOGENEOUS, IN_PLACE, LINEAR, of_form
from onnxopt.proto.messages import Array

_MIN_FACTOR: Final = 2.0**-10  # bounds of a factor passing a product: within them overflow stays about the same
_MAX_FACTOR: Final = 2.0**10
# Reductions: a gate may cancel their sums, and amplify rounding differences.
_SUMS: Final = LINEAR & of_form("axis", "pool", "reduce", "whole")


def downstream_edits(node: Node, factor: Array) -> list[Edit] | None:
    """Return edits that make the readers of `node` read its unscaled input, or None."""
    axis, numbers = _axis_of(node, factor)
    if numbers is None:
        return None
    return _of_all_readers(node.output, numbers) if axis is None else _of_channels(node, axis, numbers)


# -- a scalar: into all readers -------------------------------------------------------------------------------


def _of_all_readers(value: Value, number: Array) -> list[Edit] | None:
    """Fold a single number into all readers, through linear operators.

    Each node is reached by a single path; two would apply the number twice. With several readers no path crosses a
    reduction, whose sum a gate may cancel.
    """
    edits: list[Edit] = []
    reached: set[Node] = set()
    parts = False
    open_values = [value]
    while open_values:
        value = open_values.pop()
        if value.is_output or not 0 < len(value.users) <= READERS:
            return None
        parts = parts or len(value.users) > 1
        for reader, times in value.users.items():
            if times > 1 or reader in reached or len(reached) == REACH or reader.graph is not value.graph:
                return None
            found = _of_reader(reader, reader.places(value)[0], number)
            if found is None:
                return None
            reached.add(reader)
            edits += found[0]
            open_values += found[1]
    return None if parts and any(n.op in _SUMS for n in reached) else edits


def _of_reader(reader: Node, place: int, number: Array) -> tuple[list[Edit], list[Value]] | None:
    """Return (edits of a reader, results that are scaled), or None."""
    if reader.has_references:
        return None
    if (found := _absorbed(reader, place, number)) is not None:
        return found, []
    if (term := _scaled_term(reader, place, number)) is not None:
        return term, [reader.output]
    return ([], [reader.output]) if _is_linear(reader, place, number) else None


def _absorbed(reader: Node, place: int, number: Array) -> list[Edit] | None:
    """Return edits of weights of `reader` that absorb the number."""
    if reader.op == "MatMul" or linear.is_affine(reader):
        beside = 1 - place if reader.op in ("Gemm", "MatMul") else 1
        w = own_weights(reader, beside) if place < 2 and place != beside else None
        if w is None or is_quantized(reader):
            return None
        return [Edit(reader, beside, lambda w: scaled(w, number.reshape(())))]
    return into(reader, 1 - place, number.reshape(())) if reader.op == "Mul" and _is_near_one(reader, number) else None


def _scaled_term(reader: Node, place: int, number: Array) -> list[Edit] | None:
    """Return edits for c x + t = c (x + t / c), so that the number passes a sum.

    Not before a product, which may be the gate of a decomposed Gelu.
    """
    if reader.op not in ("Add", "Sub") or not _is_near_one(reader, number):
        return None
    if any(u.op in ("Mul", "Div") and not any(v and v.constant for v in u.inputs) for u in reader.output.users):
        return None
    return into(reader, 1 - place, 1.0 / number.reshape(()))


def _is_linear(reader: Node, place: int, number: Array) -> bool:
    """Whether the result of `reader` is linear in the input `place`."""
    if len(reader.outputs) != 1:
        return False
    if reader.op in ("Mul", "MatMul") or (reader.op == "Div" and place == 0):
        return _is_near_one(reader, number)
    return place == 0 and commutes(reader, number)


def _is_near_one(reader: Node, number: Array) -> bool:
    """Whether the number is close enough to 1 not to move overflow; never for types with few exponent bits."""
    wide = types.dtype(reader.output) in (TensorProto.FLOAT, TensorProto.DOUBLE)
    return wide and _MIN_FACTOR <= abs(number.item()) <= _MAX_FACTOR


# -- a factor per channel: into one reader --------------------------------------------------------------------


def _of_channels(node: Node, axis: int, numbers: Array) -> list[Edit] | None:
    for reader, index in _readers(node.output):
        if index != 0 or reader.graph is not node.graph or reader.has_references:
            return None
        shape = types.shape(reader.inputs[0])
        if shape is None:
            return None
        if reader.op in ("Conv", "MatMul"):
            return _into_reader(reader, axis, numbers, len(shape))
        if reader.op == "Transpose":
            axis = order_of(reader, len(shape)).index(axis)
        elif not _keeps_axis(reader, axis, len(shape)) or not (numbers > 0).all():
            return None
    return None


def _keeps_axis(node: Node, axis: int, rank: int) -> bool:
    """Whether the result along `axis` of `rank` comes from the same elements, and keeps a positive factor."""
    if pads_zeros(node):
        return axis not in _padded_axes(node, rank)
    return (node.op in IN_PLACE and node.op in HOMOGENEOUS) or (axis == 1 and node.op in ("AveragePool", "MaxPool"))


def _padded_axes(node: Node, rank: int) -> set[int]:
    """Return the axes padded by a Pad; all if unknown."""
    pads, axes = node.input(1), node.input(3)
    if pads is None or not pads.constant or not (axes is None or axes.constant):
        return set(range(rank))
    among = range(rank) if axes is None else [int(a) % rank for a in axes.array.reshape(-1)]
    return {a for a, begin, end in zip(among, *pads.array.reshape(2, -1)) if begin or end}


def _readers(value: Value) -> Iterator[tuple[Node, int]]:
    """Yield the chain of single readers of `value`, with the input index."""
    for _ in range(REACH):
        node = value.only_user
        if node is None or value.users[node] > 1 or len(node.outputs) != 1:
            return
        yield node, node.places(value)[0]
        value = node.output


def _axis_of(node: Node, factor: Array) -> tuple[int | None, Array | None]:
    """Return (axis, factors) of a constant varying along at most one axis; (None, [c]) for a single number."""
    if factor.size == 1:
        return None, factor.reshape(1)
    shape = types.shape(node.output)
    along = [i for i, d in enumerate(factor.shape) if d != 1]
    if shape is None or len(along) != 1:
        return None, None
    axis = along[0] + len(shape) - factor.ndim
    read = next((types.shape(v) for v in node.operands if not v.constant), None)
    if read is None or read[axis] != factor.size:  # the factor may widen the scaled value
        return None, None
    return axis, factor.reshape(-1)


def _into_reader(node: Node, axis: int, factor: Array, rank: int) -> list[Edit] | None:
    """Return edits of weights for input x instead of x z."""
    w = own_weights(node, 1)
    if w is None or is_quantized(node):
        return None
    array = w.array
    if node.op == "MatMul":
        fits = array.ndim == 2 and axis == rank - 1
        return [Edit(node, 1, lambda w: scaled(w, factor[:, None]))] if fits else None
    if axis != 1 or node.attr("group") != 1 or array.ndim != rank:
        return None
    return [Edit(node, 1, lambda w: linear.scale_inputs(node, w, factor))]
