"""Element types and shapes of values on demand: known facts, else inference.

Inference runs when a rule queries a value without facts, at most once between two calls of `refresh_allowed`: cost
stays linear. Each round of passes begins with all facts (`settle`), so the result equals that of a second run. Types of
nodes just made by a pass, outside the graph, are inferred from their inputs, operator by operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias, TypeVar

from onnx import NodeProto, TensorProto, TypeProto
from onnx.defs import OpSchema

from onnxopt.analysis.facts import infer
from onnxopt.analysis.inference import infer_operator
from onnxopt.analysis.misread import is_misread
from onnxopt.graph.dims import is_invented
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.graph.schema import find_schema
from onnxopt.graph.value import Shape, Value
from onnxopt.proto.messages import array_to_tensor, tensor_bytes, tensor_type, tensor_type_proto

DATA_UP_TO: Final = 4096  # bytes; larger constants are no shapes, axes or indices
Known: TypeAlias = "tuple[TypeProto, TensorProto | None]"  # (type, data) of a value
Call: TypeAlias = "tuple[OpSchema, NodeProto, dict[str, TypeProto], dict[str, TensorProto], int]"
D = TypeVar("D")
NOTHING: Final[Mapping[Value, Known]] = MappingProxyType({})


def agreed(a: Sequence[D] | None, b: Sequence[D] | None) -> tuple[D | None, ...] | None:
    """Return the dims equal in both shapes (None elsewhere), or None if the ranks differ."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip(a, b))


def dtype(value: Value) -> int:
    """Return the ONNX element type; 0 if unknown (or not a tensor)."""
    if value.constant:
        return value.constant_type()[0]
    if not value.dtype:
        _find_out(value)
    return value.dtype


def shape(value: Value) -> Shape | None:
    """Return the dims as int, symbol (equal symbols are equal sizes) or None (unknown); None for unknown rank."""
    if value.constant:
        return value.constant_type()[1]
    if value.shape is None:
        _find_out(value)
    return value.shape


def shape_of(value: Value | None) -> Shape | None:
    """Return the shape of an operand; None for an absent one, too."""
    return None if value is None else shape(value)


def rank(value: Value) -> int | None:
    dims = shape(value)
    return None if dims is None else len(dims)


def static_shape(value: Value) -> tuple[int, ...] | None:
    """Return the shape if every dim is a number, else None."""
    dims = shape(value)
    if dims is None or not all(isinstance(d, int) for d in dims):
        return None
    return tuple(d for d in dims if isinstance(d, int))


def same_shape(a: Value, b: Value) -> bool:
    """Whether the shapes are proven equal: all dims are equal numbers or symbols."""
    x, y = shape(a), shape(b)
    return x is not None and x == y and None not in x


def foresee(nodes: Iterable[Node], values: Sequence[Value]) -> list[tuple[int, Shape | None]]:
    """Return (element type, shape) of each value, from facts known now; `nodes`, in order, are not in the graph yet.

    Stores no facts, so that a check does not influence later decisions.
    """
    made = [v for node in nodes for v in node.outputs if v is not None]
    before = [(v.dtype, v.shape, v.unasked) for v in made]
    models = {v.graph.model for v in values}
    flags = [(model, model.inference_allowed, model.is_vague) for model in models]
    for model in models:
        model.inference_allowed = False
    found = []
    for v in values:
        if v.producer is not None and v.producer.graph is None:
            found.append((dtype(v), shape(v)))
        else:
            found.append((v.known_dtype, v.known_shape))
    for v, (kind, dims, unasked) in zip(made, before):
        v.dtype, v.shape, v.unasked = kind, dims, unasked
    for model, allowed, vague in flags:
        model.inference_allowed, model.is_vague = allowed, vague
    return found


def refresh_allowed(model: Model) -> None:
    """Allow the next query without facts to run inference again, if the model changed."""
    model.inference_allowed = True
    model.analyses.clear()


def update(model: Model) -> None:
    """Run inference again if the model changed: symbols may have become numbers."""
    if model.inferred_version != model.version:
        infer(model)
        model.inferred_version = model.version


def settle(model: Model) -> None:
    """Run inference again if more may be known now; else allow it for the next query without facts."""
    model.inference_allowed = True
    if model.is_vague:
        update(model)


def is_open(value: Value) -> bool:
    """Whether the rank or a dim is known neither as a number nor by a name of the file."""
    dims = shape(value)
    return dims is None or any(d is None or is_invented(d) for d in dims)


def _find_out(value: Value) -> None:
    """Infer a value: through the graph, or for a new node by the operator alone."""
    node = value.producer
    if node is None or node.graph is not None:
        _infer_once(value.graph.model)
    if value.unasked and value.shape is None:
        _infer_made(value)


def _infer_once(model: Model) -> None:
    if model.inference_allowed and model.inferred_version != model.version:
        model.inference_allowed = False
        infer(model)
        model.inferred_version = model.version


def _infer_made(value: Value) -> None:
    """Infer the type of a value made by a pass, and of its operands, each once."""
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
        if node is not None and (not asked.dtype or asked.shape is None):
            infer_node(node)


def as_call(node: Node, given: Mapping[Value, Known] = NOTHING) -> Call | None:
    """Return the arguments of operator inference, with `given` replacing known facts; results are named o0, o1, …

    None if inference is impossible.
    """
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
        kind = dtype(v)
        if not kind:
            return None
        kinds[name] = tensor_type_proto(kind, shape(v))
        if v.constant and tensor_bytes(*v.constant_type()) <= DATA_UP_TO:
            data[name] = array_to_tensor(v.array, name)
    proto = NodeProto(op_type=node.proto.op_type, domain=node.proto.domain, attribute=node.proto.attribute)
    proto.input.extend(names)
    proto.output.extend(f"o{i}" for i in range(len(node.outputs)))
    return schema, proto, kinds, data, graph.opset(node.domain)


def infer_node(node: Node) -> None:
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
