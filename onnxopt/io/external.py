"""Tensors stored beside the model file: read lazily through one mmap per file, contained in the model's folder."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from onnxopt.errors import ModelError, UsageError
from onnxopt.graph.model import Model
from onnxopt.protos import Array, is_external, numpy_dtype, read_only, tensor_bytes

_PACKED_BELOW_BYTE = ("UINT4", "INT4", "FLOAT4E2M1", "UINT2", "INT2")


@dataclass(frozen=True)
class Location:
    """Where a tensor's bytes are: a path relative to the model's folder, an offset and a length in bytes."""

    file: str
    offset: int
    length: int


def location(tensor: TensorProto) -> Location:
    entries = {e.key: e.value for e in tensor.external_data}
    size = tensor_bytes(tensor.data_type, tensor.dims)
    try:
        return Location(
            entries.get("location", ""), int(entries.get("offset") or 0), int(entries.get("length") or size)
        )
    except ValueError:
        raise ModelError(
            f"tensor `{tensor.name}`: external offset or length is not a number", "the file is damaged"
        ) from None


class ExternalData:
    """Reads external tensors of one model. Each file is opened and mapped once, whatever the number of tensors."""

    def __init__(self, folder: Path, model_name: str) -> None:
        self.folder = folder
        self.model_name = model_name
        self._maps: dict[str, mmap.mmap] = {}

    def path(self, tensor_name: str, file: str) -> Path:
        """The data file, after checking that it lies in the model's folder. Raises ModelError if it does not."""
        folder = self.folder.resolve()
        target = (folder / file).resolve()
        if not file or Path(file).is_absolute() or not target.is_relative_to(folder) or target == folder:
            raise ModelError(
                f"{self.model_name}: tensor `{tensor_name}` stores its data outside the model's folder: {file!r}",
                "only files inside the folder of the model are read; move the data there and correct the location",
            )
        if not target.is_file():
            raise ModelError(
                f"{self.model_name}: external data file {file!r} of tensor `{tensor_name}` is missing",
                "keep the data files of a model beside it",
            )
        return target

    def bytes_of(self, tensor: TensorProto) -> memoryview:
        """The tensor's bytes, a view into the mapped file."""
        where = location(tensor)
        mapped = self._maps.get(where.file)
        if mapped is None:
            with open(self.path(tensor.name, where.file), "rb") as f:
                try:
                    mapped = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
                except ValueError:  # an empty file cannot be mapped
                    return memoryview(b"")[: self._checked(tensor, where, 0)]
            self._maps[where.file] = mapped
        length = self._checked(tensor, where, len(mapped))
        return memoryview(mapped)[where.offset : where.offset + length]

    def _checked(self, tensor: TensorProto, where: Location, available: int) -> int:
        needed = tensor_bytes(tensor.data_type, tensor.dims)
        if where.offset < 0 or where.length < needed or where.offset + where.length > available:
            raise ModelError(
                f"{self.model_name}: tensor `{tensor.name}` needs {needed} bytes at offset {where.offset} of "
                f"{where.file!r}, which has {available}",
                "the data file is truncated or belongs to another model",
            )
        return where.length

    def decode(self, tensor: TensorProto) -> Array:
        view = self.bytes_of(tensor)
        if TensorProto.DataType.Name(tensor.data_type) in _PACKED_BELOW_BYTE:
            inline = TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=bytes(view))
            return read_only(np.asarray(numpy_helper.to_array(inline)))
        dtype = numpy_dtype(tensor.data_type)
        count = int(np.prod(tensor.dims, dtype=np.int64))
        return read_only(np.frombuffer(view, dtype, count).reshape(tuple(tensor.dims)))


def data_of(model: Model) -> ExternalData:
    """What reads the data files of a model."""
    return ExternalData(model.path.absolute().parent if model.path else Path(), model.name)


def all_tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """Every TensorProto that may hold data: initializers and attributes, in bodies and functions too."""
    stack: list[GraphProto] = [proto.graph]
    for info in proto.training_info:
        stack += [info.initialization, info.algorithm]
    nodes: list[NodeProto] = [n for f in proto.functions for n in f.node]
    while stack or nodes:
        if stack:
            graph = stack.pop()
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
            nodes.extend(graph.node)
        while nodes:
            for a in nodes.pop().attribute:
                if a.type == AttributeProto.TENSOR:
                    yield a.t
                elif a.type == AttributeProto.TENSORS:
                    yield from a.tensors
                elif a.type == AttributeProto.GRAPH:
                    stack.append(a.g)
                elif a.type == AttributeProto.GRAPHS:
                    stack.extend(a.graphs)
                elif a.type == AttributeProto.SPARSE_TENSOR:
                    yield from (a.sparse_tensor.values, a.sparse_tensor.indices)


def inline_data(proto: ModelProto, data: ExternalData) -> None:
    """Bring the data of external tensors into `proto`, which then needs no files."""
    for tensor in external_tensors(proto):
        size = tensor_bytes(tensor.data_type, tensor.dims)
        tensor.raw_data = bytes(data.bytes_of(tensor)[:size])
        tensor.ClearField("data_location")
        del tensor.external_data[:]


def refer_from(proto: ModelProto, data: ExternalData, folder: Path) -> list[str]:
    """Make locations of external tensors relative to `folder`, and return the files. Raises UsageError for a file that
    lies elsewhere: no reader follows a path out of the model's folder."""
    files = {}
    for tensor in external_tensors(proto):
        name = location(tensor).file
        if name not in files:
            target = data.path(tensor.name, name)
            if not target.is_relative_to(folder):
                raise UsageError(
                    f"{target} cannot be referred to from {folder}: it does not lie in that folder",
                    "write into the folder of the model, or have its data copied: --data copy",
                )
            files[name] = str(target.relative_to(folder))
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = files[name]
    return list(dict.fromkeys(files.values()))


def external_tensors(proto: ModelProto) -> list[TensorProto]:
    return [t for t in all_tensors(proto) if is_external(t)]
