"""External tensor data: read lazily through a mapping per file, only from inside the model's folder.

Bytes are copied between files in the kernel where possible: as reflinks or copies, preserving holes.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

from onnx import ModelProto, TensorProto

from onnxopt.errors import ModelError, plain
from onnxopt.graph.model import Model
from onnxopt.proto.messages import (
    Array,
    all_tensors,
    belongs_inside,
    is_external,
    leads_away,
    put_inside,
    tensor_bytes,
    tensor_to_array,
)
from onnxopt.proto.wire import map_file

_CHUNK: Final = 1 << 22  # bytes per read, where the kernel does not copy
_CHUNK_BYTES: Final = 1 << 30  # bytes per system call, so that an interrupt is handled soon
_SHORTER: Final = "a file became shorter while it was copied"
_CANNOT: Final = {
    *(errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF, errno.EACCES, errno.EIO)
}
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
                f"{self.model_name}: external data file {file!r} of tensor `{tensor_name}` is missing",
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
        if not inside:
            raise ModelError(
                f"{self.model_name}: tensor `{tensor_name}` stores its data outside the model's folder: {file!r}",
                "only files inside the folder of the model are read; move the data there and correct the location",
            )
        if not found:
            return None
        if not stat.S_ISREG(mode):
            raise ModelError(
                f"{self.model_name}: tensor `{tensor_name}` stores its data in {file!r}, which is not a regular file",
                "devices, pipes and folders hold no weights: correct the location",
            )
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


def data_of(model: Model) -> ExternalData:
    """Return the reader of a model's data files."""
    return ExternalData(model.path.absolute().parent if model.path else Path(), model.name)


def inline_data(proto: ModelProto, data: ExternalData) -> None:
    """Move the data of external tensors into `proto`."""
    for tensor in external_tensors(proto):
        _bring_in(tensor, data)


def bring_in_small(tensors: Iterable[TensorProto], data: ExternalData) -> int:
    """Move the data of small external tensors (`belongs_inside`) into the model; returns their number.

    Missing files are skipped, and reported when read.
    """
    count = 0
    for tensor in filter(belongs_inside, tensors):
        if data.place(tensor.name, file_of(tensor)) is not None:
            _bring_in(tensor, data)
            count += 1
    return count


def _bring_in(tensor: TensorProto, data: ExternalData) -> None:
    size = tensor_bytes(tensor.data_type, tensor.dims)
    put_inside(tensor, bytes(data.bytes_of(tensor)[:size]))


def data_files(tensors: Iterable[TensorProto]) -> list[str]:
    """Return the sorted names of the external tensors' files."""
    return sorted({file_of(t) for t in tensors})


def external_tensors(proto: ModelProto) -> list[TensorProto]:
    """Return all external tensors of a model."""
    return list(filter(is_external, all_tensors(proto)))


# -- copies between files ------------------------------------------------------------------------------------------


def copy_file(source: Path, target: Path) -> None:
    """Make `target` a copy of `source`. Raises OSError."""
    with open(source, "rb", opener=plain) as f, open(target, "wb") as g:
        size = os.fstat(f.fileno()).st_size
        copy_range(f.fileno(), 0, size, g.fileno(), 0)
        os.ftruncate(g.fileno(), size)  # the source may end in a hole


def copy_range(source: int, start: int, length: int, target: int, at: int) -> None:
    """Copy bytes between descriptors; holes are skipped, as a new file has them already. Raises OSError."""
    for begin, end in _data(source, start, start + length):
        _copy(source, begin, end, target, at - start + begin)
    if os.fstat(source).st_size < start + length:  # a file may end in a hole
        raise OSError(errno.EIO, _SHORTER)


def _data(source: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each range without holes."""
    if sys.platform == "win32" or not hasattr(os, "SEEK_DATA"):
        yield start, end
        return
    while start < end:
        try:
            begin = os.lseek(source, start, os.SEEK_DATA)
            stop = os.lseek(source, begin, os.SEEK_HOLE)
        except OSError as e:
            if e.errno != errno.ENXIO:  # ENXIO: only a hole follows; others: the file system has no support
                yield start, end
            return
        if begin >= end:
            return
        yield begin, min(stop, end)
        start = stop


def _copy(source: int, begin: int, end: int, target: int, at: int) -> None:
    """Copy bytes in the kernel as far as possible, and through memory from there on."""
    in_kernel = getattr(os, "copy_file_range", None)  # Linux only; shares blocks where the file system can
    while begin < end:
        done = 0
        if in_kernel is not None:
            try:
                done = in_kernel(source, target, min(end - begin, _CHUNK_BYTES), begin, at)
            except OSError as e:
                if e.errno not in _CANNOT:
                    raise
        if not done:
            in_kernel = None
            os.lseek(source, begin, os.SEEK_SET)
            os.lseek(target, at, os.SEEK_SET)
            chunk = os.read(source, min(end - begin, _CHUNK))
            if not chunk:
                raise OSError(errno.EIO, _SHORTER)
            done = os.write(target, chunk)
        begin, at = begin + done, at + done
