"""Copies bytes between files, in the kernel where possible: as reflinks or copies, preserving holes."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from onnxopt.errors import plain

_CHUNK: Final = 1 << 22  # bytes per read, where the kernel does not copy
_CHUNK_BYTES: Final = 1 << 30  # bytes per system call, so that an interrupt is handled soon
_SHORTER: Final = "a file became shorter while it was copied"
_CANNOT: Final = {
    *(errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF, errno.EACCES, errno.EIO),
}


def copy_file(source: Path, target: Path) -> None:
    """Make `target` a copy of `source`. Raises OSError."""
    with open(source, "rb", opener=plain) as f, open(target, "wb") as g:
        size = os.fstat(f.fileno()).st_size
        copy_range(f.fileno(), 0, size, g.fileno(), 0)
        os.ftruncate(g.fileno(), size)  # the source may end in a hole


def copy_range(source: int, start: int, length: int, target: int, at: int) -> None:
    """Copy bytes between descriptors; holes are skipped, as a new file has them already. Raises OSError."""
    for begin, end in _data(source, start, start + length):
        done = _in_kernel(source, begin, end, target, at - start + begin)
        _through_memory(source, done, end, target, at - start + done)
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


def _in_kernel(source: int, begin: int, end: int, target: int, at: int) -> int:
    """Copy in the kernel as far as possible. Returns the source offset reached."""
    copy = getattr(os, "copy_file_range", None)  # Linux only; shares blocks where the file system can
    while copy is not None and begin < end:
        try:
            done = copy(source, target, min(end - begin, _CHUNK_BYTES), begin, at)
        except OSError as e:
            if e.errno not in _CANNOT:
                raise
            break
        if not done:
            break
        begin, at = begin + done, at + done
    return begin


def _through_memory(source: int, begin: int, end: int, target: int, at: int) -> None:
    if begin >= end:
        return
    os.lseek(source, begin, os.SEEK_SET)
    os.lseek(target, at, os.SEEK_SET)
    while begin < end:
        chunk = os.read(source, min(end - begin, _CHUNK))
        if not chunk:
            raise OSError(errno.EIO, _SHORTER)
        begin += len(chunk)
        view = memoryview(chunk)
        while view:
            view = view[os.write(target, view) :]
