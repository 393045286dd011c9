"""Reading from a process with a deadline. Windows can wait for sockets only, so a thread reads there."""

from __future__ import annotations

import contextlib
import selectors
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from queue import SimpleQueue

CAN_WAIT: Final = sys.platform != "win32"  # the system can wait for a pipe
_CHUNK: Final = 1 << 20
_LOOK: Final = 0.1  # seconds; on Windows, waiting for a queue ignores Ctrl-C


class Late(Exception):
    """The data did not arrive in time."""


class Pipe:
    """The reading end of a pipe, exclusively owned."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._pump = None if CAN_WAIT else _Pump(stream)

    def take(self, size: int, deadline: float) -> bytes:
        """Return `size` bytes, before `deadline` on the monotonic clock. Raises Late, and EOFError if the pipe ends."""
        data = bytearray()
        if self._pump is not None:
            while len(data) < size:
                data += _some(self._pump.take(size - len(data), deadline))
            return bytes(data)
        with selectors.DefaultSelector() as selector:
            selector.register(self._stream, selectors.EVENT_READ)
            while len(data) < size:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise Late
                data += _some(self._stream.read1(size - len(data)))
        return bytes(data)


def _some(chunk: bytes) -> bytes:
    if not chunk:
        raise EOFError
    return chunk


class _Pump:
    """Reads a stream in a thread."""

    def __init__(self, stream: Any) -> None:
        from queue import Empty, SimpleQueue

        self._empty: type[Exception] = Empty
        self._chunks: SimpleQueue[bytes] = SimpleQueue()
        self._rest = b""
        self._has_ended = False
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: Any) -> None:
        chunk = b"more"
        while chunk:
            chunk = b""
            with contextlib.suppress(OSError, ValueError):  # closed in the meantime
                chunk = stream.read1(_CHUNK)
            self._chunks.put(chunk)

    def take(self, most: int, deadline: float) -> bytes:
        """Return up to `most` available bytes; b"" at the end. Raises Late."""
        while not self._rest and not self._has_ended:
            left = deadline - time.monotonic()
            try:
                self._rest = self._chunks.get(timeout=max(0.0, min(left, _LOOK)))
                self._has_ended = not self._rest
            except self._empty:
                if left <= 0:
                    raise Late from None
        taken, self._rest = self._rest[:most], self._rest[most:]
        return taken
