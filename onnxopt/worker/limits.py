"""Resource limits of workers, as options give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onnxopt.arguments import check_number, check_whole
from onnxopt.errors import UsageError
from onnxopt.worker import usual_memory

_MIN_BYTES: Final = 128 << 20  # bytes


@dataclass(eq=False, repr=False)
class Limits:
    """Resource limits of workers."""

    memory: int = 0  # bytes per worker; 0: half of the machine
    work: float = 10.0  # seconds for all workers together, except for verification, with its own timeout

    def __post_init__(self) -> None:
        """Raise UsageError for invalid types, and for memory too small for a runtime."""
        check_whole("memory", self.memory)
        check_number("work", self.work)
        if 0 < self.memory < _MIN_BYTES:
            raise UsageError(f"a memory of {self.memory} bytes is not enough", "a runtime alone takes some 128 MiB")

    @property
    def bytes(self) -> int:
        """The memory limit; 0 if the machine's memory is unknown."""
        return self.memory or usual_memory()
