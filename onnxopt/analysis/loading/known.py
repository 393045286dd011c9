"""What runtimes know of values when they load a model, which is not what we know: what they infer, and the sizes that a
Shape lists, as far as they follow them.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Final

import numpy as np

from onnxopt.analysis import kernels, types
from onnxopt.analysis.loading.annotations import with_numbers
from onnxopt.analysis.loading.recurrent import recurred
from onnxopt.analysis.types import DATA_UP_TO, NOTHING, Known, as_call
from onnxopt.element_types import element_kind
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.value import Dim, Shape, Value
from onnxopt.inferring import infer_call
from onnxopt.operators import PICKS
from onnxopt.protos import (
    Array,
    array_to_tensor,
    element_type,
    numpy_dtype,
    tensor_bytes,
    tensor_to_array,
    tensor_type,
    tensor_type_proto,
)

_PICKS: Final = 4
_CARRIED: Final = 2  # inputs of a Loop's body that are not: the number of the trip, and whether to go on
# Through what onnxruntime sees sizes that a Shape lists: from which opset on one, and from which on several.
_NEVER: Final = 1 << 62
_SEEN_THROUGH: Final = {
    **dict.fromkeys(("Squeeze", "Unsqueeze"), (1, 1)),
    **dict.fromkeys(("Cast", "Concat"), (13, 13)),
    **dict.fromkeys(("Add", "Mul", "Sub"), (1, 14)),
    **dict.fromkeys(("Div", "Gather"), (1, _NEVER)),
}
_LARGEST: Final = 1 << 11  # size of which float16 tells one more
_NUMBERS: Final = "iuf"
_BRANCHES_DIFFER: Final = 11  # opset from which on the branches of an If may give out other shapes
# What runtimes may follow sizes through that a Shape lists.
_FOLLOWED: Final = frozenset({*_SEEN_THROUGH, "Identity", "Slice"})


def declared(loop: Graph) -> dict[Value, Known]:
    """What a body says itself of the values that it carries: runtimes ask no further, as shapes may change."""
    said = {i.name: i.type for i in loop.proto.input}
    return {v: (said[v.name], None) for v in loop.inputs[_CARRIED:] if v.name in said}


def look_inside(nodes: Iterable[Node], inside: MutableMapping[Value, Known], annotated: Mapping[Value, Shape]) -> None:
    """What runtimes know of what these nodes make: not all that we do, and in bodies also what follows from constants
    around them, which onnx's inference of a whole model does not see there; and what the file says of it."""
    for node in nodes:
        if node.op == "Constant":
            continue  # of which all is known
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
    """What they `may` know besides, as far as they follow sizes that are listed outside of bodies, of what may be known
    to us only."""
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
    """Of what is known, what a node is told: sizes that are listed in a scope are not followed into a body there."""
    told = [v for v in node.inputs if v is not None and v.graph is not node.graph]
    hidden = {v: (inside[v][0], None) for v in told if v in inside and inside[v][1] is not None}
    return ChainMap(hidden, inside) if hidden else inside


def _followed(node: Node, inside: Mapping[Value, Known]) -> Array | None:
    """The sizes that runtimes know of what a node makes: a Shape lists them, and they see through what moves them."""
    x = node.input(0)
    if node.op == "Shape":
        dims = dims_of(x, inside) if x is not None else None
        return None if dims is None else part_of_shape(node, dims)
    opset = opset_of(node)
    one, several = _SEEN_THROUGH.get(node.op, (_NEVER, _NEVER))
    if opset < one:
        return None
    listed = node.inputs[:1] if node.op in PICKS else node.inputs  # other operands say where
    if any(v not in inside or inside[v][1] is None for v in listed if v is not None):
        return None
    arrays = operands(node, inside)
    if arrays is None or kernels.result_bytes(node, arrays) > DATA_UP_TO:
        return None
    found = _evaluated(node, arrays, opset)
    if found is None or (node.op == "Cast" and not found.ndim):
        return None
    return found if found.size == 1 or opset >= several else None


def _evaluated(node: Node, arrays: list[Array | None], opset: int) -> Array | None:
    """What it makes of these, if that is small."""
    try:
        found = evaluate(node, arrays, opset)
    except kernels.Invalid:
        return None
    return found[0] if found and found[0].nbytes <= DATA_UP_TO else None


def evaluate(node: Node, arrays: list[Array | None], opset: int) -> list[Array] | None:
    """As kernels do, and what a Cast makes of sizes, to which runtimes pay no heed."""
    found, x = kernels.evaluate(node, arrays, opset), arrays[0] if arrays else None
    if found is None and node.op == "Cast" and x is not None and element_kind(x) in _NUMBERS and x.size:
        kind, wide = numpy_dtype(node.attr("to")), x.astype(np.float64)
        if element_kind(kind) in _NUMBERS and (wide == np.clip(np.floor(wide), 0, _LARGEST)).all():
            made = x.astype(kind)
            return [made] if (made.astype(np.float64) == wide).all() else None
    return found


