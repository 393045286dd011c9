"""Writes a ModelProto to a file for programs that read files, leaving the message unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from google.protobuf.message import EncodeError, Message
from onnx import GraphProto, ModelProto, TensorProto

from onnxopt.errors import ModelError
from onnxopt.io.external import external_tensors
from onnxopt.io.layout import INLINE_LIMIT
from onnxopt.proto.messages import tensor_bytes

_MAX_INLINE_BYTES: Final = 1 << 10  # bytes; smaller tensors stay in the message
_ALIGNED: Final = 1 << 12


def materialize(proto: ModelProto, path: Path) -> None:
    """Write `proto` to `path`; above protobuf's limit the weights go into a data file beside `path`.

    Raises ModelError for external tensors: a ModelProto does not name their folder.
    """
    for tensor in external_tensors(proto):
        raise ModelError(
            f"{path.name}: the data of `{tensor.name}` are in a file, and a ModelProto does not say where",
            "give the path of the model, or a ModelProto with its weights, as onnx.load makes it",
        )
    weights = sum(tensor_bytes(t.data_type, t.dims) for t in proto.graph.initializer if t.HasField("raw_data"))
    message = proto if weights < INLINE_LIMIT else _light(proto, path)
    try:
        path.write_bytes(message.SerializeToString())
    except (EncodeError, ValueError):
        raise ModelError(f"{path.name} is larger than protobuf allows", "keep its weights in initializers") from None


def _light(proto: ModelProto, path: Path) -> ModelProto:
    """Return a copy with large initializers written to a data file. A full copy would double the memory of all
    weights."""
    light = ModelProto()
    _copy(proto, light, but="graph")
    _copy(proto.graph, light.graph, but="initializer")
    file = path.with_name(f"{path.name}.data")
    with open(file, "wb") as data:
        for tensor in proto.graph.initializer:
            copy, raw = light.graph.initializer.add(), tensor.raw_data
            if len(raw) < _MAX_INLINE_BYTES:
                copy.CopyFrom(tensor)
                continue
            _copy(tensor, copy, but="raw_data")
            data.seek(-data.tell() % _ALIGNED, 1)
            copy.data_location = TensorProto.EXTERNAL
            for key, value in (("location", file.name), ("offset", data.tell()), ("length", len(raw))):
                copy.external_data.add(key=key, value=str(value))
            data.write(raw)
    return light


def _copy(source: ModelProto | GraphProto | TensorProto, target: Message, but: str) -> None:
    """Copy every field except `but`."""
    for field, value in source.ListFields():
        if field.name == but:
            continue
        if isinstance(value, Message):
            getattr(target, field.name).CopyFrom(value)
        elif isinstance(value, (str, bytes, int, float)):
            setattr(target, field.name, value)
        else:
            getattr(target, field.name).MergeFrom(value)
