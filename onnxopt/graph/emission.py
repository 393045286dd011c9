"""Schema checks of each node when a pass makes the node.

A checker of the whole model would find an invalid node only later, and could not name the pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from onnx import AttributeProto, NodeProto, TensorProto

from onnxopt.errors import EmissionError, MistypedError, few, nearest
from onnxopt.graph.schema import (
    declared,
    first_opset,
    formals,
    import_domain,
    is_known,
    is_standard,
    operators_of,
    opset_for,
    signature,
    where,
)
from onnxopt.graph.value import Shape, Value
from onnxopt.operators.signatures import Formal, Signature
from onnxopt.plaintext import an
from onnxopt.proto.messages import BODY_TYPES, make_attribute, qualified, type_name

if TYPE_CHECKING:
    from onnxopt.graph.graph import Graph
    from onnxopt.graph.node import Node

_MOST_CALLS: Final = 1 << 10  # calls of few different operators and types
_NO_VALUE: Final = "not a value: m.value(name) is one that is there, m.const(array) a new one"


def make_call(
    graph: Graph,
    op_type: str,
    domain: str,
    inputs: Sequence[Value | None],
    outputs: Sequence[Value | None],
    attributes: Mapping[str, Any],
    *,
    like: NodeProto | None = None,
    place: object = None,
) -> NodeProto:
    """Return the NodeProto of a new call; fields of `like` other than value names and `attributes` are copied.

    Sets the element types of `outputs`. `place`: the node for which the call is made, for messages. An attribute of
    value None is left out. Raises EmissionError if the call violates the operator's schema, and DomainError if the
    domain is not allowed.
    """
    op = qualified(op_type, domain)
    opset = opset_for(graph, op, place)
    defined = signature(op, opset)
    given = [_attribute(k, v, defined) for k, v in attributes.items() if v is not None]
    proto = NodeProto()
    same = like is not None and (op_type, domain) == (like.op_type, like.domain)
    if like is not None:
        proto.CopyFrom(like)
        kept = [a for a in proto.attribute[:] if a.name not in attributes]
        if len(kept) < len(proto.attribute):
            del proto.attribute[:]
            proto.attribute.extend(kept)
    proto.op_type, proto.domain = op_type, domain
    proto.attribute.extend(given)
    check_call(graph, proto, inputs, outputs, place, opset, given if same else proto.attribute[:], known=same)
    return proto


def admit(graph: Graph, node: Node) -> None:
    """Import the domain of a node's operator into the model and the function around `graph`, if missing.

    Raises DomainError if the domain is not allowed, and EmissionError for an unknown operator.
    """
    domain = node.op.rpartition("::")[0]
    opset = opset_for(graph, node.op)
    if not is_known(node.op, opset) and not graph.model.has_function(node.op):
        objection = _unknown(node.op, opset)
        if objection:
            raise refusal(graph, None, objection, node.op, opset)
    if not graph.opset(domain):
        import_domain(graph, domain, opset)


def check_call(
    graph: Graph,
    proto: NodeProto,
    inputs: Sequence[Value | None],
    outputs: Sequence[Value | None],
    place: object,
    opset: int = -1,
    attributes: Sequence[AttributeProto] = (),
    *,
    known: bool = True,
) -> None:
    """Raise EmissionError if a call may not have these inputs, outputs and new `attributes`, and MistypedError for
    element types that the schema does not allow. Sets the element types of `outputs`.

    `opset`: in force in `graph` by default. `known`: a node of this operator existed before.
    """
    op = qualified(proto.op_type, proto.domain)
    opset = graph.opset_of(op) if opset < 0 else opset
    defined = signature(op, opset)
    known = known or (defined is None and graph.model.has_function(op))
    odd = next(((i, v) for i, v in enumerate(inputs) if v is not None and not isinstance(v, Value)), None)
    objection = "" if odd is None else f"its input {odd[0]} is {an(type(odd[1]).__name__)}, {_NO_VALUE}"
    if defined is None:
        objection = objection or ("" if known else _unknown(op, opset))
    else:
        objection = objection or _misfit(defined, inputs, len(outputs))
        objection = objection or _objection_to_all(attributes, opset, defined, known=known)
    if objection:
        raise refusal(graph, place, objection, op, opset)
    if (types := formals(op, opset)) is None:
        return
    bound: dict[str, int] = {}
    kinds = [v.known_dtype if v is not None else 0 for v in inputs]
    objection = _bind_types(types[0], kinds, bound) or _set_types(types[1], outputs, bound, proto)
    if objection:
        raise refusal(graph, place, objection, op, opset, kind=MistypedError)


def type_results(node: Node, defined: Signature, kinds: Sequence[int | None]) -> None:
    """Set the element types of a node's results by the signature, from those of its operands: 0 if unknown, None if
    absent. An invalid call gives no types."""
    bound = _bound(defined, tuple(kinds), len(node.outputs))
    if bound is not None and not _objection_to_all(node.proto.attribute[:], 0, defined, known=False):
        _set_types(defined.results, node.outputs, bound, node.proto)


@lru_cache(_MOST_CALLS)
def _bound(defined: Signature, kinds: tuple[int | None, ...], outputs: int) -> Mapping[str, int] | None:
    """Return the types of the variables in a signature; None for an invalid call. Repeated layers make equal calls."""
    bound: dict[str, int] = {}
    return None if _misfit(defined, kinds, outputs) or _bind_types(defined.operands, kinds, bound) else bound


def _bind_types(given: Sequence[Formal], kinds: Sequence[int | None], bound: dict[str, int]) -> str:
    """Bind type variables of a signature to the operands' element types, 0 if unknown. Returns a violation, or ""."""
    for i, kind in enumerate(kinds):
        if not kind:
            continue
        formal = given[i] if i < len(given) else given[-1]
        if kind not in formal.allowed:
            takes = few([type_name(t) for t in sorted(formal.allowed)]) or "no tensor"
            return f"its input {i} is {type_name(kind)}, and it takes {takes}"
        if formal.symbol and bound.setdefault(formal.symbol, kind) != kind:
            return f"its input {i} is {type_name(kind)}, beside {type_name(bound[formal.symbol])}"
    return ""


