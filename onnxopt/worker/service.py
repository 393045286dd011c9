"""An object in a worker process, called from the parent, with a record of its activity at death."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from onnxopt.errors import StartError
from onnxopt.worker.limits import Limits
from onnxopt.worker.process import Gone, Worker
from onnxopt.worker.serving import RENEW, STARTING, Died

LARGE: Final = 1 << 30  # bytes; a process with a higher peak is not reused, as its heap is fragmented
_GRACE: Final = 2.0  # seconds to finish abandoned calls
# Minimum seconds for the start of a process on a busy machine; the calls have their own timeout.
_TO_START: Final = 60.0


def _ignore(event: Any) -> None:
    pass


class Service:
    """A worker process, started at once, and again after a death.

    start: program that calls `serve`. Limited to `memory` bytes (0: no limit). Each state has `timeout` seconds, the
    start at least a minute; or all have until `deadline` on the monotonic clock, if set.
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
        self.heard = 0.0  # time of the first answer, on the monotonic clock
        self.hear: Callable[[Any], None] = _ignore  # called with each event
        self._is_new = True  # no request yet

    @property
    def alive(self) -> bool:
        """Whether the process runs, as far as known."""
        return self._worker is not None

    def is_asked(self, method: str) -> bool:
        """Return whether a call was posted and not awaited yet."""
        return method in self._posted

    def post(self, method: str, *args: Any) -> None:
        """Request a call without waiting; the next `call` of the method returns its result."""
        if self._worker is None:
            self._worker = Worker(self._start, self._memory)
        self._is_new = False
        self._posted.append(method)
        self._worker.send((method, args))

    def _limits(self) -> tuple[float, float]:
        """Return the deadline of the next answer and the seconds it may take."""
        if self.deadline is not None:
            return self.deadline, self._timeout
        timeout = self._timeout if self._has_started else max(self._timeout, _TO_START)
        return time.monotonic() + timeout, timeout

    def call(self, method: str, *args: Any) -> Any:
        """Return the method's result, or raise its error. Raises Died."""
        if not self.is_asked(method):
            self.post(method, *args)
        while self._posted[0] != method:
            self.call(self._posted[0])
        assert self._worker is not None
        try:
            while True:
                kind, value = self._worker.receive(*self._limits())
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
        """Await all posted calls, ignoring their results."""
        while self._posted:
            with contextlib.suppress(Exception):
                self.call(self._posted[0])

    def renew(self, start: str, timeout: float, memory: int) -> bool:
        """Reset the worker for a new caller. Returns False, with the worker closed, if impossible or not worthwhile."""
        if self._worker is not None and (start, memory) == (self._start, self._memory):
            self._timeout, self.deadline, self.heard, self.hear = timeout, None, 0.0, _ignore
            if self._is_new:  # may still be starting
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
        """End the process, and forget posted calls."""
        if self._worker is not None:
            self._worker.close()
            self._worker, self._has_started, self.heard = None, False, 0.0
            self._posted.clear()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Spare:
    """Keeps a caller's worker for the next caller, with modules already imported."""

    def __init__(self) -> None:
        self._kept: Service | None = None

    def prepare(self, start: str, timeout: float, memory: int) -> None:
        """Start a worker for `take`, unless kept."""
        if self._kept is None:
            self._kept = Service(start, timeout, memory)

    def take(self, start: str, timeout: float, memory: int) -> Service:
        """Return the kept worker, reset, or a new worker."""
        service, self._kept = self._kept, None
        if service is not None and service.renew(start, timeout, memory):
            return service
        return Service(start, timeout, memory)

    def keep(self, service: Service) -> None:
        """Keep a worker in place of the kept one."""
        self.close()
        self._kept = service

    def close(self) -> None:
        """End the kept worker."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None


# -- calls of native code on model data ----------------------------------------------------------------------------

_START: Final = "from onnxopt.worker.native import main; main()"


class Declined(Exception):
    """The call crashed or took too long; the message says how."""

    def __init__(self, how: str, state: str = "") -> None:
        super().__init__(how)
        self.state = state  # activity in progress


class Sandbox:
    """Calls methods of `native.Native` in a process, started at the first call, and again after a death."""

    def __init__(self, limits: Limits, spent: float = 0.0) -> None:
        self.limits = limits  # all calls together have `limits.work` seconds
        self.spent = spent  # seconds
        self._service: Service | None = None

    def call(self, method: str, *args: Any) -> Any:
        """Return the method's result, or raise its error. Raises Declined."""
        began = time.monotonic()
        left = self.limits.work - self.spent
        if left <= 0:
            raise Declined(f"took more than {self.limits.work:g} s (--work)")
        try:
            if self._service is None:
                self._service = Service(_START, self.limits.work, self.limits.bytes)
            self._service.deadline = began + left
            return self._service.call(method, *args)
        except Died as e:
            how = f"took more than {self.limits.work:g} s (--work)" if e.late else e.how
            raise Declined(how, e.state) from None
        except StartError as e:
            raise Declined(e.message) from None
        except MemoryError:
            raise Declined("took more memory than it may (--memory)") from None
        finally:
            self.spent += time.monotonic() - began

    def close(self) -> None:
        """End the process."""
        if self._service is not None:
            self._service.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
