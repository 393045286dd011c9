"""Damaged bytes of models: cut, changed, or with odd encodings that protobuf allows."""

from __future__ import annotations

import random
from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor
from onnx import ModelProto

from onnxopt.proto.wire import fields, varint


def boundaries(
    data: bytes, begin: int = 0, end: int | None = None, of: Descriptor = ModelProto.DESCRIPTOR
) -> list[int]:
    """Return the offsets at which a field or its content begins or ends, at every depth."""
    found = set()
    for key, start, at, stop in fields(memoryview(data), begin, len(data) if end is None else end):
        found |= {start, at, stop}
        field = of.fields_by_number.get(key >> 3)
        if key & 7 == 2 and field is not None and field.message_type is not None:
            found.update(boundaries(data, at, stop, field.message_type))
    return sorted(found)


def truncated(data: bytes) -> Iterator[bytes]:
    for end in boundaries(data):
        yield data[:end]


def changed(data: bytes, rng: random.Random) -> bytes:
    """Return `data` with a few bytes changed, removed, repeated or copied from elsewhere."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(out))
        way = rng.randrange(6)
        if way == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif way == 1:
            out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif way == 2:
            del out[at : at + rng.choice((1, 2, 8))]
        elif way == 3:
            out[at:at] = out[at : at + rng.randrange(1, 40)]
        elif way == 4:
            other = rng.randrange(len(out))
            out[at : at + 8] = out[other : other + 8]
        else:
            out[at:at] = rng.randbytes(rng.choice((1, 2, 8)))
        if not out:
            return b"\0"
    return bytes(out)


# Contents that must not follow a key.
ODD = {
    "a number without end": b"\xff" * 11,
    "a number of 70 bits": b"\xff" * 9 + b"\x7f",
    "a length of 2^63": varint(1 << 63),
    "a length of 2^64-1": varint((1 << 64) - 1),
    "a length of 4 GiB": varint(1 << 32),
    "a number in too many bytes": b"\x80" * 9 + b"\x01",
    "zero in ten bytes": b"\x80" * 9 + b"\x00",
    "nothing": b"",
}


def odd_fields(data: bytes, rng: random.Random) -> bytes:
    """Return `data` with another wire type, number or length at one boundary, or with an inserted field."""
    begins = boundaries(data)[:-1]
    if not begins:
        return data  # an empty file has no field
    at = rng.choice(begins)
    way = rng.randrange(4)
    if way == 0:  # wire types 3 and 4 are deprecated, 6 and 7 undefined
        return data[:at] + bytes([data[at] & 0xF8 | rng.randrange(8)]) + data[at + 1 :]
    if way == 1:
        return data[:at] + data[at : at + 1] + rng.choice(list(ODD.values())) + data[at + 1 :]
    if way == 2:
        number = rng.choice((0, 1, 7, 99, 19000, (1 << 29) - 1, 1 << 29))
        return data[:at] + varint(number << 3 | rng.randrange(8)) + rng.choice(list(ODD.values())) + data[at:]
    return data[:at] + data[at : at + 1] + varint(rng.choice((1 << 31, 1 << 40, len(data)))) + data[at:]


def nested(path: tuple[int, ...], depth: int, inner: bytes = b"") -> bytes:
    """Return messages inside messages, with the field numbers of `path` in turn."""
    data = inner
    for i in reversed(range(depth)):
        data = varint(path[i % len(path)] << 3 | 2) + varint(len(data)) + data
    return data


def deep() -> Iterator[tuple[str, bytes]]:
    """Yield models with nested bodies and nested types. protobuf reads a hundred levels."""
    whole = b"\x08\x08" + b"\x42\x02\x10\x11"
    for depth in (30, 90, 96, 97, 98, 99, 100, 101, 102, 103, 150, 1000, 20000):
        for name, path in (("bodies", (1, 5, 6)), ("types", (11, 2, 4, 1)), ("text", (1,))):
            content = nested(path, depth)
            yield f"{name} {depth}", whole + varint(7 << 3 | 2) + varint(len(content)) + content
