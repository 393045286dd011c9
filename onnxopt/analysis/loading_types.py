"""Types and sizes known to runtimes on loading a model: inferred ones, and sizes followed from Shapes."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Final

import numpy as np

from onnxopt.analysis import kernels, types
from onnxopt.analysis.inference import DATA_UP_TO, Known
from onnxopt.analysis.shapes.sizes import agreed
from onnxopt.analysis.types import NOTHING, as_call
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.value import Dim, Shape, Value
from onnxopt.operators import PICKS
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.inference import infer_call
from onnxopt.proto.messages import (
    Array,
    array_to_tensor,
    element_type,
    numpy_dtype,
    tensor_bytes,
    tensor_to_array,
    tensor_type,
    tensor_type_proto,
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


# -- inferred types, and sizes followed from Shapes ------------------------------------------------------------

_PICKS: Final = 4
_CARRIED: Final = 2  # leading inputs of a Loop's body that are not carried: iteration number and condition
# Operators through which onnxruntime follows sizes: first opset for a single size, and for several.
_NEVER: Final = 1 << 62
_SEEN_THROUGH: Final = {
    **dict.fromkeys(("Squeeze", "Unsqueeze"), (1, 1)),
    **dict.fromkeys(("Cast", "Concat"), (13, 13)),
    **dict.fromkeys(("Add", "Mul", "Sub"), (1, 14)),
    **dict.fromkeys(("Div", "Gather"), (1, _NEVER)),
}
_MAX_EXACT_FLOAT16: Final = 1 << 11  # largest size at which float16 is exact
_NUMERIC_KINDS: Final = "iuf"
_BRANCHES_DIFFER: Final = 11  # opset from which on branches of an If may have different shapes
# Operators through which runtimes may follow sizes.
_FOLLOWED: Final = frozenset({*_SEEN_THROUGH, "Identity", "Slice"})


def declared(loop: Graph) -> dict[Value, Known]:
    """Return a Loop body's declared types of carried values: runtimes use only these, since shapes may change."""
    said = {i.name: i.type for i in loop.proto.input}
    return {v: (said[v.name], None) for v in loop.inputs[_CARRIED:] if v.name in said}


def look_inside(nodes: Iterable[Node], inside: MutableMapping[Value, Known], annotated: Mapping[Value, Shape]) -> None:
    """Add to `inside` the knowledge of runtimes on the results of `nodes`, declared shapes included.

    Runtimes know less than onnxopt's facts, but in bodies they also follow outer constants, unlike onnx's inference.
    """
    for node in nodes:
        if node.op == "Constant":
            continue  # fully known
        seen = seen_by(node, inside)
        listed = _followed(node, seen) if is_in_body(node) else None
        if listed is not None:
            inside[node.output] = known_constant(listed)
        else:
            inside.update(inferred(node, seen) or {})
        for v in node.outputs if annotated else ():
            if v is not None and v in annotated:
                inside[v] = tensor_type_proto(types.dtype(v), with_numbers(dims_of(v, inside), annotated[v])), None


def look_further(nodes: Iterable[Node], may: dict[Value, Known], inside: dict[Value, Known]) -> None:
    """Add to `may` the possible further knowledge of runtimes, from sizes followed outside of bodies."""
    known = ChainMap(may, inside)
    for node in nodes:
        told = any(v in may for v in node.inputs)
        if not told and (node.op != "Shape" or is_in_body(node)):
            continue
        seen = seen_by(node, known)
        listed = _followed(node, seen)
        if listed is not None:
            may[node.output] = known_constant(listed)
        elif told:
            found = inferred(node, seen) or {}
            may.update({v: k for v, k in found.items() if _says_more(k, dims_of(v, inside))})


def _says_more(found: Known, dims: Shape | None) -> bool:
    new = tensor_type(found[0])[1]
    if new is None or dims is None or len(new) != len(dims):
        return new is not None
    return any(isinstance(d, int) and not isinstance(old, int) for d, old in zip(new, dims))


def seen_by(node: Node, inside: MutableMapping[Value, Known]) -> MutableMapping[Value, Known]:
    """Return the part of the known facts visible to a node: sizes are not followed into a body."""
    told = [v for v in node.operands if v.graph is not node.graph]
    hidden = {v: (inside[v][0], None) for v in told if v in inside and inside[v][1] is not None}
    return ChainMap(hidden, inside) if hidden else inside


