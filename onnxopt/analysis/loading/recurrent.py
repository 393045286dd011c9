"""Inference of Scan and Loop in runtimes: the body is inferred by itself, for a single iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from onnxopt.analysis import types
from onnxopt.analysis.types import Known
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.value import Dim, Shape, Value
from onnxopt.proto.messages import tensor_type_proto

_SCAN_OF_AXES: Final = 9  # first opset with a Scan without batch and with axes
_Dims = Callable[[Value], Shape | None]


def recurred(node: Node, opset: int, dims_of: _Dims) -> dict[Value, Known]:
    """Return the types of a Loop's or Scan's results, and of a Scan's body inputs.

    `dims_of` gives the dims of operands and body outputs. Carried values of a Loop stay unknown: their shape may
    change.
    """
    body = next(iter(node.bodies.values()))
    if node.op == "Loop":
        carried = max(len(node.inputs) - 2, 0)
        trips = zip(node.outputs[carried:], body.outputs[carried + 1 :])
        return _kinds((made, _with(0, None, dims_of(each))) for made, each in trips)
    scanned = node.attr("num_scan_inputs")
    if opset < _SCAN_OF_AXES or node.has_references or not isinstance(scanned, int):
        return {}
    return _scanned(node, body, len(node.inputs) - scanned, dims_of)


def _scanned(node: Node, body: Graph, states: int, dims_of: _Dims) -> dict[Value, Known]:
    read = [None if v is None else dims_of(v) for v in node.inputs]
    axes = _axes(node, "scan_input_axes", len(read) - states)
    lengths = [dims[axis % len(dims)] for axis, dims in zip(axes, read[states:]) if dims]
    length = next((d for d in lengths if isinstance(d, int)), None)
    collected = zip(node.outputs[states:], _axes(node, "scan_output_axes", len(node.outputs) - states))
    made = [(v, _with(axis, length, dims_of(each))) for (v, axis), each in zip(collected, body.outputs[states:])]
    given = zip(body.inputs, [*read[:states], *map(_without, axes, read[states:])])
    return _kinds([*given, *zip(node.outputs[:states], read), *made])


def _axes(scan: Node, name: str, count: int) -> list[int]:
    axes = scan.attr(name)
    return list(axes) if isinstance(axes, list) and len(axes) == count else [0] * count


def _without(axis: int, dims: Shape | None) -> Shape | None:
    """Return the shape read in a single iteration."""
    axis = axis % len(dims) if dims else 0
    return dims and (*dims[:axis], *dims[axis + 1 :])


def _with(axis: int, length: Dim, dims: Shape | None) -> Shape | None:
    """Return the shape collected over all iterations."""
    if dims is None:
        return None
    axis %= len(dims) + 1
    return (*dims[:axis], length, *dims[axis:])


def _kinds(found: Iterable[tuple[Value | None, Shape | None]]) -> dict[Value, Known]:
    return {v: (tensor_type_proto(types.dtype(v), dims), None) for v, dims in found if v is not None and types.dtype(v)}
