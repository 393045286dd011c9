"""Whether a call of an operator is valid in an older opset, by the schemas of the standard."""

from __future__ import annotations

from typing import Final

from onnx import NodeProto
from onnx.defs import OpSchema

from onnxopt.conversion.known import Known
from onnxopt.graph.schema import attribute_default, find_schema, formals
from onnxopt.proto.messages import DEFAULT_DOMAINS, attribute_value, make_attribute, type_name

_OPTIONAL: Final = OpSchema.FormalParameterOption.Optional


def without_news(node: NodeProto, since: int) -> NodeProto:
    """Return the node without attributes of opset `since` that say the older behaviour.

    Attributes whose default `since` changed are written.
    """
    new, old = find_schema(node.op_type, since), find_schema(node.op_type, since - 1)
    assert new is not None and old is not None
    kept = {a.name: a for a in node.attribute}
    for name in new.attributes:
        default = attribute_default(node.op_type, since, name)
        if default is None:
            continue
        if name in old.attributes:
            if name not in kept and default != attribute_default(node.op_type, since - 1, name):
                kept[name] = make_attribute(name, default)
        elif name in kept and attribute_value(kept[name]) == default:
            del kept[name]
    if kept.keys() == {a.name for a in node.attribute} and (not node.input or node.input[-1]):
        return node
    copy = NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    copy.attribute.extend(kept.values())
    while copy.input and not copy.input[-1]:
        copy.input.pop()
    return copy


def unfit(node: NodeProto, opset: int, known: Known) -> str:
    """Return why the call is invalid for the operator of `opset`; empty for a valid call."""
    schema = find_schema(node.op_type, opset) if node.domain in DEFAULT_DOMAINS else None
    if schema is None:
        return ""
    for a in node.attribute:
        if a.name not in schema.attributes:
            return f"it has no attribute `{a.name}`"
    for what, names, least, most, parameters in (
        ("operand", node.input, schema.min_input, schema.max_input, schema.inputs),
        ("result", node.output, schema.min_output, schema.max_output, schema.outputs),
    ):
        if not least <= len(names) <= most:
            return f"it has {most if len(names) > most else 'at least ' + str(least)} {what}s, not {len(names)},"
        for name, p in zip(names, parameters):
            if not name and p.option != _OPTIONAL:
                return f"its {what} `{p.name}` has to be there"
    return _unfit_types(node, schema, opset, known)


def _unfit_types(node: NodeProto, schema: OpSchema, opset: int, known: Known) -> str:
    allowed = formals(node.op_type, opset)
    if allowed is None:
        return ""
    symbols: dict[str, tuple[int, str]] = {}
    for names, parameters, kinds in (
        (node.input, schema.inputs, allowed[0]),
        (node.output, schema.outputs, allowed[1]),
    ):
        for i, name in enumerate(names):
            place = min(i, len(parameters) - 1)
            kind = known.kind(name) if name else None
            if kind is None:
                continue
            found, formal = known.element_type(name), kinds[place]
            if not found:
                form = (kind.WhichOneof("value") or "").removesuffix("_type")
                taken = {text[:3] for text in parameters[place].types}  # `seq(tensor(float))`
                if form in ("sequence", "optional") and form[:3] not in taken:
                    return f"it does not take {form}s such as `{name}`"
                continue
            if formal.allowed and found not in formal.allowed:
                return f"it does not take {type_name(found)}, which `{name}` is,"
            if formal.symbol:
                other, first = symbols.setdefault(formal.symbol, (found, name))
                if other != found:
                    return f"`{first}` and `{name}` have to be of one type"
    return ""
