"""Placement of tensor data in a written model: in the model file, in a data file, or left where it is.

All is decided and checked before writing. Unchanged data is never loaded into memory.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from typing import IO, Final, TypeAlias

import numpy as np
from onnx import ModelProto, TensorProto

from onnxopt.errors import UsageError, WriteError, plain
from onnxopt.io.external import copy_range
from onnxopt.proto.external import ExternalData
from onnxopt.proto.messages import (
    Array,
    all_tensors,
    belongs_inside,
    forget_location,
    is_external,
    put_inside,
    tensor_bytes,
)
from onnxopt.proto.messages import fields as message_fields
from onnxopt.proto.wire import GRAPH, INITIALIZER, RAW_DATA, Stored, fields, key, varint

Range: TypeAlias = "tuple[Hashable, int, int]"  # (file, start, length)
Buffer: TypeAlias = "bytes | memoryview | Stored"
Data: TypeAlias = "Array | bytes | Stored"  # of a tensor: in memory, or in a file

INLINE, COPY, REUSE, AUTO = "inline", "copy", "reuse", "auto"
EXTERNAL: Final = (AUTO, INLINE, COPY, REUSE)

INLINE_LIMIT = 1_900_000_000  # bytes; protobuf ends at 2 GiB, the rest is for names and attributes
_PAGE: Final = 1 << 12  # offset alignment required for mapping
_GRANULE: Final = 1 << 16  # the same, on Windows
_MIN_ALIGNED_BYTES: Final = 1 << 20  # bytes; above, padding does not matter
_HASHED: Final = 1 << 26  # bytes; up to here the data file's name depends on the contents only


def spans(ranges: Iterable[Range]) -> dict[Range, tuple[int, int]]:
    """Return for each range the (start, end) of the union of all ranges connected to it by overlaps.

    Any number of tensors may share bytes of a file.
    """
    found: dict[Range, tuple[int, int]] = {}
    files: dict[Hashable, set[tuple[int, int]]] = {}
    for file, start, length in ranges:
        files.setdefault(file, set()).add((start, length))
    for file, parts in files.items():
        starts, ends = list[int](), list[int]()
        for start, length in sorted(parts):
            if not starts or start >= ends[-1]:
                starts.append(start)
                ends.append(start)
            ends[-1] = max(ends[-1], start + length)
        for start, length in parts:
            i = bisect_right(starts, start) - 1
            found[file, start, length] = (starts[i], ends[i]) if length else (start, start)
    return found


def write_spliced(f: IO[bytes], data: bytes, arrays: Mapping[int, Array | Stored]) -> None:
    """Write the serialized model `data` with `arrays` as data of the main graph's initializers, by index.

    Large new weights are copied from arrays into the file, bypassing protobuf: `data` has empty weights, each
    `raw_data` is spliced in, and the enclosing lengths (tensor, graph) are corrected. The bytes equal protobuf's own
    output.
    """
    view = memoryview(data)
    start, begin, end = next(f[1:] for f in fields(view, 0, len(view)) if f[0] == key(GRAPH))
    pieces: list[Buffer] = []
    mark, index = begin, -1
    for found, s, b, e in fields(view, begin, end):
        if found != key(INITIALIZER):
            continue
        index += 1
        if index in arrays:
            array = arrays[index]
            raw = array if isinstance(array, Stored) else array.reshape(-1).view(np.uint8).data
            head = bytes([key(RAW_DATA)]) + varint(len(raw))
            length = varint(e - b + len(head) + len(raw))
            at = next((start for found, start, *_ in fields(view, b, e) if found >> 3 > RAW_DATA), e)
            pieces += [view[mark:s], bytes([key(INITIALIZER)]), length, view[b:at], head, raw, view[at:e]]
            mark = e
    pieces.append(view[mark:end])
    f.write(view[:start])
    f.write(bytes([key(GRAPH)]) + varint(sum(map(len, pieces))))
    for piece in pieces:
        _write(piece, f)
    f.write(view[end:])
    f.truncate()  # the file may end in a hole


def _write(piece: Buffer, f: IO[bytes]) -> None:
    if not isinstance(piece, Stored):
        f.write(piece)
        return
    at = f.tell()
    f.flush()
    with open(piece.file, "rb", opener=plain) as source:
        copy_range(source.fileno(), piece.start, piece.length, f.fileno(), at)
    f.seek(at + piece.length, os.SEEK_SET)


class _Piece:
    """Data at `offset` of the data file: in memory, or stored in another file.

    The bytes of a file from `begin` to `end` are copied for this piece and all pieces overlapping it; the latter copy
    none.
    """

    def __init__(self, tensor: TensorProto, data: Data) -> None:
        self.tensor, self.data = tensor, data
        self.offset = self.begin = self.end = 0


class Layout:
    """A placement plan. `inside`: data spliced into the model file, by index of the main graph's initializer."""

    def __init__(self, home: Path) -> None:
        self.home = home  # folder where the model will be read
        self.inside: dict[int, Array | Stored] = {}
        self.pieces: list[_Piece] = []
        self.references: list[tuple[TensorProto, str]] = []  # references to data left in place
        # External data put into the model file, through the proto; empty for data in `inside`.
        self.incoming: list[tuple[TensorProto, memoryview | bytes]] = []
        self._size = 0
        self._before: list[tuple[TensorProto, TensorProto, bytes | None]] = []

    def add(self, tensor: TensorProto, data: Data) -> None:
        """Put data into the data file."""
        self.pieces.append(_Piece(tensor, data))

    def place(self) -> None:
        """Assign offsets in order. Overlapping ranges of a source file are written once."""
        known = spans((d.file, d.start, d.length) for d in (p.data for p in self.pieces) if isinstance(d, Stored))
        placed: dict[tuple[Path, int, int], int] = {}
        for piece in self.pieces:
            data = piece.data
            if not isinstance(data, Stored):
                piece.offset = self._room(_size(data))
                continue
            begin, end = known[data.file, data.start, data.length]
            at = placed.get((data.file, begin, end))
            if at is None:
                at = placed[data.file, begin, end] = self._room(end - begin)
                piece.begin, piece.end = begin, end
            piece.offset = at + data.start - begin

    def refer(self, tensor: TensorProto, target: Path) -> None:
        """Leave data in place. Raises UsageError outside the model's folder, where readers would not follow."""
        if not target.is_relative_to(self.home):
            raise UsageError(
                f"{target} cannot be referred to from {self.home}: it does not lie in that folder",
                "write into the folder of the model, or have its data copied: --external copy",
            )
        self.references.append((tensor, target.relative_to(self.home).as_posix()))

    def _room(self, size: int) -> int:
        start = self._size + -self._size % (_GRANULE if size >= _MIN_ALIGNED_BYTES else _PAGE)
        self._size = start + size
        return start

    def digest(self) -> str:
        """Return a hash of the data file's contents; large copied files count by inode, size and time."""
        import hashlib  # loading OpenSSL takes time

        found = hashlib.sha256()
        read = {file: file.stat() for file in {p.data.file for p in self.pieces if isinstance(p.data, Stored)}}
        hashed = sum(p.end - p.begin for p in self.pieces) <= _HASHED
        for piece in self.pieces:
            data = piece.data
            found.update(f"{piece.offset} {_size(data)}\n".encode())
            if not isinstance(data, Stored):
                found.update(_flat(data))
            elif hashed and piece.begin < piece.end:
                with open(data.file, "rb", opener=plain) as f:
                    f.seek(piece.begin)
                    found.update(f.read(piece.end - piece.begin))
            elif piece.begin < piece.end:
                s = read[data.file]
                found.update(f"{data.start} {s.st_dev} {s.st_ino} {s.st_size} {s.st_mtime_ns}\n".encode())
        return found.hexdigest()

    def write_data(self, file: Path) -> None:
        """Write the data file, with a single source open at a time. Raises OSError."""
        with open(file, "wb") as f:
            for path, pieces in groupby(self.pieces, lambda p: p.data.file if isinstance(p.data, Stored) else None):
                with nullcontext() if path is None else open(path, "rb", opener=plain) as source:
                    for piece in pieces:
                        if not isinstance(piece.data, Stored):
                            f.seek(piece.offset)
                            f.write(_flat(piece.data))
                        elif source is not None and piece.begin < piece.end:
                            f.flush()
                            at = piece.offset - piece.data.start + piece.begin
                            copy_range(source.fileno(), piece.begin, piece.end - piece.begin, f.fileno(), at)
            f.truncate(self._size)

    def write_model(self, file: Path, proto: ModelProto, name: str) -> None:
        """Write the model with data file `name`, and restore the proto afterwards. Raises OSError."""
        try:
            self._point(name)
            head = proto.SerializeToString()
        finally:
            self._restore()
        with open(file, "wb") as f:
            write_spliced(f, head, self.inside) if self.inside else f.write(head)

    def _point(self, name: str) -> None:
        """Set the data locations in the proto: in the data file `name`, or where they stay."""
        for tensor, file in self.references:
            self._keep(tensor)
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = file
        for tensor, data in self.incoming:
            self._keep(tensor)
            if data:
                put_inside(tensor, bytes(data))
            else:
                forget_location(tensor)
        for piece in self.pieces:
            self._keep(piece.tensor, piece.data)
            piece.tensor.ClearField("raw_data")
            piece.tensor.data_location = TensorProto.EXTERNAL
            del piece.tensor.external_data[:]
            for entry, value in (("location", name), ("offset", str(piece.offset)), ("length", str(_size(piece.data)))):
                piece.tensor.external_data.add(key=entry, value=value)

    def _restore(self) -> None:
        """Restore the data and the locations of the model in memory."""
        for tensor, old, data in self._before:
            tensor.CopyFrom(old)
            if data is not None:
                tensor.raw_data = data
        self._before.clear()

    def _keep(self, tensor: TensorProto, data: Data | None = None) -> None:
        """Keep a tensor for `_restore`. `data`: of the data file; bytes are those of the tensor, and not copied."""
        old = TensorProto(**message_fields(tensor, leave_out=("raw_data",)))
        self._before.append((tensor, old, data if isinstance(data, bytes) else None))


