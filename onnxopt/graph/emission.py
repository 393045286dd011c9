"""What a pass makes is looked at when it makes it: is it a call that the operator's definition allows?

A model in which such a node stands is found out by a checker long after, when nobody knows who made it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onnx import AttributeProto, NodeProto

from onnxopt.errors import EmissionError, nearest
from onnxopt.graph.domains import declared, import_domain, is_standard, opset_for, where
from onnxopt.graph.schema import Signature, first_opset, is_known, operators_of, signature
from onnxopt.graph.value import Value
from onnxopt.plaintext import an
from onnxopt.protos import make_attribute, qualified

if TYPE_CHECKING:
    from onnxopt.graph.graph import Graph
    from onnxopt.graph.node import Node


def make_call(
    graph: Graph,
    op_type: str,
    domain: str,
    inputs: Sequence[Value | None],
    outputs: int,
    attributes: Mapping[str, Any],
    *,
    like: NodeProto | None = None,
    place: object = None,
) -> NodeProto:
    """The proto of a new call; what `like` has, apart from names of values and from `attributes`, it has too.

    `place` is where it goes, for messages. An attribute of None is left out. Raises EmissionError for what the
    operator's definition does not allow, and DomainError.
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
    objection = _objection(op, opset, defined, inputs, outputs, given if same else proto.attribute, known=same)
    if objection and not (defined is None and graph.model.has_function(op)):
        raise refusal(graph, place, objection, op, opset)
    return proto


def admit(graph: Graph, node: Node) -> None:
    """Import the domain of a node's operator into the model, and into the function around `graph`, unless they do.

    Raises DomainError where it may not enter, and EmissionError for an operator that there is not.
    """
    domain = node.op.rpartition("::")[0]
    opset = opset_for(graph, node.op)
    if not is_known(node.op, opset) and not graph.model.has_function(node.op):
        objection = _unknown(node.op, opset)
        if objection:
            raise refusal(graph, None, objection, node.op, opset)
    if not graph.opset(domain):
        import_domain(graph, domain, opset)


def check_call(graph: Graph, op: str, inputs: Sequence[Value | None], outputs: int, place: object) -> None:
    """Raise EmissionError if the node that is there may not have these numbers of inputs and outputs."""
    opset = graph.opset(op.rpartition("::")[0])
    objection = _objection(op, opset, signature(op, opset), inputs, outputs, (), known=True)
    if objection:
        raise refusal(graph, place, objection, op, opset)


def check_attribute(graph: Graph, node: Node, name: str, attribute: AttributeProto | None) -> None:
    """Raise EmissionError if the node may not have this attribute, or (None) has to have one of that name."""
    opset = graph.opset(node.op.rpartition("::")[0])
    defined = signature(node.op, opset)
    if defined is None:
        return
    objection = _objection_to(attribute, defined) if attribute is not None else ""
    if attribute is None and name in defined.required:
        objection = f"its attribute `{name}` cannot be taken out"
    if objection:
        raise refusal(graph, node, objection, hint=f"in opset {opset} it is {defined}")


def refusal(
    graph: Graph, place: object, objection: str, op: str = "", opset: int = 0, hint: str = "this is a bug in the pass"
) -> EmissionError:
    """`objection` against a call of `op`, or without one against what a pass did, at `place`."""
    defined = signature(op, opset)
    if defined is not None:
        hint = f"in opset {opset} it is {defined}"
    elif since := first_opset(op, opset):
        hint = f"it is there from opset {since} on: require that, or --target-opset {since} converts the model"
    elif op:
        hint = nearest(op, operators_of(op.rpartition("::")[0]), hint)
    return EmissionError(f"{where(graph, op, place)}: {objection}", hint)


def _attribute(name: str, value: Any, defined: Signature | None) -> AttributeProto:
    """An empty list is of the type that the operator wants."""
    if isinstance(value, (list, tuple)) and not value and defined is not None and name in defined.attributes:
        return AttributeProto(name=name, type=defined.attributes[name])
    return make_attribute(name, value)


def _objection(
    op: str,
    opset: int,
    defined: Signature | None,
    inputs: Sequence[Value | None],
    outputs: int,
    attributes: Sequence[AttributeProto],
    *,
    known: bool,
) -> str:
    """What is wrong with a call; `known`: a node of this operator was there before."""
    for i, value in enumerate(inputs):
        if value is not None and not isinstance(value, Value):
            kind = an(type(value).__name__)
            return f"its input {i} is {kind}, not a value: m.value(name) is one that is there, m.const(array) a new one"
    if defined is None:
        return "" if known else _unknown(op, opset)
    if not defined.inputs[0] <= len(inputs) <= defined.inputs[1]:
        return f"it is given {len(inputs)} inputs"
    if not defined.outputs[0] <= outputs <= defined.outputs[1]:
        return f"{outputs} outputs are asked of it"
    for i in defined.needed:
        if i < len(inputs) and inputs[i] is None:
            return f"its input {i} is absent"
    for a in attributes:
        if objection := _objection_to(a, defined):
            return objection
        if a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
            return f"its body `{a.name}` cannot be made by a pass"
    if not known:
        if defined.deprecated:
            return f"it is deprecated in opset {opset}"
        missing = defined.required.difference(a.name for a in attributes)
        if missing:
            return f"its attribute `{min(missing)}` is missing"
    return ""


def _objection_to(attribute: AttributeProto, defined: Signature) -> str:
    """What is wrong with an attribute, for who knows what an operator has."""
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
