"""Models with explicit roundings to narrower floats: each operator computes in float32, and a Cast rounds its result.

Hardware for narrow types rounds likewise. onnxruntime's CPU provider has few kernels for narrow types: float16 is
computed in float32 without rounding between operators, losing overflow, and bfloat16 hardly runs. A float32 product
replaced by a float16 product is then equal bit for bit, but not on further devices. Models with narrow floats are
therefore compared again with roundings. A difference is reported, but is no fault, since this runtime shows none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from onnxopt.verification.model.operators import having
from onnxopt.verification.model.order import bodies_of, inside
from onnxopt.verification.numbers.narrow import CODES
from onnxopt.verification.programs.program import add_cast
from onnxopt.verification.programs.typed import tensor_types

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

    from onnxopt.verification.model.skeleton import Skeleton

_RAW: Final = "\N{RIGHTWARDS ARROW}raw"  # suffix of an operator's result before rounding
_WIDE_SUFFIX: Final = "\N{RIGHTWARDS ARROW}wide"
_FLOAT: Final = 1
_AS_IT_IS: Final = having("retypes", "control") | {"Constant"}


def round_results(model: ModelProto, held: Collection[str], code: int) -> None:
    """Add roundings to a model, in place.

    held: values of the narrower type; code: the type's number in onnx. Calls of functions with values of the type
    inside stay unchanged, as such functions take no wider values.
    """
    _round(model.graph, set(held), code, "", _holding(model, code))


def has_narrow(model: ModelProto) -> bool:
    """Return whether a model contains narrow floats."""
    return any(code in CODES.values() for code in _types(model))


def with_roundings(skeleton: Skeleton) -> Skeleton:
    """Return the skeleton, changed in place: results in narrow floats are rounded."""
    kinds: dict[str, str] = {}
    with contextlib.suppress(Exception):  # inference is no source of verdicts
        kinds.update(tensor_types(skeleton.proto))
    for name, code in CODES.items():
        if held := {value for value, kind in kinds.items() if kind == f"tensor({name})"}:
            round_results(skeleton.proto, held, code)
    return skeleton


def _types(model: ModelProto) -> Iterator[int]:
    graph = model.graph
    yield from (i.type.tensor_type.elem_type for i in graph.input)
    yield from (t.data_type for t in graph.initializer)
    for node in inside((*graph.node, *(n for f in model.functions for n in f.node))):
        if node.op_type == "Cast":
            yield from (a.i for a in node.attribute if a.name == "to")


def rounds(node: NodeProto) -> bool:
    """Return whether a node is an added rounding."""
    return bool(node.op_type == "Cast" and node.input[0].endswith(_RAW))


def name_in_file(name: str) -> str:
    """Return the name of a value in the file, without added suffixes."""
    for suffix in (_RAW, _WIDE_SUFFIX):
        name = name.partition(suffix)[0]
    return name


def _holding(model: ModelProto, code: int) -> set[tuple[str, str]]:
    """Return (domain, name) of functions that make values of the type, directly or by calls."""
    found = set[tuple[str, str]]()
    left = {(f.domain, f.name): f for f in model.functions}
    while new := [
        key for key, f in left.items() if any(_makes(n, code) or (n.domain, n.op_type) in found for n in inside(f.node))
    ]:
        found.update(new)
        left = {key: f for key, f in left.items() if key not in found}
    return found


def _makes(node: NodeProto, code: int) -> bool:
    return any(a.name in ("to", "dtype", "value") and code in (a.i, a.t.data_type) for a in node.attribute)


def _round(graph: GraphProto, outer: set[str], code: int, depth: str, calls: Collection[tuple[str, str]]) -> None:
    known = outer.union(t.name for t in graph.initializer if t.data_type == code)
    nodes = list(graph.node)
    del graph.node[:]
    wide: dict[str, str] = {}  # {value: widened value}
    for node in nodes:
        for body in bodies_of(node):
            _round(body, known, code, f"{depth}\N{PRIME}", calls)
        if node.op_type in _AS_IT_IS or (node.domain, node.op_type) in calls:
            graph.node.append(node)
            continue
        for name in sorted(known.intersection(node.input).difference(wide)):
            wide[name] = f"{name}{_WIDE_SUFFIX}{depth}"
            add_cast(graph, name, wide[name], _FLOAT)
        node.input[:] = [wide.get(name, name) for name in node.input]
        _add_rounded(graph, node, [name for name in node.output if name in known], code)


def _add_rounded(graph: GraphProto, node: NodeProto, narrow: Collection[str], code: int) -> None:
    """Add a node, and roundings of its `narrow` results."""
    node.output[:] = [name + _RAW if name in narrow else name for name in node.output]
    if narrow:
        _widen(node, code)
    graph.node.append(node)
    for name in narrow:
        add_cast(graph, name + _RAW, name, code)


def _widen(node: NodeProto, code: int) -> None:
    """Set an attribute with the result type to float32."""
    from onnxopt.proto.messages import array_to_tensor, tensor_to_array

    for a in node.attribute:
        if a.name == "dtype" and a.i == code:
            a.i = _FLOAT
        elif a.name == "value" and a.t.data_type == code:
            a.t.CopyFrom(array_to_tensor(tensor_to_array(a.t).astype("float32"), a.t.name))
