"""Threads that wait sleep: the BLAS below numpy has one for each core, which spins for some 50 ms from its import on.

That is half of what importing numpy costs, and the verifier, whose process works beside ours, needs the core.
"""

from __future__ import annotations

import os


def let_threads_sleep() -> None:
    """Called before numpy is imported, which is when OpenBLAS looks; processes that we start inherit it.

    Its threads wait 2 to the power of that many cycles before they sleep, 26 unless told, 4 at least. Who wants it
    otherwise says so in OPENBLAS_THREAD_TIMEOUT. (OpenBLAS, USAGE.md and driver/others/blas_server.c)
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
