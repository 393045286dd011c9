"""Types and small contents that a runtime infers on loading a model, node by node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np

from onnxopt.analysis import kernels, types
from onnxopt.analysis.inference import DATA_UP_TO, Known, graph_of
from onnxopt.analysis.shapes.sizes import agreed
from onnxopt.analysis.types import as_call
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.value import Dim, Shape, Value
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.inference import infer_call, is_below_zero
from onnxopt.proto.messages import (
    Array,
    array_to_tensor,
    element_type,
    tensor_bytes,
    tensor_to_array,
    tensor_type,
    tensor_type_proto,
)

# -- inference of a node by a runtime --------------------------------------------------------------------------


def made_of(node: Node, given: Mapping[Value, Known]) -> dict[Value, Known] | None:
    """Return the knowledge of a runtime on a node's results; None if the node is rejected."""
    if _has_no_kernel(node, given):
        return None
    if node.op == "Shape":
        listed = part_of_shape(node, dims_of(node.operand(0), given))
        return {} if listed is None else {node.output: known_constant(listed)}
    arrays = known_operands(node, given)
    if arrays is not None and not node.has_references and kernels.result_bytes(node, arrays) <= DATA_UP_TO:
        try:
            results = kernels.evaluate(node, arrays, opset_of(node))
        except kernels.Invalid:
            return None
        if results is not None:
            return {v: known_constant(r) for v, r in zip(node.outputs, results) if v is not None}
    found = inferred(node, given)
    # Runtimes compute with negative sizes, and reject nodes of other sizes.
    return None if found and any(is_below_zero(kind) for kind, _ in found.values()) else found


def _has_no_kernel(node: Node, given: Mapping[Value, Known]) -> bool:
    """Whether onnxruntime rejects the node on computing its result ahead, regardless of inference."""
    if node.op in ("Div", "Mod"):
        return is_by_zero(node, given)
    if node.op in ("Resize", "Upsample"):
        scales = content(node.input(1 if opset_of(node) < 11 else 2), given)
        return scales is not None and bool((scales <= 0).any())
    return False


def is_by_zero(node: Node, given: Mapping[Value, Known]) -> bool:
    divisor = content(node.input(1), given)
    return divisor is not None and element_kind(divisor) in "iu" and not divisor.all()


def is_misled(node: Node, given: Mapping[Value, Known]) -> bool:
    """Whether a result is, or may be, larger than a runtime infers.

    A runtime infers a PRelu's result from its first input, though onnxruntime (not the standard) lets the slope be
    larger.
    For an If whose branches must agree it may use a branch never taken.
    """
    if has_to_agree(node):
        return _may_disagree(node, given)
    if node.op != "PRelu":
        return False
    x, slope = (dims_of(node.operand(i), given) for i in (0, 1))
    if x is None or slope is None:
        return False
    both = zip(reversed(x), reversed(slope))
    return len(slope) > len(x) or any(b != 1 and differ(a, b) for a, b in both)


def _may_disagree(node: Node, given: Mapping[Value, Known]) -> bool:
    """Whether a branch may output another size than a runtime infers for the If."""
    agreed = inferred(node, given) or {}
    return any(
        not _is_so(v, dims, given)
        for value, *branches in given_out(node)
        if (dims := dims_of(value, agreed)) is not None
        for v in branches
    )


def _is_so(value: Value, dims: Shape, given: Mapping[Value, Known]) -> bool:
    """Whether a value certainly has the numbers in `dims`."""
    ours, theirs = types.shape(value), dims_of(value, given)
    known = ours if theirs is None else with_numbers(ours, theirs)
    return (
        known is not None and len(known) == len(dims) and all(a == b for a, b in zip(dims, known) if isinstance(a, int))
    )


# -- Scan and Loop: the body is inferred by itself, for a single iteration -------------------------------------

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


# -- inferred types and known contents -------------------------------------------------------------------------

