"""Quick scan of a model file before parsing."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Final, NamedTuple

from onnxopt.errors import plain
from onnxopt.proto.wire import GRAPH, NODE, OP_TYPE, call_of, fields, key

# Keys of fields in GraphProto, NodeProto and ValueInfoProto.
_INPUT, _OUTPUT = key(11), key(12)
_READS, _OP_TYPE, _DOMAIN = key(1), key(OP_TYPE), key(7)
_NAME: Final = key(1)
_IF: Final = call_of("If")


class Glance(NamedTuple):
    """Summary of a model file."""

    nodes: int = 0  # in the main graph
    conditions: tuple[str, ...] = ()  # inner values that decide Ifs of the main graph


def glance(path: str | Path, most: int) -> Glance:
    """Return the summary of a file; conditions only for fewer than `most` nodes. Empty for an invalid file."""
    nodes, deciding, outside = 0, dict[bytes, None](), set[bytes]()
    try:
        with (
            open(path, "rb", opener=plain) as f,
            mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data,
            memoryview(data) as view,
        ):
            graphs = [(begin, end) for found, _, begin, end in fields(view, 0, len(view)) if found == key(GRAPH)]
            for kind, _, begin, end in (field for graph in graphs for field in fields(view, *graph)):
                if kind == key(NODE):
                    nodes += 1
                    if nodes == most:
                        return Glance(nodes)
                    if data.find(_IF, begin, end) >= 0 and (read := _decides(view, begin, end)):
                        deciding[read] = None
                elif deciding and kind in (_INPUT, _OUTPUT):
                    outside.update(bytes(view[b:e]) for found, _, b, e in fields(view, begin, end) if found == _NAME)
            return Glance(nodes, tuple(name.decode() for name in deciding if name not in outside))
    except (OSError, ValueError):
        return Glance()


def _decides(view: memoryview, begin: int, end: int) -> bytes:
    """Return the condition of an If of the standard domain, else b""."""
    reads, op, domain = b"", b"", b""
    for found, _, b, e in fields(view, begin, end):
        if found == _READS:
            reads = reads or bytes(view[b:e])
        elif found == _OP_TYPE:
            op = bytes(view[b:e])
        elif found == _DOMAIN:
            domain = bytes(view[b:e])
    return reads if op == b"If" and domain in (b"", b"ai.onnx") else b""
