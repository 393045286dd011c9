"""protobuf's wire format, to keep weights out of parsers, and mapped files, in which weights stay.

A message is a sequence of fields, each a key and its content. Nested messages and bytes are preceded by their length.
See "Encoding" in protobuf's documentation.
"""

from __future__ import annotations

import itertools
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

from onnxopt.errors import plain

# Field numbers in ModelProto, GraphProto, NodeProto and TensorProto.
GRAPH: Final = 7
INITIALIZER: Final = 5
OP_TYPE: Final = 4
RAW_DATA: Final = 9
_MAX_GLANCED: Final = 1 << 20  # bytes of a file
_MAX_READ: Final = 1 << 18  # bytes; a system maps at least 64 KiB around a page
_MAX_FIELDS: Final = 256  # fields of a tensor; unpacked numbers have a field each, and no raw_data

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Stored:
    """Unread bytes of a file: `length` bytes at `start`; 0: up to the end."""

    def __init__(self, file: Path, start: int, length: int) -> None:
        self.file, self.start, self.length = file, start, length

    def __len__(self) -> int:
        return self.length

    def bytes(self) -> memoryview:
        """Return the bytes: a copy if small, else a view of the mapped file.

        Raises OSError, and ValueError for a range outside the file.
        """
        if 0 < self.length <= _MAX_READ:
            return self.read()
        return self._whole(map_file(self.file)[max(self.start, 0) :][: self.length or None])

    def read(self) -> memoryview:
        """Return a copy of the bytes, aligned for arrays. Raises as `bytes`."""
        with open(self.file, "rb", opener=plain) as f:
            left = os.fstat(f.fileno()).st_size - f.seek(max(self.start, 0))
            return self._whole(memoryview(f.read(max(min(self.length or left, left), 0))))

    def _whole(self, found: memoryview) -> memoryview:
        if min(self.start, self.length) < 0 or len(found) < self.length:
            raise ValueError(f"{self.file} has no {self.length} bytes at {self.start}")
        return found


class MappedFile:
    """A file mapped into memory, read on use."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self._state = _state(path)
        self.view = map_file(path, few=True)

    @property
    def is_as_it_was(self) -> bool:
        """Whether the file is neither changed nor replaced since it was mapped."""
        try:
            return _state(self.path) == self._state
        except OSError:
            return False


FileState: TypeAlias = "tuple[int, int] | None"


def state_of(file: Path) -> FileState:
    """Return size and modification time; None if missing. Inodes are unstable on network file systems."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _state(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def key(number: int) -> int:
    """Return the key of a field with a length."""
    return number << 3 | _BYTES


def call_of(op: str) -> bytes:
    """Return the bytes of a NodeProto that name the operator `op`: without these bytes no node of a model calls `op`.

    Searching them is much faster than a walk over the nodes.
    """
    return bytes((key(OP_TYPE), len(op))) + op.encode()


def fields(view: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (key, start of the key, begin and end of the content) of each field of the message in view[at:end].

    Raises ValueError if the bytes are no message.
    """
    while at < end:
        start = at
        found = view[at]
        found, at = (found, at + 1) if found < 0x80 else read_varint(view, at)  # nearly all keys; a call is slower
        kind = found & 7
        if kind == _BYTES:
            size = view[at] if at < end else 0x80
            if size < 0x80:
                at += 1
            elif at + 1 < end and (high := view[at + 1]) < 0x80:
                size, at = size & 0x7F | high << 7, at + 2
            else:
                size, at = read_varint(view, at)
        elif kind == _VARINT:
            size = read_varint(view, at)[1] - at
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind} cannot be in a ModelProto")
        if at + size > end:
            raise ValueError("a field is longer than the message it is in")
        yield found, start, at, at + size
        at += size


def stands_alone(path: str | Path) -> bool:
    """Whether a model file has no external data. False for large files, which are not read, and for pipes."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > _MAX_GLANCED:
            return False
        with open(path, "rb", opener=plain) as f:
            return b"location" not in f.read()
    except OSError:
        return False


def skim(view: memoryview, small: int, most: int) -> tuple[bytes, dict[int, tuple[int, int]]]:
    """Return a serialized model without large weights, and their (start, length) by index of the initializer.

    Weights are large if the `raw_data` of an initializer of the main graph has more than `small` bytes. A model of more
    than `most` fields is returned whole. Raises ValueError if the bytes are no message.
    """
    left: dict[int, tuple[int, int]] = {}
    parts: list[Any] = []
    index = count = 0
    graph, initializer, raw_data = key(GRAPH), key(INITIALIZER), key(RAW_DATA)
    for found, start, begin, end in fields(view, 0, len(view)):
        if found != graph:
            parts.append(view[start:end])
            continue
        inside: list[Any] = []
        mark = begin
        for kind, s, b, e in fields(view, begin, end):
            count += 1
            if count > most:
                return bytes(view), {}
            if kind != initializer:
                continue
            tensor = list(itertools.islice(fields(view, b, e), _MAX_FIELDS)) if e - b > small else []
            raw = [f for f in tensor if f[0] == raw_data]
            if len(raw) == 1 and raw[0][3] - raw[0][2] > small and len(tensor) < _MAX_FIELDS:
                _, cut, data, stop = raw[0]
                left[index] = data, stop - data
                inside += [view[mark:s], bytes([kind]), varint(e - b - (stop - cut)), view[b:cut], view[stop:e]]
                mark = e
            index += 1
        inside.append(view[mark:end])
        parts += [bytes([graph]), varint(sum(map(len, inside))), *inside]
    return b"".join(parts), left


def read_varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return (value, end position) of the number at `at`. Raises ValueError if the number does not end."""
    value = shift = 0
    while shift < 64:
        if at >= len(view):
            break
        byte = view[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number does not end")


def varint(value: int) -> bytes:
    """Return `value` encoded as a number of a message."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def map_file(path: str | Path, few: bool = False) -> memoryview:
    """Return the bytes of a file, read-only and read on use. Raises OSError.

    The file is closed, since a model may have thousands of data files. `few`: a descriptor stays open for each file,
    and ctypes is not imported.
    """
    with open(path, "rb", opener=plain) as f:
        size = os.fstat(f.fileno()).st_size
        if not size:  # has no pages
            return memoryview(b"")
        if sys.platform != "win32" and not few:  # Windows has no tight limit of open files
            return _pages(f.fileno(), size)
        return memoryview(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))


if sys.platform != "win32":

    def _pages(descriptor: int, size: int) -> memoryview:
        """Map a file without an open descriptor. `mmap.mmap` keeps a copy for as long as the pages are used."""
        import ctypes
        import weakref

        library = ctypes.CDLL(None, use_errno=True)
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = [
            *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
        ]
        library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        address = library.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address is None or address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        pages = (ctypes.c_ubyte * size).from_address(address)
        weakref.finalize(pages, library.munmap, address, size).atexit = False  # users of the pages may run at exit
        return memoryview(pages).cast("B").toreadonly()