def _set_types(
    made: Sequence[Formal], outputs: Sequence[Value | None], bound: Mapping[str, int], proto: NodeProto
) -> str:
    """Set the element types of `outputs`, if known. Returns which type contradicts a known one, or an empty string."""
    for i, v in enumerate(outputs):
        if v is None:
            continue
        formal = made[i] if i < len(made) else made[-1]
        kind = bound.get(formal.symbol, 0) or formal.only or _type_in_attributes(proto)
        if kind not in formal.allowed:
            continue  # the type is not known
        if v.dtype and v.dtype != kind:
            return f"it results in {type_name(kind)}, and `{v.name}` is {type_name(v.dtype)}"
        v.dtype = kind
    return ""


def _type_in_attributes(proto: NodeProto) -> int:
    """Return the element type named by the attributes of a Cast, random or fill operator; 0 if there is none."""
    for a in proto.attribute[:]:
        if a.name in ("to", "dtype") and a.type == AttributeProto.INT and not a.ref_attr_name:
            return int(a.i)
        if a.name == "value" and a.type == AttributeProto.TENSOR and not a.ref_attr_name:
            return int(a.t.data_type)
    return int(TensorProto.FLOAT) if proto.op_type == "ConstantOfShape" and not proto.attribute else 0


def check_attribute(graph: Graph, node: Node, name: str, attribute: AttributeProto | None) -> None:
    """Raise EmissionError if the node may not have `attribute`, or if `attribute` is None and `name` is required."""
    opset = graph.opset_of(node.op)
    defined = signature(node.op, opset)
    if defined is None:
        return
    objection = _objection_to(attribute, defined) if attribute is not None else ""
    if attribute is None and name in defined.required:
        objection = f"its attribute `{name}` cannot be taken out"
    if objection:
        raise refusal(graph, node, objection, hint=f"in opset {opset} it is {defined}")


