"""What a worker says of itself."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from onnxopt.worker.process import child

LARGE = 300 << 20  # bytes
SMALL = 1 << 12


@pytest.mark.skipif(sys.platform == "win32", reason="nobody counts there")
def test_the_peak_of_a_worker_is_its_own_and_not_that_of_a_large_parent() -> None:
    ask = "from onnxopt.worker.limits import peak_memory; print(peak_memory())"
    parent = f"import subprocess; subprocess.run({child(ask)!r})"
    for memory in (0, LARGE):
        found = subprocess.run(
            [sys.executable, "-c", f"held = b'1' * {memory}; {parent}"], capture_output=True, check=True, text=True
        )
        assert 0 < int(found.stdout) < LARGE


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None) if sys.platform == "linux" else None, "mallopt"), reason="glibc's")
def test_threads_of_a_worker_share_one_heap() -> None:
    code = f"""
import ctypes, threading
{{confine}}
system = ctypes.CDLL(None)
system.malloc.restype = ctypes.c_void_p
threads = [threading.Thread(target=system.malloc, args=({SMALL},)) for _ in range(4)]
for work in (threading.Thread.start, threading.Thread.join):
    for thread in threads:
        work(thread)
system.malloc_info(0, ctypes.c_void_p.in_dll(system, "stdout"))
system.fflush(None)
"""
    heaps = []
    for confine in ("", "import os; from onnxopt.worker.limits import confine; confine(os.getppid(), 0, True)"):
        told = subprocess.run([*child(code.format(confine=confine))], capture_output=True, check=True, text=True).stdout
        heaps.append(told.count("<heap nr="))
    assert heaps[1] == 1 < heaps[0]
