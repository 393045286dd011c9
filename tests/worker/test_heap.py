"""Memory that a worker returns to the system."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from onnxopt.worker.process import child

LARGE = 300 << 20  # bytes
SMALL = 1 << 12
GLIBC = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None) if sys.platform == "linux" else None, "mallopt"), reason="glibc's"
)
KEEP_LITTLE = "from onnxopt.worker import keep_little; keep_little()"


@GLIBC
def test_threads_that_keep_little_share_one_heap() -> None:
    code = f"""
import ctypes, threading
{{before}}
system = ctypes.CDLL(None)
system.malloc.restype = ctypes.c_void_p
threads = [threading.Thread(target=system.malloc, args=({SMALL},)) for _ in range(4)]
for work in (threading.Thread.start, threading.Thread.join):
    for thread in threads:
        work(thread)
system.malloc_info(0, ctypes.c_void_p.in_dll(system, "stdout"))
system.fflush(None)
"""
    heaps = [_told(code.format(before=before)).count("<heap nr=") for before in ("", KEEP_LITTLE)]
    assert heaps[1] == 1 < heaps[0]


@GLIBC
def test_weights_between_values_leave_no_holes() -> None:
    code = f"""
import ctypes, os, pathlib
from onnxopt.worker import weights_apart
{{before}}
system = ctypes.CDLL(None)
system.malloc.restype, system.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
system.free.argtypes = [ctypes.c_void_p]
def held(size):
    block = system.malloc(size)
    ctypes.memset(block, 1, size)
    return block
system.free(held({LARGE >> 4}))  # glibc learns that such a size comes again,
held({LARGE >> 4})  # and it does
with weights_apart():
    blocks = [(held({LARGE >> 10}), held({SMALL})) for _ in range(100)]
resident = lambda: int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
before = resident()
for large, _ in blocks:
    system.free(large)
print((before - resident()) // {LARGE >> 10})
"""
    given_back = [int(_told(code.format(before=before))) for before in ("", KEEP_LITTLE)]
    assert given_back[0] < 10 and given_back[1] > 90


def _told(code: str) -> str:
    return subprocess.run(child(code), capture_output=True, check=True, text=True).stdout