def dims_of(value: Value, given: Mapping[Value, Known]) -> Shape | None:
    return tensor_type(given[value][0])[1] if value in given else types.shape(value)


def is_in_body(node: Node) -> bool:
    return node.graph is not None and node.graph.owner is not None


def operands(node: Node, given: Mapping[Value, Known]) -> list[Array | None] | None:
    """What the node reads, if all of it is known."""
    found = [None if v is None else content(v, given) for v in node.inputs]
    return None if any(v is not None and a is None for v, a in zip(node.inputs, found)) else found


def content(value: Value | None, given: Mapping[Value, Known]) -> Array | None:
    """What it holds, if that is known, and small."""
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
    """All that is `known` of it, or that we know; of a Shape, and what is picked of it, runtimes know what it lists."""
    if not isinstance(given, Value) or given.constant:
        return known_constant(given)
    listed = _listed(given, _PICKS, {}, known)
    if listed is not None:
        return known_constant(listed)
    return known[given] if given in known else (tensor_type_proto(types.dtype(given), types.shape(given)), None)


def _listed(value: Value, steps: int, seen: dict[Value, Array | None], known: Mapping[Value, Known]) -> Array | None:
    """The sizes that it holds, by way of so many nodes. `seen`: those that were asked for before."""
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
        return None if dims is None else part_of_shape(node, dims)
    if node.op not in _FOLLOWED:
        return None
    arrays = [None if v is None else _listed(v, steps - 1, seen, known) for v in node.inputs]
    if any(v is not None and a is None for v, a in zip(node.inputs, arrays)):
        return None
    return _evaluated(node, arrays, value.graph.opset())  # the node may be new, and in no graph yet


def _dims_told(value: Value, known: Mapping[Value, Known]) -> Shape | None:
    """What runtimes may come to know of its dims: what they know, and what we do of the others."""
    ours, theirs = types.shape(value), dims_of(value, known)
    if ours is None or theirs is None or len(ours) != len(theirs):
        return ours if theirs is None else theirs
    return tuple(b if isinstance(b, int) else a for a, b in zip(ours, theirs))


def of_any_shape(value: Value) -> Known:
    return tensor_type_proto(types.dtype(value), None), None


def part_of_shape(node: Node, dims: Shape) -> Array | None:
    """What a Shape lists, if all of that is known."""
    part = dims[node.attr("start", 0) : node.attr("end")]
    return np.array(part, np.int64) if all(isinstance(d, int) for d in part) else None


def inferred(node: Node, given: Mapping[Value, Known]) -> dict[Value, Known] | None:
    """What inference says of its results; None if it refuses the node."""
    if node.op == "If" and node.bodies:
        return _joined(node, given)
    if node.op in ("Loop", "Scan") and node.bodies:
        return recurred(node, opset_of(node), lambda v: dims_of(v, given))
    call = as_call(node, given)
    if call is None:
        return {}
    try:
        found = infer_call(*call)
    except Exception:  # as onnx says it
        return None
    return {v: (found[f"o{i}"], None) for i, v in enumerate(node.outputs) if v is not None and f"o{i}" in found}


def _joined(node: Node, given: Mapping[Value, Known]) -> dict[Value, Known] | None:
    """What an If makes: that in which what its branches give out is alike. Where these have to agree, what is said of
    one goes for the other; None if they do not."""
    found: dict[Value, Known] = {}
    for value, *branches in given_out(node):
        first, *others = (dims_of(v, given) for v in branches)
        for dims in others:
            if not has_to_agree(node):
                first = types.agreed(first, dims)
            elif first is None or dims is None:
                first = dims if first is None else first
            elif len(first) != len(dims) or any(_differ(a, b) for a, b in zip(first, dims)):
                return None
            else:
                first = with_numbers(first, dims)
        found[value] = tensor_type_proto(types.dtype(value), first), None
    return found


def _differ(a: Dim, b: Dim) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a != b


def given_out(node: Node) -> list[tuple[Value, ...]]:
    """Each tensor that an If makes, and what its branches give out for it."""
    rows = zip(node.outputs, *(body.outputs for body in node.bodies.values()))
    return [(value, *branches) for value, *branches in rows if value is not None and types.dtype(value)]


def has_to_agree(node: Node) -> bool:
    """Is it an If whose branches have to give out the same shapes, for all that runtimes know of them?"""
    return node.op == "If" and opset_of(node) < _BRANCHES_DIFFER


def opset_of(node: Node) -> int:
    assert node.graph is not None
    return node.graph.opset()
