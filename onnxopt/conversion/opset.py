"""The opset of a model, raised or lowered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from onnx import ModelProto, NodeProto

from onnxopt.errors import ModelError, UsageError
from onnxopt.graph.schema import is_standard, raise_ir_version
from onnxopt.proto.messages import DEFAULT_DOMAINS, body_graphs
from onnxopt.worker import Limits

LOWEST: Final = 11  # to which a model is converted down: before, negative axes could not be said


def convert_opset(proto: ModelProto, target: int, path: Path, limits: Limits | None = None) -> bool:
    """Convert `proto` to version `target` of the default domain. Return False for a model of this version.

    Raises UsageError for a version beyond the installed onnx, and for a version below `LOWEST`; ModelError for an
    operator without a form there, and for models with functions, whose opset imports are their own.
    """
    from onnx import defs, helper

    current, newest = opset_of(proto), defs.onnx_opset_version()
    if target == current:
        return False
    if not current or target < min(current, LOWEST):
        what = f"uses opset {current}" if current else "uses no operator of the standard"
        raise UsageError(f"{path} {what}, which is not converted down to {target}", f"the lowest is {LOWEST}")
    if target > newest:
        raise UsageError(f"the installed onnx knows opsets up to {newest}, not {target}", "install a newer onnx")
    if proto.functions:
        raise ModelError(f"{path} has functions, whose opset is their own", "put them in place by --inline-functions")
    if any(t.algorithm.node or t.initialization.node for t in proto.training_info):
        raise ModelError(f"{path} has training graphs, which are not converted", "leave out --target-opset")
    if target > current:
        from onnxopt.conversion.opset_up import raise_opset

        raise_opset(proto, current, target, path, limits or Limits())
    else:
        if current > newest:
            raise ModelError(
                f"{path} uses opset {current}, the installed onnx knows up to {newest}", "install a newer onnx"
            )
        from onnxopt.conversion.opset_down import lower_opset

        lower_opset(proto, current, target, path, limits or Limits())
    for o in proto.opset_import:
        if o.domain in DEFAULT_DOMAINS:
            o.version = target
    called = {*_domains(proto.graph.node), *DEFAULT_DOMAINS}
    needed = [o for o in proto.opset_import if o.domain in called or not is_standard(o.domain)]
    least = helper.find_min_ir_version_for(needed, ignore_unknown=True)
    raise_ir_version(proto, least)
    if target < current:  # runtimes of that time do not read later ones
        proto.ir_version = least
        del proto.opset_import[:]
        proto.opset_import.extend(needed)
    return True


def opset_of(proto: ModelProto) -> int:
    """Return the version of the default domain; 0 without an import."""
    return next((o.version for o in proto.opset_import if o.domain in DEFAULT_DOMAINS), 0)


def _domains(nodes: Iterable[NodeProto]) -> Iterator[str]:
    for node in nodes:
        yield node.domain
        for _, body in body_graphs(node):
            yield from _domains(body.node)
