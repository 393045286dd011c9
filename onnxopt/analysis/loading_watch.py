"""Values upstream of bodies that a runtime might reject, and of nodes with wrong inferred sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Final

from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.inference import Known
from onnxopt.analysis.loading import Loading, is_misled
from onnxopt.analysis.loading_types import (
    as_given,
    declared,
    is_in_body,
    look_further,
    look_inside,
    of_any_shape,
    with_numbers,
)
from onnxopt.analysis.shapes.sizes import agreed
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.graph.value import Dim, Shape, Value
from onnxopt.proto.messages import tensor_type, tensor_type_proto

# -- declared sizes, which runtimes trust, though they may be wrong --------------------------------------------

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
    if inside:
        infos += [(v, inside[v.name]) for node in scope for v in node.results if v.name in inside]
    for v, info in infos:
        yield v, tensor_type(info.type)[1]
    for owner in scope.owners:
        yield from ((v, dims) for v, dims in zip(owner.outputs, _given_out(owner)) if v is not None)


def _given_out(owner: Node) -> list[Shape | None]:
    """Return the shapes declared in the bodies of an If, Loop or Scan for the outputs."""
    first, *others = [[tensor_type(o.type)[1] for o in body.proto.output] for body in owner.bodies.values()]
    if owner.op == "If":
        return [agreed(a, b) for other in others for a, b in zip(first, other)]
    scanned = owner.attr("num_scan_inputs", 0) if owner.op == "Scan" else _CARRIED
    carried = max(len(owner.inputs) - scanned, 0)
    if owner.op == "Loop":  # the shapes of carried values may change
        return [None] * carried + [_collected(dims, 0) for dims in first[1 + carried :]]
    if owner.op == "Scan" and owner.input(0) is not None:
        axes = owner.attr("scan_output_axes") or [0] * len(first[carried:])
        return first[:carried] + [_collected(dims, axis) for dims, axis in zip(first[carried:], axes)]
    return []


def _collected(dims: Shape | None, axis: int) -> Shape | None:
    """Return the shape of values stacked along an axis of unknown size."""
    if dims is None:
        return None
    found: list[Dim] = list(dims)
    found.insert(axis if axis >= 0 else axis + len(dims) + 1, None)
    return tuple(found)


# -- watched values --------------------------------------------------------------------------------------------

_WATCHED_FLOATS: Final = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def watch(model: Model, loading: Loading) -> None:
    """Fill `loading` with the watched values and the runtimes' knowledge of them.

    Values are watched instead of nodes: rewrites replace nodes, and keep values.
    """
    scopes = list(model.scopes())
    outermost = [scope for scope in scopes if scope.owner is None]
    misled = [n for scope in scopes for n in scope.by_op.get("PRelu", ()) if is_misled(n)]
    if not misled and len(outermost) == len(scopes):
        return
    loading.watched = {v for n in misled for v in n.results}
    _watch_before(misled, loading.watched)
    _watch_bodies(model, loading, [n for scope in outermost for n in _in_order(scope)])


def _watch_bodies(model: Model, loading: Loading, order: list[Node]) -> None:
    """Watch the values that matter to nodes in bodies, and note the runtimes' knowledge. `order`: of all nodes."""
    bodies = [n for n in order if is_in_body(n)]
    read, all_matter = _operands_that_matter(model, loading, bodies)
    loading.watched |= read
    makers = _makers(read)
    _watch_before(makers, loading.watched, None if all_matter else _tells_more)
    leading = [n for n in model.graph if not loading.watched.isdisjoint(n.outputs)]
    inside = loading.inside
    inside.update(_said(order, loading.annotated))
    # If a body would be rejected, facts unknown to runtimes matter for all of these; otherwise only what runtimes know.
    look_inside(_those(order, leading if all_matter else makers, bodies), inside, loading.annotated)
    look_further(_those(order, leading, bodies), loading.may, inside)


def _operands_that_matter(model: Model, loading: Loading, bodies: list[Node]) -> tuple[set[Value], bool]:
    """Return (outer values read by nodes of bodies, whether these are all); otherwise only those with open types."""
    read = _outer_operands(bodies)
    refused = _is_refused_now(bodies, read, loading.left)
    if refused:
        loading.beware()
    loading.annotated = annotated_shapes(model.scopes()) if bodies else {}
    all_matter = refused or _leads_there(loading.annotated, read, bodies)
    return read if all_matter else {v for v in read if types.is_open(v)}, all_matter


def _outer_operands(bodies: Iterable[Node]) -> set[Value]:
    """Return the values of the main graph or a function, except constants, read by nodes of bodies."""
    return {v for n in bodies for v in n.operands if v.graph.owner is None and not v.constant}


def _said(nodes: Iterable[Node], annotated: Mapping[Value, Shape]) -> dict[Value, Known]:
    """Return the declared types of values carried by Loops, and of annotated values."""
    bodies = [body for n in nodes if n.op == "Loop" for body in n.bodies.values()]
    said = {v: known for body in bodies for v, known in declared(body).items()}
    return said | {v: (tensor_type_proto(types.dtype(v), dims), None) for v, dims in annotated.items()}


def _is_refused_now(bodies: Iterable[Node], read: Set[Value], left: int) -> bool:
    """Whether a body would be rejected with all facts about the outer values in `read`."""
    asked = dict.fromkeys(n for n in bodies if not read.isdisjoint(n.inputs))
    return Loading(left).refuses(asked, {v: of_any_shape(v) for v in read}, {v: as_given(v) for v in read})


def _makers(values: Iterable[Value]) -> list[Node]:
    return [v.producer for v in values if v.producer is not None]


def _in_order(scope: Graph) -> Iterator[Node]:
    """Yield nodes after their operands, and nodes of bodies before the owner."""
    for node in scope:
        for body in node.bodies.values():
            yield from _in_order(body)
        yield node


def _those(order: Iterable[Node], *chosen: Iterable[Node]) -> list[Node]:
    wanted = set().union(*chosen)
    return [n for n in order if n in wanted]


def _leads_there(annotated: Mapping[Value, Shape], read: Set[Value], bodies: Iterable[Node]) -> bool:
    """Whether a value in these bodies, or upstream of `read`, has a declared shape."""
    if not annotated:
        return False
    leading = {v for n in bodies for v in n.results} | read
    _watch_before(_makers(read), leading)
    return not leading.isdisjoint(annotated)


def _watch_before(nodes: list[Node], watched: set[Value], leads: Callable[[Value], bool] | None = None) -> None:
    """Watch the upstream values of these nodes, as long as `leads` holds."""
    stack = list(nodes)
    while stack:
        more = {v for v in stack.pop().operands if v not in watched and (leads is None or leads(v))}
        watched |= more
        stack += _makers(more)


def _tells_more(value: Value) -> bool:
    """Whether a runtime may learn more from a value than onnxopt's facts.

    Not from floats of known size, except a list of floats, as sizes may be given.
    """
    return types.dtype(value) not in _WATCHED_FLOATS or types.is_open(value) or types.rank(value) == 1
