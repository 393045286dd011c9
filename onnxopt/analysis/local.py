"""Types of what a pass has just made, from what is known of its inputs: one operator at a time, when somebody asks.

Inference over the model comes later, and sees only what is in it. A rule asks before.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from onnx import NodeProto, TensorProto, TypeProto
from onnx.defs import OpSchema

from onnxopt.analysis.inference import infer_operator
from onnxopt.analysis.misread import is_misread
from onnxopt.graph.node import Node
from onnxopt.graph.schema import find_schema
from onnxopt.graph.value import Value
from onnxopt.protos import array_to_tensor, tensor_bytes, tensor_type, tensor_type_proto

DATA_UP_TO: Final = 4096  # bytes; larger constants are no shapes, axes or indices
Known: TypeAlias = "tuple[TypeProto, TensorProto | None]"  # of a value
Call: TypeAlias = "tuple[OpSchema, NodeProto, dict[str, TypeProto], dict[str, TensorProto], int]"
NOTHING: Final[Mapping[Value, Known]] = MappingProxyType({})


def infer_made(value: Value) -> None:
    """Find out the type of a value that a pass made, and of those it is made of. Asks once for each."""
    stack = [value]
    while stack:
        asked = stack[-1]
        node = asked.producer
        waiting = [v for v in node.inputs if v is not None and v.unasked and v is not asked] if node is not None else []
        if waiting and asked.unasked:
            asked.unasked = False
            stack += waiting
            continue
        stack.pop()
        asked.unasked = False
        if node is not None and not asked.dtype:
            _infer(node)


def as_call(node: Node, given: Mapping[Value, Known] = NOTHING) -> Call | None:
    """What inference is asked about one operator, with `given` in place of what is known of some operands. Its results
    are called o0, o1, … None where it cannot be asked."""
    from onnxopt.analysis import types  # which asks this module

    graph = next((v.graph for v in node.outputs if v is not None), None)
    schema = find_schema(node.op, graph.opset(node.domain)) if graph is not None else None
    if graph is None or schema is None or node.bodies or node.has_references:
        return None
    names = ["" if v is None else f"i{i}" for i, v in enumerate(node.inputs)]
    kinds: dict[str, TypeProto] = {}
    data: dict[str, TensorProto] = {}
    for name, v in zip(names, node.inputs):
        if v is None:
            continue
        if v in given:
            kinds[name], tensor = given[v]
            if tensor is not None:
                data[name] = tensor
            continue
        kind = types.dtype(v)
        if not kind:
            return None
        kinds[name] = tensor_type_proto(kind, types.shape(v))
        if v.constant and tensor_bytes(*v.constant_type()) <= DATA_UP_TO:
            data[name] = array_to_tensor(v.array, name)
    proto = NodeProto(op_type=node.proto.op_type, domain=node.proto.domain, attribute=node.proto.attribute)
    proto.input.extend(names)
    proto.output.extend(f"o{i}" for i in range(len(node.outputs)))
    return schema, proto, kinds, data, graph.opset(node.domain)


def _infer(node: Node) -> None:
    graph = next((v.graph for v in node.outputs if v is not None), None)
    if graph is None or node.op == "Constant" or is_misread(node, graph.opset()):
        return
    call = as_call(node)
    found = infer_operator(*call) if call is not None else {}
    for i, v in enumerate(node.outputs):
        if v is not None and f"o{i}" in found:
            kind, dims = tensor_type(found[f"o{i}"])
            v.dtype = v.dtype or kind
            v.shape = v.shape if v.shape is not None else dims
            graph.model.is_vague = graph.model.is_vague or dims is None or None in dims  # inference may know more
