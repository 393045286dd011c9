"""The door to onnx.shape_inference: what it is asked is such that it answers.

It trusts what it reads, in places: it dies of an operand without a type, counts as far as an attribute says, looks for
the end of an equation for ever. Nothing in Python ends that, and whoever asks dies with it. Such calls are hidden: they
become an operator that onnx does not know, and nothing is known of what they make. `tests/hostile/odd_calls.py` makes
calls that nobody should make, of all operators, and finds those of which inference dies.
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
from onnxopt.proto.messages import body_graphs
from onnxopt.proto.wire import call_of

Inferable = NewType("Inferable", bytes)
_Named: TypeAlias = "tuple[str, bytes]"  # a message
_REMEMBERED: Final = 1 << 13  # bytes of a call, and of what it reads, up to which its answer is kept
InferenceError = shape_inference.InferenceError

# Of these onnx (1.23) dies where what they read first has no type; a test looks at every operator.
BLIND: Final = frozenset({"DictVectorizer", "EyeLike", "LabelEncoder", "RegexFullMatch", "TreeEnsemble"})


def infer_shapes(model: Inferable, values: bool = False, strict: bool = False) -> ModelProto:
    """As onnx.shape_inference.infer_shapes, which imports readers of text and JSON to read the result. `values`: those
    of integers are followed too. `strict`: raises InferenceError for what is an error in any run."""
    inferred = ModelProto.FromString(shape_inference.C.infer_shapes(model, False, strict, values))
    if model.find(_LOOKS) >= 0:
        from onnxopt.proto.negative_dims import restore

        restore(inferred, CONTROL_FLOW)
    return inferred


def infer_call(
    schema: OpSchema, call: NodeProto, types: dict[str, TypeProto], data: dict[str, TensorProto], opset: int
) -> dict[str, TypeProto]:
    """Types of what one operator makes, which has no bodies, and whose operands have types. Raises what onnx does."""
    if not is_sound(call) or (call.op_type in _MINDFUL and any(map(is_below_zero, types.values()))):
        return {}
    asked = call.SerializeToString()
    kinds = tuple((name, kind.SerializeToString()) for name, kind in types.items())
    held = tuple((name, tensor.SerializeToString()) for name, tensor in data.items())
    ask = _infer_call if len(asked) + sum(len(t) for _, t in held) <= _REMEMBERED else _infer_call.__wrapped__
    return {name: TypeProto.FromString(kind) for name, kind in ask(schema, asked, kinds, held, opset)}


@lru_cache(maxsize=1024)
def _infer_call(
    schema: OpSchema, asked: bytes, types: tuple[_Named, ...], data: tuple[_Named, ...], opset: int
) -> tuple[_Named, ...]:
    """The same of messages as bytes: a model asks of most of its operators what it has asked of another."""
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
    """The model for `infer_shapes`; itself it stays as it is."""
    data = model.SerializeToString()
    if _NEGATIVE.search(data) or (_is_marked(data) and not _is_sound_throughout(model)):
        model = ModelProto.FromString(data)
        _hide(model)
        open_sizes(model.graph)
        _give_types(model)
        data = model.SerializeToString()
    if any(call in data for call in _MINDFUL_CALLS):
        from onnxopt.proto.negative_dims import looking_first

        with looking_first(model, CONTROL_FLOW) as changed:
            if changed:
                del data  # before it is written again: memory is highest here
                data = model.SerializeToString()
    return Inferable(data)


def _is_marked(data: bytes) -> bool:
    """Is it worthwhile to walk over the nodes? In bytes it is seen in no time that most models have nothing to find."""
    return any(call in data and (op not in _MARKS or re.search(_MARKS[op], data)) for call, op in _CALLS.items())


def _is_sound_throughout(model: ModelProto) -> bool:
    scopes = (model.graph.node, *(f.node for f in model.functions))
    return all(n.op_type not in BLIND and is_sound(n) for nodes in scopes for n in _asked(nodes))


def _hide(model: ModelProto) -> None:
    """What onnx cannot be asked about, in place: also what is `BLIND` in a function, which cannot be given types."""
    called = [n for f in model.functions for n in _asked(f.node)]
    for node in (*_asked(model.graph.node), *called):
        if not is_sound(node):
            node.op_type = ""
    for node in called:
        if node.op_type in BLIND:
            node.op_type = ""


def _give_types(model: ModelProto) -> None:
    """Give what `BLIND` operators read an empty type where it has none, in place: what is inferred is the same."""
    rest = _give_types_in(model.graph)
    model.graph.value_info.extend(ValueInfoProto(name=name, type=_nothing_known()) for name in sorted(rest))


def _give_types_in(graph: GraphProto) -> set[str]:
    """Returns the names of what is not made here."""
    asked: set[str] = set()
    for node in graph.node[:]:
        for _, body in body_graphs(node):
            asked |= _give_types_in(body)
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


def is_below_zero(kind: TypeProto) -> bool:
    return any(dim.dim_value < 0 for dim in kind.tensor_type.shape.dim)


def open_sizes(graph: GraphProto) -> None:
    """Sizes below zero, which onnx calculates with, in place: that is how exporters say that one is dynamic."""
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
    """Of these, and of those in bodies that onnx enters, the ones that have to be looked at."""
    for node in nodes[:]:
        op = node.op_type
        if op in _SOUND:
            yield node
        elif op in CONTROL_FLOW:
            for _, body in body_graphs(node):
                yield from _asked(body.node)


def is_sound(call: NodeProto) -> bool:
    """Is it one of which onnx does not die, if its operands have types?"""
    return call.op_type not in _SOUND or _SOUND[call.op_type](call)


def _reads_something(blind: NodeProto) -> bool:
    return bool(blind.input and blind.input[0])


def _gives_all_parts(split: NodeProto) -> bool:
    return _says(split, "num_outputs", lambda a: a.i == len(split.output))


def _is_equation(einsum: NodeProto) -> bool:
    return _says(einsum, "equation", lambda a: re.fullmatch(_EQUATION, a.s.replace(b" ", b"")) is not None)


def _has_axis(norm: NodeProto) -> bool:
    return len(norm.output) < 2 or _says(norm, "axis", lambda a: a.i <= _INT_MAX)


def _shares_axes(gather: NodeProto) -> bool:
    return _says(gather, "batch_dims", lambda a: a.i >= 0)


def _says(call: NodeProto, name: str, test: Callable[[AttributeProto], bool]) -> bool:
    """Does the attribute pass, if it is there? What a caller of a function says may be anything."""
    return all(not a.ref_attr_name and test(a) for a in call.attribute if a.name == name)


_INT_MAX: Final = 2**31 - 1
_TERM: Final = rb"[A-Za-z]*(\.\.\.[A-Za-z]*)?"
_EQUATION: Final = rb"%b(,%b)*(->%b)?" % (_TERM, _TERM, _TERM)  # compiled where there is one
_SOUND: Final[dict[str, Callable[[NodeProto], bool]]] = {
    **dict.fromkeys(BLIND, _reads_something),
    "Split": _gives_all_parts,
    "Einsum": _is_equation,
    "LayerNormalization": _has_axis,
    "GatherND": _shares_axes,
}

_MINDFUL: Final = frozenset({"GatherND", "Slice"})  # which die of sizes below zero

# The same in bytes, as the wire has it.
_NEGATIVE: Final = re.compile(rb"\x08[\x80-\xff]{9}\x01")  # a size
_CALLS: Final = {call_of(op): op for op in _SOUND}
_MINDFUL_CALLS: Final = [call_of(op) for op in sorted(_MINDFUL)]
_LOOKS: Final = b"onnxopt.proto.negative_dims"
_MARKS: Final = {
    "Split": rb"num_outputs",
    "GatherND": rb"batch_dims",
    "LayerNormalization": rb"\x18[\x80-\xff]{4,8}[\x00-\x7f]",  # an integer of more than 28 bits
}