_BRANCHES_DIFFER: Final = 11  # opset from which on branches of an If may have different shapes


def dims_of(value: Value, given: Mapping[Value, Known]) -> Shape | None:
    return tensor_type(given[value][0])[1] if value in given else types.shape(value)


def is_in_body(node: Node) -> bool:
    return node.graph is not None and node.graph.owner is not None


def known_operands(node: Node, given: Mapping[Value, Known]) -> list[Array | None] | None:
    """Return the arrays of all operands, or None if any is unknown."""
    found = [None if v is None else content(v, given) for v in node.inputs]
    return None if any(v is not None and a is None for v, a in zip(node.inputs, found)) else found


def content(value: Value | None, given: Mapping[Value, Known]) -> Array | None:
    """Return the data of a value if known and small."""
    if value is None:
        return None
    if value in given:
        data = given[value][1]
        return None if data is None else tensor_to_array(data)
    small = value.constant and tensor_bytes(*value.constant_type()) <= DATA_UP_TO
    return value.array if small else None


def known_constant(given: Array | Value) -> Known:
    kind, dims = given.constant_type() if isinstance(given, Value) else (element_type(given), given.shape)
    if tensor_bytes(kind, dims) > DATA_UP_TO:
        return tensor_type_proto(kind, dims), None
    array = np.array(given.array if isinstance(given, Value) else given, order="C")
    return tensor_type_proto(kind, dims), array_to_tensor(array, "")


def of_any_shape(value: Value) -> Known:
    return tensor_type_proto(types.dtype(value), None), None


def part_of_shape(node: Node, dims: Shape | None) -> Array | None:
    """Return the sizes listed by a Shape node, or None if any is unknown."""
    if dims is None:
        return None
    part = dims[node.attr("start", 0) : node.attr("end")]
    return np.array(part, np.int64) if all(isinstance(d, int) for d in part) else None


def inferred(node: Node, given: Mapping[Value, Known]) -> dict[Value, Known] | None:
    """Return the inferred types of a node's results; None if inference rejects the node."""
    if node.op == "If" and node.bodies:
        return _joined(node, given)
    if node.op in ("Loop", "Scan") and node.bodies:
        return recurred(node, opset_of(node), lambda v: dims_of(v, given))
    call = as_call(node, given)
    if call is None:
        return {}
    try:
        found = infer_call(*call)
    except Exception:  # errors raised by onnx
        return None
    return {v: (found[f"o{i}"], None) for i, v in enumerate(node.outputs) if v is not None and f"o{i}" in found}


def _joined(node: Node, given: Mapping[Value, Known]) -> dict[Value, Known] | None:
    """Return the types of an If's results: the common part of its branches.

    Where branches have to agree, each completes the other; None if they contradict.
    """
    found: dict[Value, Known] = {}
    for value, *branches in given_out(node):
        first, *others = (dims_of(v, given) for v in branches)
        for dims in others:
            if not has_to_agree(node):
                first = agreed(first, dims)
            elif first is None or dims is None:
                first = dims if first is None else first
            elif len(first) != len(dims) or any(differ(a, b) for a, b in zip(first, dims)):
                return None
            else:
                first = with_numbers(first, dims)
        found[value] = tensor_type_proto(types.dtype(value), first), None
    return found


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


def given_out(node: Node) -> list[tuple[Value, ...]]:
    """Return (result, value of each branch) for each tensor result of an If."""
    rows = zip(node.outputs, *(body.outputs for body in node.bodies.values()))
    return [(value, *branches) for value, *branches in rows if value is not None and types.dtype(value)]


def has_to_agree(node: Node) -> bool:
    """Whether the node is an If whose branches must have equal shapes, as far as runtimes know."""
    return node.op == "If" and opset_of(node) < _BRANCHES_DIFFER


def opset_of(node: Node) -> int:
    graph = graph_of(node)
    assert graph is not None
    return graph.opset()
