"""Operators of the ONNX standard and of declared domains: schemas, opset versions, and the IR version of a model."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import onnx
from onnx import ModelProto

from onnxopt.errors import DomainError, UsageError
from onnxopt.operators import RANDOM
from onnxopt.operators.signatures import NEWEST, Formal, Signature, tabled
from onnxopt.proto.messages import attribute_value, qualified

if TYPE_CHECKING:
    from onnxopt.graph.graph import Graph

# IR versions: from 4 on an initializer that is also an input is a default value, and a constant before
DEFAULTS_SINCE: Final = 4
FUNCTIONS_SINCE: Final = 8


@cache
def find_schema(op: str, opset: int) -> onnx.defs.OpSchema | None:
    """Return the schema of a qualified operator at an opset version; None if the standard has none."""
    domain, _, op_type = op.rpartition("::")
    if opset <= 0:
        return None
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


def newer(opset: int) -> str:
    """Return a message if the opset is newer than the installed onnx knows, else an empty string.

    Its operators are taken to be the newest known ones.
    """
    known = NEWEST if opset <= NEWEST else onnx.defs.onnx_opset_version()
    return f"the model is of opset {opset}, the installed onnx knows up to {known}" if opset > known else ""


def attribute_default(op: str, opset: int, name: str) -> Any:
    """Return the default of an attribute, or None."""
    defined = signature(op, opset)
    return None if defined is None else defined.defaults.get(name)


@cache
def signature(op: str, opset: int) -> Signature | None:
    """Return the signature of an operator; None if the standard has none."""
    if (known := tabled(op, opset)) is not None:
        return known
    schema = find_schema(op, opset)
    return None if schema is None else signature_of(schema)


def signature_of(schema: onnx.defs.OpSchema) -> Signature:
    undefined = onnx.AttributeProto.UNDEFINED
    attributes = schema.attributes.items()
    return Signature(
        qualified(schema.name, schema.domain),
        tuple(map(_formal, schema.inputs)),
        tuple(_formal(p)._replace(name="") for p in schema.outputs),
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        {name: int(a.type) for name, a in attributes},
        frozenset(name for name, a in attributes if a.required),
        {name: attribute_value(a.default_value) for name, a in attributes if a.default_value.type != undefined},
        schema.deprecated,
    )


def _formal(parameter: onnx.defs.OpSchema.FormalParameter) -> Formal:
    kinds = (_element_type(text) for text in parameter.types)
    # a concrete type, such as `tensor(float)`, is no type variable
    alike = parameter.is_homogeneous and not parameter.type_str.endswith(")")
    marks = {
        onnx.defs.OpSchema.FormalParameterOption.Optional: "?",
        onnx.defs.OpSchema.FormalParameterOption.Variadic: "…",
    }
    symbol = parameter.type_str if alike else ""
    return Formal(parameter.name, marks.get(parameter.option, ""), symbol, frozenset(k for k in kinds if k))


@cache
def _element_type(text: str) -> int:
    """Return the element type named by `tensor(float)`; 0 for types other than tensors."""
    try:
        return int(onnx.TensorProto.DataType.Value(text.removeprefix("tensor(").removesuffix(")").upper()))
    except ValueError:  # for example a sequence type
        return 0


@cache
def formals(op: str, opset: int) -> tuple[tuple[Formal, ...], tuple[Formal, ...]] | None:
    """Return (inputs, outputs) of an operator; the last of each stands for all further. None for an unknown schema."""
    defined = signature(op, opset)
    if defined is None or ("::" not in op and newer(opset)):
        return None
    return defined.operands, defined.results


def operators_of(domain: str) -> list[str]:
    """Return the qualified names of all standard operators of a domain."""
    return sorted({qualified(s.name, s.domain) for s in onnx.defs.get_all_schemas() if s.domain == domain})


def first_opset(op: str, after: int) -> int:
    """Return the first opset after `after` that has an operator of the default domain; 0 if none has."""
    newest = 0 if "::" in op else onnx.defs.onnx_opset_version()
    return next((o for o in range(after + 1, newest + 1) if is_known(op, o)), 0)


def is_known(op: str, opset: int) -> bool:
    """Whether the standard defines this operator. Unknown operators are opaque: kept, never merged or folded."""
    return signature(op, opset) is not None


def is_alike(op: str, opset: int, other: int) -> bool:
    """Whether an operator has the same definition in two opsets; False for opsets unknown to the installed onnx."""
    if newer(opset) or newer(other):
        return False
    a, b = find_schema(op, opset), find_schema(op, other)
    return a is b if a is None or b is None else bool(a.since_version == b.since_version)


def is_deterministic(op: str) -> bool:
    return op not in RANDOM


# -- domains and versions ------------------------------------------------------------------------------------------


class Domain(NamedTuple):
    """A declared operator domain. An empty `operators` means that no list of operators was given."""

    version: int
    operators: frozenset[str] = frozenset()


_DECLARED: dict[str, Domain] = {}


def declare_domain(name: str, version: int = 1, operators: Iterable[str] = ()) -> None:
    """Declare a domain: a model without an import of `name` gets this `version` when a pass adds an operator of it.

    `operators`: the operators of the domain; making any other raises an error. Raises UsageError for a standard domain,
    and for a declaration that differs from an earlier one.
    """
    declared = Domain(version, frozenset(operators))
    if is_standard(name) or version < 1:
        raise UsageError(
            f"the domain {name or 'ai.onnx'!r} of version {version} cannot be declared", "it takes a new name"
        )
    if _DECLARED.setdefault(name, declared) != declared:
        raise UsageError(f"the domain {name!r} was declared otherwise before", "declare it once")


def declared(name: str) -> Domain | None:
    return _DECLARED.get(name)


def is_standard(domain: str) -> bool:
    """Whether `domain` is an ONNX domain (`ai.onnx…`), whose operators the installed onnx lists."""
    return not domain or domain == "ai.onnx" or domain.startswith("ai.onnx.")


def where(graph: Graph, op: str, place: object) -> str:
    """Return the location of a call of `op`, made for the node `place`, for messages."""
    made = f"{op} for {place!r}" if op and place is not None else op or repr(place)
    return f"{graph.model.name}: {graph.path}: {made}"


def opset_for(graph: Graph, op: str, place: object = None) -> int:
    """Return the version of the operator's domain in force in `graph`, or the version to import.

    Raises DomainError for a domain that is neither imported nor allowed.
    """
    domain, _, op_type = op.rpartition("::")
    version = graph.opset(domain)
    if version or not domain:
        return version or onnx.defs.onnx_opset_version()
    model = graph.model
    if domain not in model.opsets and model.allowed_domains is not None and domain not in model.allowed_domains:
        if not graph.model.has_function(op):
            raise DomainError(
                f"{where(graph, op, place)}: the model does not import the domain {domain}",
                f"if what runs the result knows it, let it in: --allow-domain {domain}, or allow_domains=({domain!r},)",
            )
    known = _DECLARED.get(domain)
    if known is not None:
        return known.version
    try:
        return int(onnx.defs.get_schema(op_type, domain).since_version)
    except onnx.defs.SchemaError:
        return model.opsets.get(domain, 1)


def adopt_opsets(graph: Graph) -> None:
    """Set a function's opset versions to the model's if each called operator has the same definition in both.

    onnx.checker (`check_opset_compatibility`) requires each operator of a function to match the version imported by the
    model. Nodes added to the function by passes must match, too.
    """
    assert graph.opsets is not None
    given = graph.model.opsets
    others = [d for d, version in graph.opsets.items() if is_standard(d) and given.get(d, version) != version]
    called = {node.op for node in graph.walk()} if others else ()
    for domain in others:
        ops = [op for op in called if op.rpartition("::")[0] == domain]
        if all(is_alike(op, graph.opsets[domain], given[domain]) for op in ops):
            graph.opsets[domain] = given[domain]


def write_opsets(graph: Graph) -> None:
    """Write the versions in force into the opset imports of the function around `graph`."""
    opsets = graph.root.opsets or {}
    for o in graph.root.proto.opset_import if opsets else ():
        o.version = opsets["" if o.domain == "ai.onnx" else o.domain]


def import_domain(graph: Graph, domain: str, version: int) -> None:
    model, root = graph.model, graph.root
    for opsets, proto in ((model.opsets, model.proto), (root.opsets, root.proto)):
        if opsets is not None and domain not in opsets:
            opsets[domain] = version
            proto.opset_import.add(domain=domain, version=version)


def raise_ir_version(proto: ModelProto, least: int) -> None:
    """Raise the IR version of `proto` to at least `least`.

    Constants listed as inputs, as IR < 4 requires, are removed from the inputs: from IR 4 on callers could override
    them.
    """
    if proto.ir_version < DEFAULTS_SINCE <= least:
        constants = {t.name for t in proto.graph.initializer}
        kept = [i for i in proto.graph.input if i.name not in constants]
        del proto.graph.input[:]
        proto.graph.input.extend(kept)
    proto.ir_version = max(proto.ir_version, least)
