"""What a worker may take, and that it ends with its parent.

Linux holds the limit itself, at each allocation, and ends the worker with the parent's main thread. Elsewhere, and for
a parent that starts workers from other threads, a thread of the worker looks once in a while. Where even that is not
to be had (Windows) a worker ends when it next reads from its parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from onnxopt.arguments import check_number, check_whole
from onnxopt.errors import UsageError
from onnxopt.record import record

_MIN_BYTES: Final = 128 << 20  # bytes
_EVERY: Final = 0.25  # seconds between two looks
_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG
_CGROUPS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@record(frozen=True)
class Limits:
    """`memory`: bytes that one worker may take; 0: half of the machine. `work`: seconds that workers may take
    altogether, but for those that verify, which have a limit of their own."""

    memory: int = 0
    work: float = 10.0

    def __post_init__(self) -> None:
        """Raises UsageError for what is of another type, and for memory in which nothing runs."""
        check_whole("memory", self.memory)
        check_number("work", self.work)
        if 0 < self.memory < _MIN_BYTES:
            raise UsageError(f"a memory of {self.memory} bytes is not enough", "a runtime alone takes some 128 MiB")

    @property
    def bytes(self) -> int:
        """0 where nothing is known of the machine."""
        return self.memory or machine_memory() // 2


def machine_memory() -> int:
    """Bytes that this process may see: of the machine, or of its container; 0 if unknown."""
    found: list[int] = []
    if sys.platform != "win32":
        with contextlib.suppress(ValueError, OSError):
            found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for file in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            found.append(int(Path(file).read_text()))
    return min((n for n in found if n > 0), default=0)


@contextmanager
def spare(memory: int) -> Iterator[None]:
    """Native code that runs inside gets `memory` bytes more than this process has now, and MemoryError beyond: no
    process is needed, and nothing is lost where it keeps within. Only Linux can; elsewhere nothing is limited."""
    if sys.platform != "linux":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = _data()
    limit = used + memory
    if not used or (soft != resource.RLIM_INFINITY and soft <= limit):
        yield
        return
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def unused() -> int:
    """Bytes that this process may still take; 0 where the system sets no limit."""
    if sys.platform != "linux":
        return 0
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return max(1, soft - _data()) if soft != resource.RLIM_INFINITY else 0


def _data() -> int:
    """Bytes that count against RLIMIT_DATA; 0 if unknown."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm", "rb") as f:
            return int(f.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def confinement(memory: int) -> str:
    """The program text by which a worker confines itself, to be called where it is started."""
    at_once = sys.platform == "linux" and threading.current_thread() is threading.main_thread()
    return f"from onnxopt.worker.limits import confine; confine({os.getpid()}, {memory}, {at_once})"


def confine(parent: int, memory: int, at_once: bool) -> None:
    """Take no more than `memory` bytes (0: whatever there is), and end when `parent` does."""
    if sys.platform == "linux":
        import ctypes

        system = ctypes.CDLL(None)
        if at_once:
            system.prctl(_DEATH_SIGNAL, signal.SIGKILL)
        if memory:
            import resource

            soft, hard = resource.getrlimit(resource.RLIMIT_DATA)  # who set one keeps it
            if soft == resource.RLIM_INFINITY or memory < soft:
                resource.setrlimit(resource.RLIMIT_DATA, (memory, hard))
        memory = 0
    if sys.platform != "win32":
        if os.getppid() != parent:  # it ended while we started
            os._exit(1)
        if memory or not at_once:
            threading.Thread(target=_watch, args=(parent, memory), daemon=True).start()


def peak_memory() -> int:
    """Bytes that this program has had at most; 0 where nobody counts."""
    if sys.platform == "win32":
        return 0
    if sys.platform == "linux":  # getrusage counts what the parent had when it started us
        with contextlib.suppress(OSError), open("/proc/self/status", "rb") as f:
            return next((int(line.split()[1]) * 1024 for line in f if line.startswith(b"VmHWM:")), 0)
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if sys.platform != "win32":

    def _watch(parent: int, memory: int) -> None:
        while os.getppid() == parent:
            if memory and peak_memory() > memory:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(_EVERY)
        os._exit(1)
