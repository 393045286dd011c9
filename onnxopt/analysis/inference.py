"""Types of a node's results from types of its operands: by onnx's inference of the operator, and from bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from onnx import NodeProto, TensorProto, TypeProto

from onnxopt.analysis import types
from onnxopt.analysis.misread import believed, is_misread
from onnxopt.analysis.shapes.sizes import agreed
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.schema import find_schema
from onnxopt.graph.value import Dim, Shape, Value
from onnxopt.operators import CONTROL_FLOW
from onnxopt.proto.messages import array_to_tensor, tensor_bytes, tensor_type, tensor_type_proto

if TYPE_CHECKING:
    from onnx.defs import OpSchema

Known: TypeAlias = "tuple[TypeProto, TensorProto | None]"  # (type, data) of a value
Call: TypeAlias = "tuple[OpSchema, NodeProto, dict[str, TypeProto], dict[str, TensorProto], int]"
NOTHING: Final[Mapping[Value, Known]] = MappingProxyType({})
# Larger constants cannot be shapes, axes or indices read by inference.
DATA_UP_TO: Final = 4096
_BRANCHES_DIFFER: Final = 11  # opset from which on branches of an If may have different shapes


def graph_of(node: Node) -> Graph | None:
    """Return the graph of a node, which may be new."""
    return node.graph if node.graph is not None else next((v.graph for v in node.results), None)


def opset_of(node: Node) -> int:
    """Return the version of the node's domain."""
    graph = graph_of(node)
    assert graph is not None
    return graph.opset(node.domain)


def inferred(node: Node, given: Mapping[Value, Known] = NOTHING) -> dict[Value, Known] | None:
    """Return the inferred types of results; None if inference rejects the node. `given` replaces known facts."""
    if node.op == "If" and node.bodies:
        return joined(node, given, has_to_agree(node))
    if node.op in ("Loop", "Scan") and node.bodies:
        return recurred(node, opset_of(node), lambda v: dims_of(v, given))
    call = _call_of(node, given)
    if call is None:
        return {}
    from onnxopt.proto.inference import infer_call  # operators of most models have rules of their own

    try:
        found = infer_call(*call)
    except Exception:  # errors raised by onnx
        return None
    return {v: (found[f"o{i}"], None) for i, v in enumerate(node.outputs) if v is not None and f"o{i}" in found}


def believed_types(node: Node) -> dict[Value, TypeProto]:
    """Return the inferred types of the results of an operator without control flow, as far as they are believed."""
    opset = opset_of(node)
    if is_misread(node, opset):
        return {}
    return believed(node, opset, {v: kind for v, (kind, _) in (inferred(node) or {}).items()})


def _call_of(node: Node, given: Mapping[Value, Known]) -> Call | None:
    """Return the arguments of operator inference, with results o0, o1, …; None if inference is impossible."""
    graph = graph_of(node)
    schema = find_schema(node.op, graph.opset(node.domain)) if graph is not None else None
    if graph is None or schema is None or (node.bodies and node.op in CONTROL_FLOW) or node.has_references:
        return None
    facts = {f"i{i}": known(v, given) for i, v in enumerate(node.inputs) if v is not None}
    kinds = {name: found[0] for name, found in facts.items() if found is not None}
    data = {name: found[1] for name, found in facts.items() if found is not None and found[1] is not None}
    if len(kinds) < len(facts):
        return None
    return schema, numbered(node), kinds, data, graph.opset(node.domain)


def numbered(node: Node) -> NodeProto:
    """Return the call of a node without bodies; operands are named i0, i1, …, results o0, o1, …"""
    proto = node.proto
    call = NodeProto(op_type=proto.op_type, domain=proto.domain, overload=proto.overload, attribute=proto.attribute)
    call.input.extend("" if v is None else f"i{i}" for i, v in enumerate(node.inputs))
    call.output.extend(f"o{i}" for i in range(len(node.outputs)))
    return call


