"""Constants with repeated contents, stored once and broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.graph import Graph, Shape, Value
from onnxopt.graph.node import Node
from onnxopt.operators import MULTIDIRECTIONAL, broadcasts
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.messages import Array

_MAX_ELEMENTS: Final = 1 << 20  # elements of an examined constant
_TERM: Final = 2  # index of a Gemm's term


@register
class ConstantsOnce(GraphPass):
    """f(c, y) = f(c1, y), where the constant c repeats c1 and y has the full size; also for the addend of a Gemm,
    and for operands of a Where.

    Applies when: y provably has the axes along which c repeats, with the same length, or has more axes.
    Keeps: vectors with a number for each channel; zeros of different sign.
    JAX's exporters write each number and bias in the shape of the result, unrecognizable for other rules; so do parts
    of Mamba and VITS.
    """

    # At -O2 because of Where: runtimes select by multiplying, so the sign of a zero depends on the shapes.
    info = PassInfo("constants-once", opt_level=2, ops=("Gemm", *sorted(MULTIDIRECTIONAL)))

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        looked: dict[Value, list[int]] = ctx.memo.setdefault("constants-once: looked at", {})
        for value in list(graph.initializers.values()):
            axes = looked.get(value)
            if axes is None and any(_may_narrow(node, value) for node in value.users):
                axes = looked[value] = _axes_of_copies(value)
            for node in list(value.users) if axes else ():
                _narrow(node, value, axes or [], ctx)


def _may_narrow(node: Node, c: Value) -> bool:
    """Whether the node broadcasts this operand (of a Gemm only the term)."""
    assert node.graph is not None
    opset = node.graph.opset()
    if node.op == "Gemm":
        return opset >= 7 and node.places(c) == [_TERM]
    return node.op in MULTIDIRECTIONAL and broadcasts(node.op, opset)


def _axes_of_copies(c: Value) -> list[int]:
    """Return the axes along which all elements are bitwise equal."""
    dims = c.constant_type()[1] if c.constant else ()
    if len(dims) < 2 or prod(dims) > _MAX_ELEMENTS:
        return []
    data = c.glance()  # most constants do not repeat, and are not cached
    if element_kind(data) == "S":
        return []
    return [axis for axis, length in enumerate(dims) if length > 1 and _repeats(np.moveaxis(data, axis, 0))]


def _repeats(data: Array) -> bool:
    """Whether all parts along the first axis are bitwise equal; mostly decided by the second."""
    one = data[0].tobytes()
    return bool(one == data[1].tobytes() and data.tobytes() == one * len(data))


def _narrow(node: Node, c: Value, axes: Sequence[int], ctx: PassContext) -> None:
    """Make the node read the narrowed constant, if its other operands determine the shape."""
    graph, gemm = node.graph, node.op == "Gemm"
    if graph is None or not _may_narrow(node, c):
        return
    beside = [node.output] if gemm else [v for v in node.inputs if v is not None and v is not c]
    data = _once(c.array, axes, [types.shape(v) for v in beside], 1 if gemm else 0)
    if data.size == c.array.size:
        ctx.decline("narrowed", "the result may lose its shape", repr(node))
    elif ctx.spend("narrowed", at=node):
        narrow = graph.constant(np.ascontiguousarray(data), c.name, node)
        for place in list(node.places(c)):
            node.set_input(place, narrow)


def _once(data: Array, axes: Sequence[int], beside: Sequence[Shape | None], rank: int) -> Array:
    """Return the smallest part of a repeated constant with the same broadcast shape next to `beside`, of at least
    `rank` axes."""
    known = [s for s in beside if s is not None]
    for axis in axes:
        place = data.ndim - axis
        if any(len(s) >= place and s[len(s) - place] == data.shape[axis] for s in known):
            data = data[(slice(None),) * axis + (slice(0, 1),)]
    while data.ndim > rank and data.shape[0] == 1 and any(len(s) >= data.ndim for s in known):
        data = data[0]
    return data
