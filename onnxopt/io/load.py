"""Read an ONNX file into a Model, or say in one line why it cannot be."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from onnx import ModelProto

from onnxopt.errors import ModelError, file_path, unreadable
from onnxopt.graph.model import Model
from onnxopt.graph.reader import read_model
from onnxopt.io.external import ExternalData

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
        from onnxopt.io.inlining import inlined

        proto = inlined(proto, path)
    if target_opset is not None:
        from onnxopt.io.convert import convert_opset

        changed = convert_opset(proto, target_opset, path, limits) or changed
    model = read_model(proto, path, freeze_initializers=freeze_initializers)
    model.version += changed  # it is not the file any more
    model.read_external = ExternalData(path.absolute().parent, path.name).decode
    return model


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
