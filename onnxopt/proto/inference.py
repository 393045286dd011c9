"""Shape inference without crashes; the only import of onnx.shape_inference.

For some calls, onnx's inference crashes or does not terminate: an operand without a type, a count in an attribute, an
equation without an end. Python cannot catch either. Such calls are hidden: they become an unknown operator, with
results of unknown types. `tests/hostile/odd_calls.py` draws invalid calls of all operators, and finds those that crash
inference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NewType, TypeAlias

from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    shape_inference,
)
from onnx.defs import OpSchema

from onnxopt.operators import CONTROL_FLOW
from onnxopt.proto.messages import body_graphs, is_below_zero
from onnxopt.proto.wire import call_of

Inferable = NewType("Inferable", bytes)
_Named: TypeAlias = "tuple[str, bytes]"  # (name, serialized message)
_MAX_CACHED_BYTES: Final = 1 << 13  # bytes of a call and its constant operands, with a cached result
InferenceError = shape_inference.InferenceError

# Operators that crash onnx (1.23) if their first operand has no type; a test tries every operator.
BLIND: Final = frozenset({"DictVectorizer", "EyeLike", "LabelEncoder", "RegexFullMatch", "TreeEnsemble"})


def infer_shapes(model: Inferable, values: bool = False, strict: bool = False) -> ModelProto:
    """Return a model with inferred shapes, as onnx.shape_inference.infer_shapes without its imports.

    `values`: propagate integer values too. `strict`: raise InferenceError for an error that any run would meet.
    """
    inferred = ModelProto.FromString(shape_inference.C.infer_shapes(model, False, strict, values))
    if model.find(_CHECKS) >= 0:
        from onnxopt.proto.negative_dims import restore

        restore(inferred, CONTROL_FLOW)
    return inferred


def infer_call(
    schema: OpSchema, call: NodeProto, types: dict[str, TypeProto], data: dict[str, TensorProto], opset: int
) -> dict[str, TypeProto]:
    """Return the types of the results of a call without bodies, whose operands have types. Raises onnx's errors."""
    if not is_sound(call) or (call.op_type in _NO_NEGATIVE and any(map(is_below_zero, types.values()))):
        return {}
    asked = call.SerializeToString()
    kinds = tuple((name, kind.SerializeToString()) for name, kind in types.items())
    held = tuple((name, tensor.SerializeToString()) for name, tensor in data.items())
    ask = _infer_call if len(asked) + sum(len(t) for _, t in held) <= _MAX_CACHED_BYTES else _infer_call.__wrapped__
    return {name: TypeProto.FromString(kind) for name, kind in ask(schema, asked, kinds, held, opset)}


@lru_cache(maxsize=1024)
def _infer_call(
    schema: OpSchema, asked: bytes, types: tuple[_Named, ...], data: tuple[_Named, ...], opset: int
) -> tuple[_Named, ...]:
    """Infer from serialized messages, cached: most calls of a model equal an earlier call."""
    call = NodeProto.FromString(asked)
    found = shape_inference.infer_node_outputs(
        schema,
        call,
        {name: TypeProto.FromString(kind) for name, kind in types},
        {name: TensorProto.FromString(tensor) for name, tensor in data},
        opset_imports=[OperatorSetIdProto(domain=call.domain, version=opset)],
    )
    return tuple((name, kind.SerializeToString()) for name, kind in found.items())


def inferable(model: ModelProto) -> Inferable:
    """Return the model prepared for `infer_shapes`; `model` stays unchanged."""
    data = model.SerializeToString()
    if re.search(_NEGATIVE, data) or (_is_marked(data) and not _is_sound_throughout(model)):
        model = ModelProto.FromString(data)
        _hide(model)
        open_sizes(model.graph)
        rest = _give_types(model.graph)
        model.graph.value_info.extend(ValueInfoProto(name=name, type=_nothing_known()) for name in sorted(rest))
        data = model.SerializeToString()
    if any(call_of(op) in data for op in _NO_NEGATIVE):
        from onnxopt.proto.negative_dims import add_size_checks

        checked = ModelProto.FromString(data)
        if add_size_checks(checked, CONTROL_FLOW):
            del data  # freed before serializing again: here memory use is highest
            data = checked.SerializeToString()
    return Inferable(data)


def _is_marked(data: bytes) -> bool:
    """Whether a serialized model may have an unsound call: a quick search, which rules it out for most models."""
    return any(call_of(op) in data and re.search(mark, data) for op, (_, mark) in _SOUND.items())


