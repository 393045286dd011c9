"""Write a model whose large new weights never pass through protobuf: from their arrays straight into the file.

A protobuf message is a sequence of fields; a nested message is a field with a length before it. The model is
serialized with those weights empty, then each `raw_data` is spliced in at its place and the three lengths around it
(tensor, graph) are corrected. The bytes are those that protobuf would have written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO

import numpy as np

from onnxopt.protos import Array
from onnxopt.wire import GRAPH, INITIALIZER, RAW_DATA, fields, key, varint

Buffer = bytes | memoryview


def write_spliced(f: IO[bytes], data: bytes, arrays: Mapping[int, Array]) -> None:
    """Write the serialized model `data` with `arrays` as the data of the main graph's initializers of these indices."""
    view = memoryview(data)
    start, begin, end = next(f[1:] for f in fields(view, 0, len(view)) if f[0] == key(GRAPH))
    pieces: list[Buffer] = []
    mark, index = begin, -1
    for found, s, b, e in fields(view, begin, end):
        if found != key(INITIALIZER):
            continue
        index += 1
        if index in arrays:
            raw = arrays[index].reshape(-1).view(np.uint8).data
            head = bytes([key(RAW_DATA)]) + varint(len(raw))
            length = varint(e - b + len(head) + len(raw))
            pieces += [view[mark:s], bytes([key(INITIALIZER)]), length, view[b:e], head, raw]
            mark = e
    pieces.append(view[mark:end])
    f.write(view[:start])
    f.write(bytes([key(GRAPH)]) + varint(sum(map(len, pieces))))
    for piece in pieces:
        f.write(piece)
    f.write(view[end:])
