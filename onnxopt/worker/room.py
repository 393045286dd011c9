"""Where native code meets what a model says: another process, for one thing at a time, with an end to its patience."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Final

from onnxopt.errors import StartError
from onnxopt.worker.limits import Limits
from onnxopt.worker.service import Service
from onnxopt.worker.serving import Died

_START: Final = "from onnxopt.worker.native import main; main()"


class Declined(Exception):
    """It did not end well there: it crashed, or took too long; says how. `state`: what it was busy with."""

    def __init__(self, how: str, state: str = "") -> None:
        super().__init__(how)
        self.state = state


class Room:
    """Calls methods of `native.Native` in a process that is started at the first, and again after a death.

    All calls together have `limits.work` seconds. `spent` counts them.
    """

    def __init__(self, limits: Limits, spent: float = 0.0) -> None:
        self.limits = limits
        self.spent = spent
        self._service: Service | None = None

    def call(self, method: str, *args: Any) -> Any:
        """The method's result; what it raises is raised here. Raises Declined."""
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
        if self._service is not None:
            self._service.close()

    def __enter__(self) -> Room:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
