"""Writes a model with large new weights copied from arrays into the file, bypassing protobuf.

A protobuf message is a sequence of fields; a nested message is a field preceded by its length. The model is
serialized with empty weights, then each `raw_data` is spliced in, and the enclosing lengths (tensor, graph) are
corrected. The bytes equal protobuf's own output.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import IO

import numpy as np

from onnxopt.errors import plain
from onnxopt.io.copying import copy_range
from onnxopt.proto.messages import Array
from onnxopt.proto.wire import GRAPH, INITIALIZER, RAW_DATA, Stored, fields, key, varint

Buffer = bytes | memoryview | Stored


def write_spliced(f: IO[bytes], data: bytes, arrays: Mapping[int, Array | Stored]) -> None:
    """Write the serialized model `data` with `arrays` as data of the main graph's initializers, by index."""
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
        if isinstance(piece, Stored):
            _copy(piece, f)
        else:
            f.write(piece)
    f.write(view[end:])
    f.truncate()  # the file may end in a hole


def _copy(piece: Stored, f: IO[bytes]) -> None:
    at = f.tell()
    f.flush()
    with open(piece.file, "rb", opener=plain) as source:
        copy_range(source.fileno(), piece.start, piece.length, f.fileno(), at)
    f.seek(at + piece.length, os.SEEK_SET)
