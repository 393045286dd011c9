"""Operator domains added to a model by passes: whether they are allowed, and the version to import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import onnx

from onnxopt.errors import DomainError, UsageError
from onnxopt.graph.schema import is_alike
from onnxopt.startup.record import record

if TYPE_CHECKING:
    from onnxopt.graph.graph import Graph


@record(frozen=True)
class Domain:
    """A declared operator domain. An empty `operators` means that no list of operators was given."""

    version: int
    operators: frozenset[str] = frozenset()


_DECLARED: dict[str, Domain] = {}


def declare_domain(name: str, version: int = 1, operators: Iterable[str] = ()) -> None:
    """Declare a domain: a model without an import of `name` gets this `version` when a pass adds an operator of the
    domain.

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
