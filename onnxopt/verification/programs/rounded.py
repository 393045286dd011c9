"""A model of narrower floats as every runtime runs it: each operator computes in float32, and its result is rounded.

That is what hardware for such types does, too. A runtime's CPU has few kernels for them: onnxruntime computes float16
in float32 there, and drops the roundings between two operators, with what overflows in them; of bfloat16 it runs next
to nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from onnxopt.verification.model.order import bodies_of, inside

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

_RAW: Final = "\N{RIGHTWARDS ARROW}raw"  # what an operator makes, before it is rounded
_WIDE: Final = "\N{RIGHTWARDS ARROW}wide"
_FLOAT: Final = 1
_AS_IT_IS: Final = ("Cast", "CastLike", "Constant", "If", "Loop", "Scan")


def round_results(model: ModelProto, held: Collection[str], code: int) -> None:
    """Rewrite the model so, in place. `held`: its values of the narrower type, whose number in onnx is `code`. Calls of
    functions that hold such themselves, which go with no wider ones, stay as they are."""
    _round(model.graph, set(held), code, "", _holding(model, code))


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
    known = outer | {t.name for t in graph.initializer if t.data_type == code}
    nodes = list(graph.node)
    del graph.node[:]
    wide: dict[str, str] = {}  # what is read, by name
    for node in nodes:
        for body in bodies_of(node):
            _round(body, known, code, f"{depth}\N{PRIME}", calls)
        if node.op_type in _AS_IT_IS or (node.domain, node.op_type) in calls:
            graph.node.append(node)
            continue
        for i, name in enumerate(node.input):
            if name in known and name not in wide:
                wide[name] = f"{name}{_WIDE}{depth}"
                _cast(graph, name, wide[name], _FLOAT)
            node.input[i] = wide.get(name, name)
        narrow = [name for name in node.output if name in known]
        for i, name in enumerate(node.output):
            if name in known:
                node.output[i] = name + _RAW
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
