"""Work in separate processes: memory limits, the heap, and the end with the parent.

Linux enforces the limit at each allocation, and ends the worker with the parent's main thread. Elsewhere, and for
workers started from further threads, a thread of the worker polls. On Windows a worker ends at its next read from the
parent.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_EVERY: Final = 0.25  # seconds between polls
_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG
_CGROUPS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def machine_memory() -> int:
    """Return the bytes of memory of the machine or container; 0 if unknown."""
    found: list[int] = []
    if sys.platform != "win32":
        with contextlib.suppress(ValueError, OSError):
            found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for file in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            found.append(int(Path(file).read_text()))
    return min((n for n in found if n > 0), default=0)


def usual_memory() -> int:
    """Return the bytes a worker may use unless `Limits` say otherwise: half of the machine; 0 if unknown."""
    return machine_memory() // 2


@contextmanager
def spare(memory: int) -> Iterator[None]:
    """Limit native code in the context to `memory` further bytes; beyond, it raises MemoryError.

    Needs no process. Linux only; no limit elsewhere.
    """
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
    """Return the bytes this process may still allocate; 0 without limit."""
    if sys.platform != "linux":
        return 0
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return max(1, soft - _data()) if soft != resource.RLIM_INFINITY else 0


def _data() -> int:
    """Return the bytes counted by RLIMIT_DATA; 0 if unknown."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm", "rb") as f:
            return int(f.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def confinement(memory: int) -> str:
    """Return program text by which a new worker limits itself. Call in the starting thread."""
    import threading

    at_once = sys.platform == "linux" and threading.current_thread() is threading.main_thread()
    return f"from onnxopt.worker import confine; confine({os.getpid()}, {memory}, {at_once})"


def confine(parent: int, memory: int, at_once: bool) -> None:
    """Limit this process to `memory` bytes (0: no limit), and end it with `parent`."""
    if sys.platform == "linux":
        import ctypes

        system = ctypes.CDLL(None)
        if at_once:
            import signal

            system.prctl(_DEATH_SIGNAL, signal.SIGKILL)
        if memory:
            import resource

            soft, hard = resource.getrlimit(resource.RLIMIT_DATA)  # a given limit is kept
            if soft == resource.RLIM_INFINITY or memory < soft:
                resource.setrlimit(resource.RLIMIT_DATA, (memory, hard))
        memory = 0
    if sys.platform != "win32":
        if os.getppid() != parent:  # the parent ended in the meantime
            os._exit(1)
        if memory or not at_once:
            import threading

            threading.Thread(target=_watch, args=(parent, memory), daemon=True).start()


def peak_memory() -> int:
    """Return the peak memory of this process in bytes; 0 if unknown."""
    if sys.platform == "win32":
        return 0
    if sys.platform == "linux":  # getrusage includes the parent's memory at the start
        with contextlib.suppress(OSError), open("/proc/self/status", "rb") as f:
            return next((int(line.split()[1]) * 1024 for line in f if line.startswith(b"VmHWM:")), 0)
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if sys.platform != "win32":

    def _watch(parent: int, memory: int) -> None:
        import signal

        while os.getppid() == parent:
            if memory and peak_memory() > memory:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(_EVERY)
        os._exit(1)


# -- heap settings by glibc's mallopt(3), without effect on another C library --------------------------------------

_ARENAS, _ALONE, _TRIMMED = -8, -3, -1  # M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
# Blocks of at least as many bytes are mapped separately, and returned to the system when freed, at the cost of a page
# fault per page: little for weights, loaded once, but much for values, allocated in each run.
_WEIGHTS: Final = 1 << 17
_VALUES: Final = 1 << 25

_mallopt: Callable[[int, int], int] | None = None  # after `keep_little`


def keep_little() -> None:
    """Make threads share a single heap for reuse of freed memory, and enable `weights_apart`.

    Not for processes that measure time.
    """
    global _mallopt
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(AttributeError):  # a different C library
            _mallopt = ctypes.CDLL(None).mallopt
            for parameter, value in ((_ARENAS, 1), (_ALONE, _VALUES), (_TRIMMED, 2 * _VALUES)):
                _mallopt(parameter, value)


@contextmanager
def weights_apart() -> Iterator[None]:
    """Allocate large permanent blocks inside the context separately from temporary values, which avoids fragmentation.

    Only after `keep_little`.
    """
    if _mallopt is None:
        yield
        return
    _mallopt(_ALONE, _WEIGHTS)
    try:
        yield
    finally:
        _mallopt(_ALONE, _VALUES)
