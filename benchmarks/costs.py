"""Cost of one process: seconds and peak memory, on Linux and macOS."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Cost:
    """`seconds` of the clock, `busy` of the processor, `megabytes` at the peak; `failed`: why it did not finish."""

    seconds: float
    busy: float
    megabytes: float
    failed: str = ""

    def text(self, *, busy: bool = False, memory: bool = False) -> str:
        if self.failed:
            return self.failed
        seconds = f"{self.busy if busy else self.seconds:.1f} s"
        return f"{seconds}, {self.megabytes:,.0f} MB" if memory else seconds


# Of a process of its own, small: what a child had of its parent's memory before it became another counts as its peak.
_WATCH = """
import os, signal, sys, time
late = []
def end(*_):
    late.append(1)
    os.kill(child, signal.SIGKILL)
signal.signal(signal.SIGALRM, end)
if sys.platform == "linux":  # whom nobody waits for is handed to us
    import ctypes
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
out, start = os.open(os.devnull, os.O_WRONLY), time.monotonic()
child = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, out, 1)])
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
_, status, used = os.wait4(child, 0)
seconds, code = time.monotonic() - start, os.waitstatus_to_exitcode(status)
busy, peak = used.ru_utime + used.ru_stime, used.ru_maxrss
while True:
    try:
        used = os.wait4(-1, 0)[2]
    except ChildProcessError:
        break
    busy, peak = busy + used.ru_utime + used.ru_stime, max(peak, used.ru_maxrss)
print(seconds, busy, peak, code, len(late))
"""


def cost(command: Sequence[str], limit: float = 900.0) -> Cost:
    """Returns the cost of one run, ended after `limit` seconds of the clock."""
    watch = [sys.executable, "-S", "-c", _WATCH, str(limit), *command]
    done = subprocess.run(watch, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    seconds, busy, peak, code, late = done.stdout.split()
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    failed = f"over {limit:.0f} s" if int(late) else f"exit code {code}" if int(code) else ""
    return Cost(float(seconds), float(busy), int(peak) / unit, failed)


def middle(costs: Sequence[Cost]) -> Cost:
    """The medians of several runs."""
    seconds, busy, peak = (median(getattr(c, name) for c in costs) for name in ("seconds", "busy", "megabytes"))
    return Cost(seconds, busy, peak, next((c.failed for c in costs if c.failed), ""))