def refusal(
    graph: Graph,
    place: object,
    objection: str,
    op: str = "",
    opset: int = 0,
    hint: str = "this is a bug in the pass",
    kind: type[EmissionError] = EmissionError,
) -> EmissionError:
    """Return the error for `objection` at `place`, to a call of `op` or, without `op`, to an action of a pass."""
    defined = signature(op, opset)
    if defined is not None:
        hint = f"in opset {opset} it is {defined}"
    elif since := first_opset(op, opset):
        hint = f"it is there from opset {since} on: require that, or --target-opset {since} converts the model"
    elif op:
        hint = nearest(op, operators_of(op.rpartition("::")[0]), hint)
    message = f"{where(graph, op, place)}: {objection}"
    return MistypedError(message, hint, objection) if kind is MistypedError else kind(message, hint)


def contradiction(old: Value, data_type: int, dims: Shape | None) -> str:
    """Return how a type differs from the known type of `old`, the value to replace; empty if it does not differ.

    A `data_type` of 0 and `dims` of None are unknown.
    """
    was, shape = old.known_dtype, old.known_shape
    alike = not (was and data_type) or was == data_type
    if alike and dims is not None and shape is not None:
        alike = len(dims) == len(shape) and all(
            a == b or not isinstance(a, int) or not isinstance(b, int) for a, b in zip(dims, shape)
        )
    if alike:
        return ""
    from onnxopt.graph.text import shape_text

    told, told_was = (shape_text(type_name(t or was).lower(), d) for t, d in ((data_type, dims), (was, shape)))
    return f"what replaces `{old.name}` is {told}, not {told_was}"


def describe_as(proto: NodeProto, like: NodeProto) -> None:
    """Copy name, doc string and metadata to a new node from the replaced node."""
    if name := like.name:  # setting an empty field would still add bytes
        proto.name = str(name)
    doc_string = like.doc_string
    if doc_string and isinstance(doc_string, str):  # protobuf returns invalid UTF-8 as bytes, which cannot be set again
        proto.doc_string = doc_string
    proto.metadata_props.extend(like.metadata_props)


def _attribute(name: str, value: Any, defined: Signature | None) -> AttributeProto:
    """Return an AttributeProto; the type of an empty list is taken from the schema."""
    if isinstance(value, (list, tuple)) and not value and defined is not None and name in defined.attributes:
        return AttributeProto(name=name, type=defined.attributes[name])
    return make_attribute(name, value)


def _misfit(defined: Signature, inputs: Sequence[object], outputs: int) -> str:
    """Return why a call may not have these inputs and so many outputs, or an empty string."""
    if not defined.takes(len(inputs)):
        return f"it is given {len(inputs)} inputs"
    if not defined.outputs[0] <= outputs <= defined.outputs[1]:
        return f"{outputs} outputs are asked of it"
    for i in defined.needed:
        if i < len(inputs) and inputs[i] is None:
            return f"its input {i} is absent"
    return ""


def _objection_to_all(attributes: Sequence[AttributeProto], opset: int, defined: Signature, *, known: bool) -> str:
    """Return why a call may not have these attributes, or an empty string. `known`: a node of this operator existed
    before."""
    for a in attributes:
        if objection := _objection_to(a, defined):
            return objection
        if a.type in BODY_TYPES:
            return f"its body `{a.name}` cannot be made by a pass"
    if known:
        return ""
    if defined.deprecated:
        return f"it is deprecated in opset {opset}"
    missing = defined.required and defined.required.difference([a.name for a in attributes])
    return f"its attribute `{min(missing)}` is missing" if missing else ""


def _objection_to(attribute: AttributeProto, defined: Signature) -> str:
    """Return why the schema does not allow an attribute, or an empty string."""
    wanted = defined.attributes.get(attribute.name)
    if wanted is None:
        return f"it has no attribute `{attribute.name}`"
    if wanted != attribute.type and not attribute.ref_attr_name:
        kind = AttributeProto.AttributeType.Name
        return f"its attribute `{attribute.name}` is {kind(wanted)}, not {kind(attribute.type)}"
    return ""


def _unknown(op: str, opset: int) -> str:
    domain, _, op_type = op.rpartition("::")
    if is_standard(domain):
        return f"opset {opset} of {domain or 'ai.onnx'} has no operator {op_type}"
    known = declared(domain)
    if known is not None and known.operators and op_type not in known.operators:
        return f"the domain {domain} is declared without an operator {op_type}"
    return ""
