"""Worker side of a service, independent of process handling, with few imports.

The worker announces a state before each step that may crash or hang; each state has the whole timeout. All further
announcements are events, plain data for the parent. A message is 8 bytes of length, then a pickle.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import re
import struct
import sys
from collections.abc import Callable
from typing import IO, Any, Final

from onnxopt.runtime import onnxruntime
from onnxopt.worker import peak_memory

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


RENEW: Final = "renew"
STARTING: Final = "at its start"
Tell = Callable[[Any], None]  # announces a state or event to the parent


def is_asked() -> bool:
    """Return whether a request waits for this worker; False where pipes cannot be asked."""
    if sys.platform == "win32":
        return False
    import select

    return bool(select.select([sys.stdin], [], [], 0)[0])


class Refused(Exception):
    """The original cannot be run here; the message says why."""


class Died(Exception):
    """A worker died or hung."""

    def __init__(self, state: str, how: str, late: bool = False) -> None:
        super().__init__(f"onnxruntime {how} {state}")
        self.state = state  # activity in progress
        self.how = how  # cause
        self.late = late  # the time limit was exceeded

    def is_about(self, label: str) -> bool:
        """Return whether the activity concerns the model `label`. Names of values may contain the label too."""
        return re.match(rf"(loading|running) (a piece of )?{re.escape(label)}\b", self.state) is not None


def serve(make: Callable[[Tell], Any], early: bool = True) -> None:
    """Answer calls of an object's methods until the parent is gone. `early`: import onnxruntime at once."""
    source = sys.stdin.buffer
    with os.fdopen(os.dup(1), "wb") as target:
        os.dup2(2, 1)  # output of a runtime must not enter the messages
        if early:
            with contextlib.suppress(ImportError):  # reported on use; meanwhile the parent reads the models
                onnxruntime()

        def tell(said: Any) -> None:
            send(target, ("state" if isinstance(said, str) else "event", said))

        gc.freeze()  # modules stay: collecting while they are imported, and scanning them later, only costs
        gc.enable()
        tell(STARTING)  # the start is complete
        served = make(tell)
        while True:
            try:
                method, args = receive(source)
            except EOFError:
                return
            try:
                if method == RENEW:
                    served = make(tell)
                    answer: tuple[str, Any] = ("done", peak_memory())
                else:
                    answer = ("done", getattr(served, method)(*args))
            except Exception as e:
                import traceback  # text, tokens: only for errors

                e.add_note(f"in the worker:\n{traceback.format_exc()}")  # tracebacks are lost in pickling
                answer = ("raised", e)
            send(target, answer)
