"""Domains of operators that a pass brings into a model: whether they may enter, and which version is imported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import onnx

from onnxopt.errors import DomainError, UsageError
from onnxopt.graph.model import inner_scopes
from onnxopt.graph.schema import is_alike
from onnxopt.record import record

if TYPE_CHECKING:
    from onnxopt.graph.graph import Graph


@record(frozen=True)
class Domain:
    """Operators that somebody else defines. `operators` is empty where nobody listed them."""

    version: int
    operators: frozenset[str] = frozenset()


_DECLARED: dict[str, Domain] = {}


def declare_domain(name: str, version: int = 1, operators: Iterable[str] = ()) -> None:
    """Operators of the domain `name` bring an import of this version into a model that has none.

    `operators`: the names that there are; a pass that makes another one is told. Raises UsageError for a domain of the
    standard, and for another declaration than there was.
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
    """Does the installed onnx say what operators there are in it?"""
    return not domain or domain == "ai.onnx" or domain.startswith("ai.onnx.")


def where(graph: Graph, op: str, place: object) -> str:
    """How messages call a call of `op` that is made for the node `place`."""
    made = f"{op} for {place!r}" if op and place is not None else op or repr(place)
    return f"{graph.model.name}: {graph.path}: {made}"


def opset_for(graph: Graph, op: str, place: object = None) -> int:
    """The version of the operator's domain in force in `graph`, or the one that it would bring.

    Raises DomainError where it may not enter.
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
    """In a function those versions are in force that the model imports, where all that it calls is the same in both.

    onnx's checker wants each operator of a function to be the one that the model imports (`check_opset_compatibility`):
    what comes into a function of which that holds has to be such, too.
    """
    assert graph.opsets is not None
    given = graph.model.opsets
    others = [d for d, version in graph.opsets.items() if is_standard(d) and given.get(d, version) != version]
    called = {op for scope in inner_scopes(graph) for op in scope.by_op} if others else ()
    for domain in others:
        ops = [op for op in called if op.rpartition("::")[0] == domain]
        if all(is_alike(op, graph.opsets[domain], given[domain]) for op in ops):
            graph.opsets[domain] = given[domain]


def write_opsets(graph: Graph) -> None:
    """Say in the function around `graph` which versions are in force there."""
    opsets = graph.root.opsets or {}
    for o in graph.root.proto.opset_import if opsets else ():
        o.version = opsets["" if o.domain == "ai.onnx" else o.domain]


def import_domain(graph: Graph, domain: str, version: int) -> None:
    model, root = graph.model, graph.root
    for opsets, proto in ((model.opsets, model.proto), (root.opsets, root.proto)):
        if opsets is not None and domain not in opsets:
            opsets[domain] = version
            proto.opset_import.add(domain=domain, version=version)
