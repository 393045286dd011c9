"""Write a model whose large new weights never pass through protobuf: from their arrays straight into the file.

A protobuf message is a sequence of fields; a nested message is a field with a length before it. The model is
serialized with those weights empty, then each `raw_data` is spliced in at its place and the three lengths around it
(tensor, graph) are corrected. The bytes are those that protobuf would have written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Final

import numpy as np

from onnxopt.protos import Array

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # field numbers in ModelProto, GraphProto, TensorProto
_LENGTH_DELIMITED: Final = 2
Buffer = bytes | memoryview


def write_spliced(f: IO[bytes], data: bytes, arrays: Mapping[int, Array]) -> None:
    """Write the serialized model `data` with `arrays` as the data of the main graph's initializers of these indices."""
    view = memoryview(data)
    start, begin, end = next(s for s in _fields(view, 0, len(view)) if _field(view, s[0]) == _GRAPH)
    pieces: list[Buffer] = []
    mark, index = begin, -1
    for s, b, e in _fields(view, begin, end):
        if view[s] != _key(_INITIALIZER):
            continue
        index += 1
        if index in arrays:
            raw = arrays[index].reshape(-1).view(np.uint8).data
            head = bytes([_key(_RAW_DATA)]) + _varint(len(raw))
            length = _varint(e - b + len(head) + len(raw))
            pieces += [view[mark:s], bytes([_key(_INITIALIZER)]), length, view[b:e], head, raw]
            mark = e
    pieces.append(view[mark:end])
    f.write(view[:start])
    f.write(bytes([_key(_GRAPH)]) + _varint(sum(map(len, pieces))))
    for piece in pieces:
        f.write(piece)
    f.write(view[end:])


def _key(number: int) -> int:
    return number << 3 | _LENGTH_DELIMITED


def _field(view: memoryview, at: int) -> int:
    return _read_varint(view, at)[0] >> 3


def _fields(view: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(start of the key, begin and end of the content) of each field of the message in view[at:end]."""
    while at < end:
        start = at
        key, at = _read_varint(view, at)
        kind = key & 7
        if kind == _LENGTH_DELIMITED:
            size, at = _read_varint(view, at)
        elif kind == 0:
            _, after = _read_varint(view, at)
            size = after - at
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind} cannot be in a ModelProto")
        yield start, at, at + size
        at += size


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
