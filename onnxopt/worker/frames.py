"""Message format between parent and worker: 8 bytes of length, then a pickle."""

from __future__ import annotations

import pickle
import struct
from typing import IO, Any, Final

HEADER: Final = struct.Struct("<Q")


def pack(message: Any) -> bytes:
    """Return the bytes of a message."""
    data = pickle.dumps(message)
    return HEADER.pack(len(data)) + data


def send(stream: IO[bytes], message: Any) -> None:
    """Write a message, and flush."""
    stream.write(pack(message))
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Return the next message. Raises EOFError if the peer is gone."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        raise EOFError
    size = HEADER.unpack(header)[0]
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)
