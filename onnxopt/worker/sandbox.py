"""Calls of native code on model data, in a separate process with a time limit."""

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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
