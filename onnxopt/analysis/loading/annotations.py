"""Sizes that a file annotates values inside with, beyond what we know: they may not be so, and we do not believe them.
Runtimes do, when they load a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnxopt.analysis import types
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.value import Dim, Shape, Value
from onnxopt.protos import tensor_type

_CARRIED = 2  # inputs of a Loop that are not: how often, and whether at all


def annotated_shapes(scopes: Iterable[Graph]) -> dict[Value, Shape]:
    """What says more than we know. What a Loop's body takes is another matter: see `declared`."""
    found: dict[Value, Shape] = {}
    for scope in scopes:
        for v, dims in () if scope.is_function else _annotations(scope):
            if dims is not None and (known := with_numbers(types.shape(v), dims)) != types.shape(v):
                found[v] = known
    return found


def with_numbers(known: Shape | None, other: Shape) -> Shape:
    """What is known, with the numbers that another has besides."""
    if known is None:
        return tuple(d if isinstance(d, int) else None for d in other)
    if len(known) != len(other):
        return known
    return tuple(b if isinstance(b, int) and not isinstance(a, int) else a for a, b in zip(known, other))


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
    """What the bodies of an If, a Loop or a Scan say of what it gives out."""
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
    """Of what is stacked along that axis; nobody says how many."""
    if dims is None:
        return None
    found: list[Dim] = list(dims)
    found.insert(axis if axis >= 0 else axis + len(dims) + 1, None)
    return tuple(found)