def _outgrows(tensors: Iterable[TensorProto], external: str) -> bool:
    """Return whether the weights outgrow the model file. Raises WriteError if they have to be inside."""
    inside = sum(tensor_bytes(t.data_type, t.dims[:]) for t in tensors if external == INLINE or not is_external(t))
    if inside > INLINE_LIMIT and external == INLINE:
        raise WriteError(
            f"the result has {inside / (1 << 30):.1f} GiB of weights, and protobuf's files end at 2 GiB",
            "--external copy puts them into a file beside it",
        )
    return inside > INLINE_LIMIT


def plan(
    proto: ModelProto,
    new: Mapping[int, Array | Stored],
    data: ExternalData,
    home: Path,
    external: str,
    stands_alone: bool = False,
) -> Layout:
    """Return the placement of all tensors of `proto`; `new`: data of initializers by index, in memory or in the file
    read.

    `external`: `auto` and `copy` put external data into a data file, with large new data; `inline` into the model file;
    `reuse` leaves and references it. Models beyond protobuf's limit get a data file in any case. `stands_alone`: no
    tensor is external. Raises UsageError for impossible requests, ModelError for missing data.
    """
    layout = Layout(home)
    if stands_alone and proto.ByteSize() + sum(map(_size, new.values())) <= INLINE_LIMIT:
        layout.inside.update(new)
        return layout
    tensors = list(all_tensors(proto))
    elsewhere = any(map(is_external, tensors))
    outgrown = _outgrows(tensors, external)
    if not elsewhere and not outgrown:
        layout.inside.update(new)
        return layout
    index = {id(t): i for i, t in enumerate(proto.graph.initializer)}
    for tensor in tensors:
        at = index.get(id(tensor))
        if is_external(tensor):
            _place_external(layout, tensor, at, data, external)
        elif at is not None and at in new:
            _place_new(layout, tensor, at, new[at], outgrown, external)
        elif outgrown and not belongs_inside(tensor) and tensor.HasField("raw_data"):
            layout.add(tensor, tensor.raw_data)
    layout.place()
    return layout


