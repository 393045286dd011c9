"""Loads of results with onnxruntime's optimizations in a copy of the worker (Linux), beside the comparison."""

from __future__ import annotations

import contextlib
import os
from typing import Final

from onnxopt.verification.run import OnnxRuntime
from onnxopt.worker.process import can_copy, start_copy
from onnxopt.worker.service import Service

_START: Final = (
    "from onnxopt.worker.serving import serve; from onnxopt.verification import aside; serve(lambda _: aside)"
)
_MIN_NODES: Final = 50  # loading fewer takes no longer than a copy
_MAX_BYTES: Final = 1 << 24  # of a file, as both processes hold the weights


class Aside:
    """A copy of the worker. Only success counts: an error or a crash is a verdict once the worker meets the same."""

    _copy: Service | None = None
    _is_prepared = False

    def prepare(self, path: str, nodes: int) -> None:
        """Copy this process, once, before sessions of onnxruntime run threads. `nodes`: of the original at `path`."""
        if not self._is_prepared and nodes >= _MIN_NODES and os.path.getsize(path) <= _MAX_BYTES and can_copy():
            with contextlib.suppress(OSError):
                start_copy(_START, 0)
                self._copy = Service(_START, 600.0)  # the parent gives up earlier, and ends both processes
        self._is_prepared = True

    def begin(self, path: str) -> None:
        """Begin to load the result at `path`."""
        if self._copy is not None and os.path.getsize(path) <= _MAX_BYTES:
            self._copy.drain()
            self._copy.post("load", path)

    def loads(self) -> bool:
        """Return whether the result of `begin` is loaded, once known. False if asked again, or without `begin`."""
        if self._copy is not None and self._copy.is_asked("load"):
            with contextlib.suppress(Exception):
                self._copy.call("load")
                return True
        return False


def load(path: str) -> None:
    """Load a result, in the copy. Raises the runtime's errors."""
    OnnxRuntime(path, optimize=True)
