"""Declared sizes of inner values beyond known facts. Declarations may be wrong, but runtimes trust them on loading."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnxopt.analysis import types
from onnxopt.analysis.loading.known import with_numbers
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.value import Dim, Shape, Value
from onnxopt.proto.messages import tensor_type

_CARRIED = 2  # leading Loop inputs that are not carried: trip count and condition


def annotated_shapes(scopes: Iterable[Graph]) -> dict[Value, Shape]:
    """Return declared shapes more precise than known ones, except for inputs of Loop bodies (see `declared`)."""
    found: dict[Value, Shape] = {}
    for scope in scopes:
        for v, dims in () if scope.is_function else _annotations(scope):
            if dims is not None and (known := with_numbers(types.shape(v), dims)) != types.shape(v):
                found[v] = known
    return found


def _annotations(scope: Graph) -> Iterator[tuple[Value, Shape | None]]:
    infos = list(zip(scope.outputs, scope.proto.output))
    if scope.owner is not None and scope.owner.op != "Loop":
        infos += zip(scope.inputs, scope.proto.input)
    inside = {info.name: info for info in scope.proto.value_info}
    for node in scope if inside else ():
        infos += [(v, inside[v.name]) for v in node.outputs if v is not None and v.name in inside]
    for v, info in infos:
        yield v, tensor_type(info.type)[1]
    for owner in scope.owners:
        yield from ((v, dims) for v, dims in zip(owner.outputs, _given_out(owner)) if v is not None)


def _given_out(owner: Node) -> list[Shape | None]:
    """Return the shapes declared in the bodies of an If, Loop or Scan for the outputs."""
    first, *others = [[tensor_type(o.type)[1] for o in body.proto.output] for body in owner.bodies.values()]
    if owner.op == "If":
        return [types.agreed(a, b) for other in others for a, b in zip(first, other)]
    if owner.op == "Loop":
        carried = max(len(owner.inputs) - _CARRIED, 0)
        return [None] * carried + [_collected(dims, 0) for dims in first[1 + carried :]]
    if owner.op == "Scan" and owner.input(0) is not None:
        carried = len(owner.inputs) - owner.attr("num_scan_inputs", 0)
        collected = first[carried:]
        axes = owner.attr("scan_output_axes") or [0] * len(collected)
        return first[:carried] + [_collected(dims, axis) for dims, axis in zip(collected, axes)]
    return []


def _collected(dims: Shape | None, axis: int) -> Shape | None:
    """Return the shape of values stacked along an axis of unknown size."""
    if dims is None:
        return None
    found: list[Dim] = list(dims)
    found.insert(axis if axis >= 0 else axis + len(dims) + 1, None)
    return tuple(found)
