"""An object in a worker process (`serving.py`), called from the parent; what it was doing when it died is known."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from onnxopt.worker.process import Gone, Worker
from onnxopt.worker.serving import RENEW, STARTING, Died

LARGE: Final = 1 << 30  # bytes: a process that has had so much is not kept, a large model leaves a heap with holes
_GRACE: Final = 2.0  # seconds for what nobody waits for any more
_TO_START: Final = 60.0  # seconds at least, on a machine that does other things; what is asked then has its own


def _ignore(event: Any) -> None:
    pass


class Service:
    """`start` is the worker's program, which calls `serve`. It starts at once, and after a death;
    it takes at most `memory` bytes (0: whatever there is).

    Each state has `timeout` seconds, and the start of a process a minute at least; or all have until `deadline` on the
    monotonic clock, where that is set.
    """

    def __init__(self, start: str, timeout: float, memory: int = 0) -> None:
        self._start = start
        self._memory = memory
        self._timeout = timeout
        self.deadline: float | None = None
        self._posted: deque[str] = deque()
        self._worker: Worker | None = Worker(start, memory)
        self._state = STARTING
        self._has_started = False
        self.heard = 0.0  # of it first, on the monotonic clock
        self.hear: Callable[[Any], None] = _ignore  # is called with each event
        self._is_new = True  # nothing was asked of it

    @property
    def alive(self) -> bool:
        return self._worker is not None

    def is_asked(self, method: str) -> bool:
        """Was a call posted, and not waited for yet?"""
        return method in self._posted

    def post(self, method: str, *args: Any) -> None:
        """Ask for a call without waiting for it: the next `call` of this method gets its result."""
        if self._worker is None:
            self._worker = Worker(self._start, self._memory)
        self._is_new = False
        self._posted.append(method)
        self._worker.send((method, args))

    def call(self, method: str, *args: Any) -> Any:
        """The method's result; what it raises is raised here. Raises Died."""
        if not self.is_asked(method):
            self.post(method, *args)
        while self._posted[0] != method:
            self.call(self._posted[0])
        assert self._worker is not None
        try:
            while True:
                timeout, deadline = self._timeout, self.deadline
                if deadline is None:
                    timeout = timeout if self._has_started else max(timeout, _TO_START)
                    deadline = time.monotonic() + timeout
                kind, value = self._worker.receive(deadline, timeout)
                self.heard = self.heard or time.monotonic()
                self._has_started = True
                if kind not in ("state", "event"):
                    break
                if kind == "event":
                    self.hear(value)
                else:
                    self._state = value
        except Gone as e:
            self.close()
            raise Died(self._state, str(e), e.late) from None
        self._posted.popleft()
        if kind == "raised":
            raise value
        return value

    def drain(self) -> None:
        """Wait for what was posted, whatever comes of it."""
        while self._posted:
            with contextlib.suppress(Exception):
                self.call(self._posted[0])

    def renew(self, start: str, timeout: float, memory: int) -> bool:
        """Forget all that was said and asked, for another caller; False, and closed, where that cannot be, or has no
        point."""
        if self._worker is not None and (start, memory) == (self._start, self._memory):
            self._timeout, self.deadline, self.heard, self.hear = timeout, None, 0.0, _ignore
            if self._is_new:  # it may still be starting
                return True
            self.deadline = time.monotonic() + _GRACE
            self.drain()
            if self._worker is not None:
                with contextlib.suppress(Died):
                    if self.call(RENEW) <= LARGE:
                        self.deadline, self._state = None, STARTING
                        return True
        self.close()
        return False

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker, self._has_started, self.heard = None, False, 0.0
            self._posted.clear()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class Spare:
    """Keeps the worker of one caller for the next: it has imported what both need."""

    def __init__(self) -> None:
        self._kept: Service | None = None

    def prepare(self, start: str, timeout: float, memory: int) -> None:
        """Start one if there is none, that `take` finds ready."""
        if self._kept is None:
            self._kept = Service(start, timeout, memory)

    def take(self, start: str, timeout: float, memory: int) -> Service:
        """The one that is kept, as if it were new, or a new one."""
        service, self._kept = self._kept, None
        if service is not None and service.renew(start, timeout, memory):
            return service
        return Service(start, timeout, memory)

    def keep(self, service: Service) -> None:
        self.close()
        self._kept = service

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None
