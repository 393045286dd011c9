"""Heap settings of a worker, by glibc's mallopt(3); no effect on further C libraries."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

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
