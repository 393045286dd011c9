"""Read an ONNX file into a Model, or say in one line why it cannot be."""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from onnx import ModelProto, NodeProto

from onnxopt.errors import ModelError, file_path, unreadable
from onnxopt.graph.model import Model
from onnxopt.graph.reader import read_model
from onnxopt.io.external import ExternalData
from onnxopt.protos import body_graphs

if TYPE_CHECKING:
    from onnxopt.worker.limits import Limits


def load(
    path: str | Path,
    *,
    freeze_initializers: bool = False,
    inline_functions: bool = False,
    target_opset: int | None = None,
    limits: Limits | None = None,
) -> Model:
    """Load a model. External data stays on disk until somebody reads it.

    `freeze_initializers`: see `read_model`. `inline_functions` puts the bodies of model-local functions in place of
    their calls. `target_opset`: convert the model to this version of the default domain (see `convert_opset`), within
    `limits`.
    Raises ModelError for a missing, empty, truncated or non-ONNX file, and for a model whose names do not resolve.
    """
    path = file_path(path)
    proto = read_proto(path)
    changed = inline_functions and len(proto.functions) > 0
    if changed:
        proto = _inlined(proto, path)
    if target_opset is not None:
        from onnxopt.io.convert import convert_opset

        changed = convert_opset(proto, target_opset, path, limits) or changed
    model = read_model(proto, path, freeze_initializers=freeze_initializers)
    model.version += changed  # it is not the file any more
    model.read_external = ExternalData(path.absolute().parent, path.name).decode
    return model


def _inlined(proto: ModelProto, path: Path) -> ModelProto:
    from onnx.inliner import inline_local_functions

    from onnxopt.worker.calls import refuse_explosion

    refuse_explosion(proto, path)
    _write_defaults(proto)
    try:
        return inline_local_functions(proto, False)
    except Exception as e:
        reason = str(e).strip().splitlines() or [type(e).__name__]
        raise ModelError(f"{path}: its functions cannot be inlined: {reason[0]}", "optimize them in place") from None


def _write_defaults(proto: ModelProto) -> None:
    """Give each call the attributes that its function declares a default for: onnx's inliner forgets those.

    Where a function hands on to another an attribute that it is not given, the other has its default: such a call is
    one of a copy of the function that hands on nothing.
    """
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    copies: dict[tuple[object, ...], str] = {}
    reached: set[tuple[str, str, str]] = set()
    scopes = [proto.graph.node]
    while scopes:
        for node in scopes.pop():
            scopes += [body.node for _, body in body_graphs(node)]
            key = node.domain, node.op_type, node.overload
            function = functions.get(key)
            if function is None:
                continue
            given = {a.name for a in node.attribute}
            node.attribute.extend(a for a in function.attribute_proto if a.name not in given)
            absent = frozenset(function.attribute) - given
            calls = [n for n in _nodes(function.node) if (n.domain, n.op_type, n.overload) in functions]
            if any(a.ref_attr_name in absent for n in calls for a in n.attribute):
                if (*key, absent) not in copies:
                    names = (f"{node.op_type}_{i}" for i in itertools.count(1))
                    name = next(name for name in names if (node.domain, name, node.overload) not in functions)
                    copy = functions[node.domain, name, node.overload] = proto.functions.add()
                    copy.CopyFrom(function)
                    copy.name = copies[*key, absent] = name
                    _leave_out(copy.node, absent)
                node.op_type = copies[*key, absent]
                key = node.domain, node.op_type, node.overload
            if key not in reached:
                reached.add(key)
                scopes.append(functions[key].node)


def _nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """And those in their bodies."""
    for node in nodes:
        yield node
        for _, body in body_graphs(node):
            yield from _nodes(body.node)


def _leave_out(nodes: Iterable[NodeProto], absent: Collection[str]) -> None:
    """Remove what refers to attributes that the function is not given."""
    for node in _nodes(nodes):
        for i in range(len(node.attribute) - 1, -1, -1):
            if node.attribute[i].ref_attr_name in absent:
                del node.attribute[i]


def from_proto(proto: ModelProto, *, freeze_initializers: bool = False) -> Model:
    """A Model over a copy of `proto`; the caller's message is not changed."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    return read_model(copy, freeze_initializers=freeze_initializers)


def read_proto(path: Path) -> ModelProto:
    """The ModelProto in a file, with external data left where it is."""
    try:
        proto = _parse(path)
    except (OSError, DecodeError) as e:
        raise unreadable(path, e) from None
    if not proto.HasField("graph") or not (proto.ir_version or proto.opset_import):
        raise ModelError(
            f"{path} is a protobuf, but not an ONNX model",
            "a ModelProto has a graph and an IR version; was this a tensor (.pb) or another format?",
        )
    return proto


def _parse(path: Path) -> ModelProto:
    """Parse straight from the file's pages: reading it first would copy every weight once more."""
    with open(path, "rb") as f:
        if os.fstat(f.fileno()).st_size == 0 and path.is_file():
            raise ModelError(f"{path} is empty", "the export or the download did not finish")
        try:
            mapped = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # a pipe or another file that has no pages
            return ModelProto.FromString(f.read())
        with mapped, memoryview(mapped) as view:
            return ModelProto.FromString(view)
