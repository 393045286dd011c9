"""A model of narrower floats as every runtime runs it: each operator computes in float32, and its result is rounded.

That is what hardware for such types does, too. A runtime's CPU has few kernels for them: onnxruntime computes float16
in float32 there, and drops the roundings between two operators, with what overflows in them; of bfloat16 it runs next
to nothing. A product of float32 that became one of float16 gives the same there, bit for bit, and on other devices it
does not. So models that hold such numbers are compared once more, each with its roundings. Where they differ then
nobody is accused, for here they do not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from onnxopt.verification.model.order import bodies_of, inside
from onnxopt.verification.numbers.narrow import CODES
from onnxopt.verification.programs.typed import tensor_types

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

    from onnxopt.verification.model.skeleton import Skeleton

_RAW: Final = "\N{RIGHTWARDS ARROW}raw"  # what an operator makes, before it is rounded
_WIDE: Final = "\N{RIGHTWARDS ARROW}wide"
_FLOAT: Final = 1
_AS_IT_IS: Final = ("Cast", "CastLike", "Constant", "If", "Loop", "Scan")


def round_results(model: ModelProto, held: Collection[str], code: int) -> None:
    """Rewrite the model so, in place. `held`: its values of the narrower type, whose number in onnx is `code`. Calls of
    functions that hold such themselves, which go with no wider ones, stay as they are."""
    _round(model.graph, set(held), code, "", _holding(model, code))


def has_narrow(model: ModelProto) -> bool:
    """Is there a narrow float in it?"""
    return any(code in CODES.values() for code in _types(model))


def with_roundings(skeleton: Skeleton) -> Skeleton:
    """The same, changed in place: each operator that makes such a number rounds it."""
    kinds: dict[str, str] = {}
    with contextlib.suppress(Exception):  # of inference, which is no source of verdicts
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
    """Does it round what an operator of the file makes?"""
    return bool(node.op_type == "Cast" and node.input[0].endswith(_RAW))


def name_in_file(name: str) -> str:
    """What a value is called there."""
    for suffix in (_RAW, _WIDE):
        name = name.partition(suffix)[0]
    return name


def _holding(model: ModelProto, code: int) -> set[tuple[str, str]]:
    """(domain, name) of the functions of the model in which numbers of this type are made, be it by others that they
    call."""
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
    wide: dict[str, str] = {}  # what is read, by name
    for node in nodes:
        for body in bodies_of(node):
            _round(body, known, code, f"{depth}\N{PRIME}", calls)
        if node.op_type in _AS_IT_IS or (node.domain, node.op_type) in calls:
            graph.node.append(node)
            continue
        for name in sorted(known.intersection(node.input).difference(wide)):
            wide[name] = f"{name}{_WIDE}{depth}"
            _cast(graph, name, wide[name], _FLOAT)
        node.input[:] = [wide.get(name, name) for name in node.input]
        _add_rounded(graph, node, [name for name in node.output if name in known], code)


def _add_rounded(graph: GraphProto, node: NodeProto, narrow: Collection[str], code: int) -> None:
    """Add a node, and what rounds these of its results."""
    node.output[:] = [name + _RAW if name in narrow else name for name in node.output]
    if narrow:
        _widen(node, code)
    graph.node.append(node)
    for name in narrow:
        _cast(graph, name + _RAW, name, code)


def _cast(graph: GraphProto, source: str, target: str, code: int) -> None:
    node = graph.node.add(op_type="Cast", input=[source], output=[target])
    attribute = node.attribute.add(name="to", i=code)
    attribute.type = attribute.INT


def _widen(node: NodeProto, code: int) -> None:
    """Where an attribute says of which type the result is."""
    from onnxopt.protos import array_to_tensor, tensor_to_array

    for a in node.attribute:
        if a.name == "dtype" and a.i == code:
            a.i = _FLOAT
        elif a.name == "value" and a.t.data_type == code:
            a.t.CopyFrom(array_to_tensor(tensor_to_array(a.t).astype("float32"), a.t.name))