def _place_external(layout: Layout, tensor: TensorProto, at: int | None, data: ExternalData, external: str) -> None:
    """Place an external tensor; `at`: the index as initializer of the main graph."""
    path, start, length = data.source_of(tensor)
    if external == REUSE:
        layout.refer(tensor, path)
    elif external != INLINE:
        layout.add(tensor, Stored(path, start, length))
    elif at is None:
        layout.incoming.append((tensor, data.bytes_of(tensor)[:length]))
    else:
        layout.incoming.append((tensor, b""))
        layout.inside[at] = Stored(path, start, length)


def _place_new(
    layout: Layout, tensor: TensorProto, at: int, data: Array | Stored, outgrown: bool, external: str
) -> None:
    """Place the data of initializer `at`: unchanged in the file read, or in memory."""
    if outgrown or (external in (AUTO, COPY) and not isinstance(data, Stored)):
        layout.add(tensor, data)
    else:
        layout.inside[at] = data


def _size(data: Data) -> int:
    return data.nbytes if isinstance(data, np.ndarray) else len(data)


def _flat(data: Array | bytes) -> memoryview:
    return data.reshape(-1).view(np.uint8).data if isinstance(data, np.ndarray) else memoryview(data)


def check_choice(external: str) -> None:
    """Raise UsageError unless `external` is in `EXTERNAL`."""
    if external not in EXTERNAL:
        raise UsageError(f"there is no external data {external!r}", f"it is one of {', '.join(EXTERNAL)}")
