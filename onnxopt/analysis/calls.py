"""Types of calls of the model's functions, by onnx's inference of the function's body."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from onnxopt.analysis.inference import DATA_UP_TO, known, numbered
from onnxopt.analysis.misread import SLICE, is_misread
from onnxopt.graph.dims import rename_dims
from onnxopt.graph.model import Model, inner_scopes
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.graph.writer import write_functions
from onnxopt.proto.inference import infer_shapes, inferable
from onnxopt.proto.messages import body_graphs, of_any_shape, qualified, tensor_bytes

# Operators that onnx infers correctly for some operands only, whose types are unknown inside a function.
_BY_OPERANDS: Final = ("Attention", "Einsum", "NonZero", "PRelu")


class Functions(dict[tuple[str, str], FunctionProto]):
    """Functions by qualified name and overload: copies without declared shapes, misread nodes and large constants.

    `keeps_cut_symbols`: whether onnx may take the length of a cut for the length in front of it.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        write_functions(model)
        for graph in model.functions.values():
            copy = FunctionProto()
            copy.CopyFrom(graph.proto)
            _forget_claims(copy.node)
            for node, proto in zip(graph, copy.node):
                _hide_misread(node, proto)
            self[qualified(copy.name, copy.domain), copy.overload] = copy
        scopes = (scope for function in model.functions.values() for scope in inner_scopes(function))
        self.keeps_cut_symbols = any(scope.opset() == SLICE and scope.by_op.get("Slice") for scope in scopes)


def _hide_misread(node: Node, proto: NodeProto) -> None:
    """Make misread nodes unknown operators, also in bodies; and Loops with states that are sequences or optionals.

    onnx assumes that the elements of these states keep their first shape."""
    if node.op in _BY_OPERANDS or is_misread(node, node.scope.opset()):
        proto.op_type = ""
    for a in proto.attribute if node.op == "Constant" else ():
        if tensor_bytes(a.t.data_type, a.t.dims) > DATA_UP_TO:  # each call copies the function
            a.t.CopyFrom(TensorProto(data_type=a.t.data_type, dims=a.t.dims))
    for name, body in body_graphs(proto):
        if node.op == "Loop" and any(i.type.WhichOneof("value") not in (None, "tensor_type") for i in body.input):
            proto.op_type = ""
        for inner, copy in zip(node.bodies.get(name, ()), body.node):
            _hide_misread(inner, copy)


def _forget_claims(nodes: Iterable[NodeProto]) -> None:
    """Remove declared shapes and dim names from bodies: onnx believes them, and runtimes do not check them."""
    for node in nodes:
        for _, body in body_graphs(node):
            for info in (*body.input, *body.value_info, *body.output):
                info.type.CopyFrom(of_any_shape(info.type))
            _forget_claims(body.node)


def _called(functions: Functions, node: Node) -> Iterator[FunctionProto]:
    """Yield the functions that a call needs, directly and through others."""
    seen, stack = set[tuple[str, str]](), [node.proto]
    while stack:
        call = stack.pop()
        key = qualified(call.op_type, call.domain), call.overload
        if key in functions and key not in seen:
            seen.add(key)
            yield functions[key]
            stack += functions[key].node
        stack += (inner for _, body in body_graphs(call) for inner in body.node)


def call_types(node: Node, functions: Functions) -> dict[Value, TypeProto]:
    """Return the types of the results of a call, by inference of the function's body."""
    proto = _of_call(node, functions)
    try:
        infos = infer_shapes(inferable(proto)).graph.output
    except Exception:  # inference is optional: an unreadable call has no facts
        return {}
    symbols = set[str]()
    if not functions.keeps_cut_symbols:
        symbols.update(d.dim_param for i in proto.graph.input for d in i.type.tensor_type.shape.dim)
    found = {v: i.type for v, i in zip(node.outputs, infos) if v is not None and i.type.WhichOneof("value")}
    for kind in found.values():
        rename_dims(kind, lambda name: name if name in symbols else "")
    return found


def _of_call(node: Node, functions: Functions) -> ModelProto:
    """Return a model of the call alone, with the known types and constants of the operands."""
    model = node.scope.model
    proto = ModelProto(ir_version=max(model.ir_version, 8))
    proto.functions.extend(_called(functions, node))
    for domain, version in (node.scope.root.opsets or model.opsets).items():
        proto.opset_import.add(domain=domain, version=version)
    proto.graph.name = "call"
    proto.graph.node.append(numbered(node))
    for i, v in enumerate(node.inputs):
        fact = None if v is None else known(v)
        if fact is not None:
            proto.graph.input.add(name=f"i{i}", type=fact[0])
            if fact[1] is not None:
                proto.graph.initializer.add().CopyFrom(fact[1])
                proto.graph.initializer[-1].name = f"i{i}"
    proto.graph.output.extend(ValueInfoProto(name=f"o{i}") for i in range(len(node.outputs)))
    return proto
