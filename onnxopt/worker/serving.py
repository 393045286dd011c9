"""The worker's side of a service: it knows nothing of processes, and imports little.

The worker says what it begins (a state) before each step that may crash or hang; each state has the whole timeout.
Whatever else it tells, plain data, is an event for whoever listens.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final

from onnxopt.ort import onnxruntime
from onnxopt.worker.frames import receive, send
from onnxopt.worker.limits import peak_memory

RENEW: Final = "renew"
STARTING: Final = "at its start"
Tell = Callable[[Any], None]  # a state, or an event that the parent is told


class Refused(Exception):
    """The original cannot be run here; says why."""


class Died(Exception):
    """A worker ended, or hung (`late`); `state` is what it was doing, `how` it ended."""

    def __init__(self, state: str, how: str, late: bool = False) -> None:
        super().__init__(f"onnxruntime {how} {state}")
        self.state = state
        self.how = how
        self.late = late

    def is_about(self, label: str) -> bool:
        """Was it busy with the one that is called so? A name of a value may hold the label too."""
        return re.match(rf"(loading|running) (a piece of )?{re.escape(label)}\b", self.state) is not None


def serve(make: Callable[[Tell], Any], early: bool = True) -> None:
    """Answer calls of the methods of one object until the parent is gone. `early`: load onnxruntime at once."""
    source = sys.stdin.buffer
    with os.fdopen(os.dup(1), "wb") as target:
        os.dup2(2, 1)  # whatever a runtime prints must not enter the messages
        if early:
            with contextlib.suppress(ImportError):  # said when it is used; now the parent still reads the models
                onnxruntime()

        def tell(said: Any) -> None:
            send(target, ("state" if isinstance(said, str) else "event", said))

        tell(STARTING)  # which ends here
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
                e.add_note(f"in the worker:\n{traceback.format_exc()}")  # which stays behind when it is sent
                answer = ("raised", e)
            send(target, answer)
