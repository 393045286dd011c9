"""Element types of tensors: inferred by onnx, or derived from schemas known only to onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from onnxopt.runtime import onnxruntime
from onnxopt.verification.model.functions import domain_of
from onnxopt.verification.model.order import bodies_of, ordered
from onnxopt.verification.programs.program import inferred_infos

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto


def tensor_types(model: ModelProto) -> dict[str, str]:
    """Return the types of tensors by name, as written by onnxruntime, as far as known.

    If a name also occurs in a body, the outer type is returned.
    """
    from onnx import TensorProto

    kinds = {code: f"tensor({name.lower()})" for name, code in TensorProto.DataType.items()}
    known = {}
    for info in inferred_infos(model):
        code = info.type.tensor_type.elem_type
        if code and code in kinds:
            known[info.name] = kinds[code]
    versions = {domain_of(o.domain): o.version for o in model.opset_import}
    functions = {(domain_of(f.domain), f.name) for f in model.functions}
    _add(model.graph, known, {key: v for key, v in _schemas().items() if key not in functions}, versions, kinds)
    return known


def _add(
    graph: GraphProto,
    known: dict[str, str],
    schemas: Mapping[tuple[str, str], list[Any]],
    versions: Mapping[str, int],
    kinds: Mapping[int, str],
) -> None:
    """Add to `known` the types of results, derived from operand types by operator schemas."""
    stored = {t.name: kinds[t.data_type] for t in graph.initializer if t.data_type in kinds}
    for node in ordered(graph.node):
        for body in bodies_of(node):
            _add(body, known, schemas, versions, kinds)
        domain = domain_of(node.domain)
        if all(name in known for name in node.output if name):
            continue
        fitting = [s for s in schemas.get((domain, node.op_type), ()) if s.since_version <= versions.get(domain, 0)]
        if not fitting:
            continue
        schema = max(fitting, key=lambda s: s.since_version)
        bound: dict[str, str] = {}
        for name, operand in zip(node.input, schema.inputs):
            if kind := known.get(name) or stored.get(name, ""):
                bound.setdefault(operand.typeStr, kind)
        for name, result in zip(node.output, schema.outputs):
            kind = bound.get(result.typeStr, result.typeStr)
            if name and kind.startswith("tensor("):
                known.setdefault(name, kind)


@cache
def _schemas() -> dict[tuple[str, str], list[Any]]:
    """Return the schemas in onnxruntime's operator list by (domain, operator); {} for a build without list."""
    state = onnxruntime().capi.onnxruntime_pybind11_state
    found: dict[tuple[str, str], list[Any]] = {}
    for schema in getattr(state, "get_all_operator_schema", list)():
        found.setdefault((domain_of(schema.domain), schema.name), []).append(schema)
    return found