def known(value: Value, given: Mapping[Value, Known] = NOTHING) -> Known | None:
    """Return the type and small data of a value, or None if the type is unknown."""
    if value in given:
        return given[value]
    kind = types.dtype(value)
    if not kind:
        container = value.graph.model.containers.get(value)
        return None if container is None else (container, None)
    small = value.constant and tensor_bytes(*value.constant_type()) <= DATA_UP_TO
    return tensor_type_proto(kind, types.shape(value)), array_to_tensor(value.array, "") if small else None


# -- dims -------------------------------------------------------------------------------------------------------


def dims_of(value: Value, given: Mapping[Value, Known]) -> Shape | None:
    return tensor_type(given[value][0])[1] if value in given else types.shape(value)


def with_numbers(known: Shape | None, other: Shape | None) -> Shape | None:
    """Return the known shape, with missing numbers taken from `other`."""
    if known is None:
        return other and tuple(d if isinstance(d, int) else None for d in other)
    if other is None or len(known) != len(other):
        return known
    return tuple(b if isinstance(b, int) and not isinstance(a, int) else a for a, b in zip(known, other))


def differ(a: Dim, b: Dim) -> bool:
    """Whether two dims are different numbers."""
    return isinstance(a, int) and isinstance(b, int) and a != b


# -- If: the common part of the branches ----------------------------------------------------------------------------


def has_to_agree(node: Node) -> bool:
    """Whether the node is an If whose branches must have equal shapes, as far as runtimes know."""
    return node.op == "If" and opset_of(node) < _BRANCHES_DIFFER


def branch_results(node: Node) -> list[tuple[Value, ...]]:
    """Return (result, value of each branch) for each tensor result of an If."""
    rows = zip(node.outputs, *(body.outputs for body in node.bodies.values()))
    return [(value, *branches) for value, *branches in rows if value is not None and types.dtype(value)]


def joined(node: Node, given: Mapping[Value, Known], completing: bool) -> dict[Value, Known] | None:
    """Return the types of an If's results: the common part of its branches.

    `completing`: each branch completes the other; None if they contradict.
    """
    found: dict[Value, Known] = {}
    for value, *branches in branch_results(node):
        first, *others = (dims_of(v, given) for v in branches)
        for dims in others:
            if not completing:
                first = agreed(first, dims)
            elif first is None or dims is None:
                first = dims if first is None else first
            elif len(first) != len(dims) or any(differ(a, b) for a, b in zip(first, dims)):
                return None
            else:
                first = with_numbers(first, dims)
        found[value] = tensor_type_proto(types.dtype(value), first), None
    return found


# -- Scan and Loop: the body is inferred by itself, for a single iteration -------------------------------------

SCAN_OF_AXES: Final = 9  # first opset with a Scan without batch and with axes
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
    if opset < SCAN_OF_AXES or node.has_references or not isinstance(scanned, int):
        return {}
    return _scanned(node, body, len(node.inputs) - scanned, dims_of)


def _scanned(node: Node, body: Graph, states: int, dims_of: _Dims) -> dict[Value, Known]:
    read = [None if v is None else dims_of(v) for v in node.inputs]
    axes = _axes(node, "scan_input_axes", len(read) - states)
    lengths = [dims[axis % len(dims)] for axis, dims in zip(axes, read[states:]) if dims]
    length = next((d for d in lengths if isinstance(d, int)), next(iter(lengths), None))
    collected = zip(node.outputs[states:], _axes(node, "scan_output_axes", len(node.outputs) - states))
    made = [(v, _with(axis, length, dims_of(each))) for (v, axis), each in zip(collected, body.outputs[states:])]
    given = zip(body.inputs, [*read[:states], *map(_without, axes, read[states:])])
    kept = [with_numbers(first, dims_of(each)) for first, each in zip(read[:states], body.outputs)]
    return _kinds([*given, *zip(node.outputs, kept), *made])


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
