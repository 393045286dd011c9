"""External tensor data: read lazily through a mapping per file, only from inside the model's folder."""

from __future__ import annotations

import stat
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

from onnx import TensorProto

from onnxopt.errors import ModelError
from onnxopt.proto.messages import Array, leads_away, put_inside, tensor_bytes, tensor_to_array
from onnxopt.proto.wire import map_file

_FOLDER_HINT: Final = (
    "plain files inside the folder of the model are read; move the data there and correct the location"
)
_DIGITS: Final = 40  # of an offset; Python rejects the conversion of thousands of digits


class Location(NamedTuple):
    """Location of a tensor's bytes: a path relative to the model's folder, offset and length in bytes."""

    file: str
    offset: int
    length: int


def file_of(tensor: TensorProto) -> str:
    """Return the file name of an external tensor as written in the model; empty if missing."""
    return next((e.value for e in reversed(tensor.external_data) if e.key == "location"), "")


def location(tensor: TensorProto, model_name: str) -> Location:
    """Return the location of an external tensor. Raises ModelError for invalid numbers."""
    entries = {e.key: e.value for e in tensor.external_data}
    size = tensor_bytes(tensor.data_type, tensor.dims)
    for key in ("offset", "length"):
        text = entries.get(key, "")
        digits = text.removeprefix("-")
        if text and not (digits.isdecimal() and digits.isascii() and len(digits) <= _DIGITS):
            raise ModelError(
                f"{model_name}: tensor `{tensor.name}`: external {key} {text!r} is not a number", "the file is damaged"
            )
    return Location(entries.get("location", ""), int(entries.get("offset") or 0), int(entries.get("length") or size))


class ExternalData:
    """Reads the external tensors of a model. Each file is mapped once, for any number of tensors, and closed."""

    def __init__(self, folder: Path, model_name: str) -> None:
        self.folder = folder
        self.model_name = model_name
        self._maps: dict[str, tuple[Path, memoryview]] = {}

    @cached_property
    def _root(self) -> Path:
        return self.folder.resolve()

    def path(self, tensor_name: str, file: str) -> Path:
        """Return the data file. Raises ModelError unless it is a regular file in the model's folder."""
        target = self.place(tensor_name, file)
        if target is None:
            raise ModelError(
                f"{self.model_name}: the data file {file} of `{tensor_name}` is missing",
                "keep the data files of a model beside it",
            )
        return target

    def place(self, tensor_name: str, file: str) -> Path | None:
        """Return the data file like `path`, or None if missing."""
        inside = bool(file) and "\0" not in file and not leads_away(file)
        found = False
        if inside:
            try:
                target = (self._root / file).resolve()
                inside = target.is_relative_to(self._root) and target != self._root
                mode = target.stat().st_mode if inside else 0
                found = True
            except FileNotFoundError:
                pass
            except (OSError, RuntimeError, ValueError):  # a cycle of links, an impossible file name
                inside = False
        whose = f"{self.model_name}: the data of `{tensor_name}`"
        if not inside:
            raise ModelError(f"{whose} lies outside the model's folder: {file!r}", _FOLDER_HINT)
        if not found:
            return None
        if not stat.S_ISREG(mode):
            raise ModelError(f"{whose} is in {file!r}, which is not a regular file", _FOLDER_HINT)
        return target

    def bytes_of(self, tensor: TensorProto) -> memoryview:
        """Return the tensor's bytes, a view into the mapped file."""
        where = location(tensor, self.model_name)
        found = self._maps.get(where.file)
        if found is None:
            path = self.path(tensor.name, where.file)
            found = self._maps[where.file] = path, map_file(path)
        path, mapped = found
        with suppress(OSError):  # a removed file stays readable through the mapping
            # a truncated file does not: reading beyond its end would kill the process
            available = min(len(mapped), path.stat().st_size)
            self._refuse_outside(tensor, where, available)
        self._refuse_outside(tensor, where, len(mapped))
        return mapped[where.offset : where.offset + where.length]

    def source_of(self, tensor: TensorProto) -> tuple[Path, int, int]:
        """Return (file, offset, length) of the tensor's bytes without reading them."""
        where = location(tensor, self.model_name)
        path = self.path(tensor.name, where.file)
        self._refuse_outside(tensor, where, path.stat().st_size)
        return path, where.offset, tensor_bytes(tensor.data_type, tensor.dims)

    def _refuse_outside(self, tensor: TensorProto, where: Location, available: int) -> None:
        if tensor.data_type == TensorProto.STRING or min(tensor.dims, default=0) < 0:
            what = "strings" if tensor.data_type == TensorProto.STRING else f"shape {list(tensor.dims)}"
            raise ModelError(
                f"{self.model_name}: tensor `{tensor.name}` of {what} cannot have external data", "the file is damaged"
            )
        needed = tensor_bytes(tensor.data_type, tensor.dims)
        if not 0 <= needed <= where.length or where.offset < 0 or where.offset + where.length > available:
            raise ModelError(
                f"{self.model_name}: tensor `{tensor.name}` needs {needed} bytes at offset {where.offset} of "
                f"{where.file!r}, which has {available}",
                "the data file is truncated or belongs to another model",
            )

    def decode(self, tensor: TensorProto) -> Array:
        return tensor_to_array(tensor, self.bytes_of(tensor)[: tensor_bytes(tensor.data_type, tensor.dims)])

    def bring_in(self, tensor: TensorProto) -> None:
        """Move the data of an external tensor into its message."""
        put_inside(tensor, bytes(self.bytes_of(tensor)[: tensor_bytes(tensor.data_type, tensor.dims)]))
