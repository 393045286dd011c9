"""External tensor data of a model, and copies of its files.

Bytes are copied between files in the kernel where possible: as reflinks or copies, preserving holes.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from onnx import ModelProto, TensorProto

from onnxopt.errors import plain
from onnxopt.graph.model import Model
from onnxopt.proto.external import ExternalData, file_of
from onnxopt.proto.messages import all_tensors, belongs_inside, is_external

_CHUNK: Final = 1 << 22  # bytes per read, where the kernel does not copy
_CHUNK_BYTES: Final = 1 << 30  # bytes per system call, so that an interrupt is handled soon
_SHORTER: Final = "a file became shorter while it was copied"
_CANNOT: Final = {
    *(errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF, errno.EACCES, errno.EIO)
}


def data_of(model: Model) -> ExternalData:
    """Return the reader of a model's data files."""
    return ExternalData(model.path.absolute().parent if model.path else Path(), model.name)


def inline_data(proto: ModelProto, data: ExternalData) -> None:
    """Move the data of external tensors into `proto`."""
    for tensor in external_tensors(proto):
        data.bring_in(tensor)


def bring_in_small(tensors: Iterable[TensorProto], data: ExternalData) -> int:
    """Move the data of small external tensors (`belongs_inside`) into the model; returns their number.

    Missing files are skipped, and reported when read.
    """
    count = 0
    for tensor in filter(belongs_inside, tensors):
        if data.place(tensor.name, file_of(tensor)) is not None:
            data.bring_in(tensor)
            count += 1
    return count


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