def _is_sound_throughout(model: ModelProto) -> bool:
    scopes = (model.graph.node, *(f.node for f in model.functions))
    return all(n.op_type not in BLIND and is_sound(n) for nodes in scopes for n in _asked(nodes))


def _hide(model: ModelProto) -> None:
    """Hide unsound calls, in place, and `BLIND` operators in functions, whose operands cannot get types."""
    called = [n for f in model.functions for n in _asked(f.node)]
    for node in (*_asked(model.graph.node), *called):
        if not is_sound(node):
            node.op_type = ""
    for node in called:
        if node.op_type in BLIND:
            node.op_type = ""


def _give_types(graph: GraphProto) -> set[str]:
    """Give operands of `BLIND` operators without a type an empty type, in one graph and its bodies, in place.

    Other inferred types stay the same. Returns the names of operands defined elsewhere.
    """
    asked: set[str] = set()
    for node in graph.node[:]:
        for _, body in body_graphs(node):
            asked |= _give_types(body)
        if node.op_type in BLIND:
            asked.update(node.input[:1])
    if not asked:
        return asked
    infos = {i.name: i for i in (*graph.output, *graph.value_info, *graph.input)}
    stored = {t.name for t in graph.initializer[:]} | {t.values.name for t in graph.sparse_initializer}
    made = stored.union(infos, (o for n in graph.node[:] for o in n.output[:]))
    for name in sorted((asked & made) - stored):
        info = infos[name] if name in infos else graph.value_info.add(name=name)
        if info.type.WhichOneof("value") is None:
            info.type.CopyFrom(_nothing_known())
    return asked - made


def open_sizes(graph: GraphProto) -> None:
    """Make negative sizes unknown, in place: exporters write them for dynamic sizes, and onnx calculates with them."""
    for info in (*graph.input, *graph.value_info, *graph.output):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_value < 0:
                dim.Clear()
    for i in reversed([i for i, tensor in enumerate(graph.initializer) if min(tensor.dims, default=0) < 0]):
        del graph.initializer[i]


def _nothing_known() -> TypeProto:
    kind = TypeProto()
    kind.tensor_type.SetInParent()
    return kind


def _asked(nodes: Sequence[NodeProto]) -> Iterator[NodeProto]:
    """Yield the nodes to check, also in bodies that inference enters."""
    for node in nodes[:]:
        op = node.op_type
        if op in _SOUND:
            yield node
        elif op in CONTROL_FLOW:
            for _, body in body_graphs(node):
                yield from _asked(body.node)


def is_sound(call: NodeProto) -> bool:
    """Whether inference of a call terminates without a crash, if the operands have types."""
    return call.op_type not in _SOUND or _SOUND[call.op_type][0](call)


def _says(call: NodeProto, name: str, test: Callable[[AttributeProto], bool]) -> bool:
    """Whether the attribute is absent or passes the test; a reference to an attribute of a function fails."""
    return all(not a.ref_attr_name and test(a) for a in call.attribute if a.name == name)


_INT_MAX: Final = 2**31 - 1
_TERM: Final = rb"[A-Za-z]*(\.\.\.[A-Za-z]*)?"
_EQUATION: Final = rb"%b(,%b)*(->%b)?" % (_TERM, _TERM, _TERM)
# Operators with unsound calls: the condition of a sound call, and a regular expression that matches every serialized
# model with an unsound call.
_SOUND: Final[dict[str, tuple[Callable[[NodeProto], bool], bytes]]] = {
    **dict.fromkeys(BLIND, (lambda call: bool(call.input and call.input[0]), b"")),
    "Split": (lambda call: _says(call, "num_outputs", lambda a: a.i == len(call.output)), b"num_outputs"),
    "Einsum": (
        lambda call: _says(call, "equation", lambda a: bool(re.fullmatch(_EQUATION, a.s.replace(b" ", b"")))),
        b"",
    ),
    "LayerNormalization": (
        lambda call: len(call.output) < 2 or _says(call, "axis", lambda a: a.i <= _INT_MAX),
        rb"\x18[\x80-\xff]{4,8}[\x00-\x7f]",  # an integer of more than 28 bits
    ),
    "GatherND": (lambda call: _says(call, "batch_dims", lambda a: a.i >= 0), b"batch_dims"),
}
_NO_NEGATIVE: Final = frozenset({"GatherND", "Slice"})  # crash at negative sizes
_NEGATIVE: Final = rb"\x08[\x80-\xff]{9}\x01"  # a serialized negative size
_CHECKS: Final = b"onnxopt.proto.negative_dims"