def _followed(node: Node, inside: Mapping[Value, Known]) -> Array | None:
    """Return the sizes known to runtimes of a node's result, from a Shape or through followed operators."""
    x = node.input(0)
    if node.op == "Shape":
        dims = dims_of(x, inside) if x is not None else None
        return part_of_shape(node, dims)
    opset = opset_of(node)
    one, several = _SEEN_THROUGH.get(node.op, (_NEVER, _NEVER))
    listed = node.operands[:1] if node.op in PICKS else node.operands  # other operands are indices
    if opset < one or any(v not in inside or inside[v][1] is None for v in listed):
        return None
    arrays = known_operands(node, inside)
    if arrays is None or kernels.result_bytes(node, arrays) > DATA_UP_TO:
        return None
    found = _evaluated(node, arrays, opset)
    if found is None or (node.op == "Cast" and not found.ndim):
        return None
    return found if found.size == 1 or opset >= several else None


def _evaluated(node: Node, arrays: list[Array | None], opset: int) -> Array | None:
    """Return the node's result for these operands, if small."""
    try:
        found = evaluate(node, arrays, opset)
    except kernels.Invalid:
        return None
    return found[0] if found and found[0].nbytes <= DATA_UP_TO else None


def evaluate(node: Node, arrays: list[Array | None], opset: int) -> list[Array] | None:
    """Return the results of `kernels.evaluate`, also for a Cast of sizes to floats, which runtimes follow."""
    found, x = kernels.evaluate(node, arrays, opset), arrays[0] if arrays else None
    if found is None and node.op == "Cast" and x is not None and element_kind(x) in _NUMERIC_KINDS and x.size:
        kind, wide = numpy_dtype(node.attr("to")), x.astype(np.float64)
        if element_kind(kind) in _NUMERIC_KINDS and (wide == np.clip(np.floor(wide), 0, _MAX_EXACT_FLOAT16)).all():
            made = x.astype(kind)
            return [made] if (made.astype(np.float64) == wide).all() else None
    return found


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


def as_given(given: Array | Value, known: Mapping[Value, Known] = NOTHING) -> Known:
    """Return everything known of a value or array; for (picks from) a Shape, the listed sizes."""
    if not isinstance(given, Value) or given.constant:
        return known_constant(given)
    listed = _listed(given, _PICKS, {}, known)
    if listed is not None:
        return known_constant(listed)
    return known[given] if given in known else (tensor_type_proto(types.dtype(given), types.shape(given)), None)


def _listed(value: Value, steps: int, seen: dict[Value, Array | None], known: Mapping[Value, Known]) -> Array | None:
    """Return the sizes held by a value, followed through at most `steps` nodes. `seen`: cache."""
    if value not in seen:
        seen[value] = _listed_anew(value, steps, seen, known)
    return seen[value]


def _listed_anew(
    value: Value, steps: int, seen: dict[Value, Array | None], known: Mapping[Value, Known]
) -> Array | None:
    node = value.producer
    if value.constant:
        return content(value, {})
    if node is None or not steps or node.has_references:
        return None
    if node.op == "Shape":
        dims = _dims_told(node.inputs[0], known) if node.inputs[0] is not None else None
        return part_of_shape(node, dims)
    if node.op not in _FOLLOWED:
        return None
    arrays = [None if v is None else _listed(v, steps - 1, seen, known) for v in node.inputs]
    if any(v is not None and a is None for v, a in zip(node.inputs, arrays)):
        return None
    return _evaluated(node, arrays, value.graph.opset())  # the node may be new, and in no graph


def _dims_told(value: Value, known: Mapping[Value, Known]) -> Shape | None:
    """Return the dims possibly known to runtimes: inferred ones, completed by onnxopt's facts."""
    ours, theirs = types.shape(value), dims_of(value, known)
    if ours is None or theirs is None or len(ours) != len(theirs):
        return ours if theirs is None else theirs
    return tuple(b if isinstance(b, int) else a for a, b in zip(ours, theirs))


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


def with_numbers(known: Shape | None, other: Shape) -> Shape:
    """Return the known shape, with missing numbers taken from `other`."""
    if known is None:
        return tuple(d if isinstance(d, int) else None for d in other)
    if len(known) != len(other):
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
    assert node.graph is not None
    return node.graph.opset()
