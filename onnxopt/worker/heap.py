"""How a worker keeps memory that it may need again: glibc's heap, by mallopt(3). Elsewhere nothing is changed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_ARENAS, _ALONE, _TRIMMED = -8, -3, -1  # M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
# From how many bytes on a block is mapped alone, and the system's again once it is free. That costs a page fault for
# every page: little for weights, which are loaded once, much for values, which each run makes anew.
_WEIGHTS: Final = 1 << 17
_VALUES: Final = 1 << 25

_mallopt: Callable[[int, int], int] | None = None  # where it is asked to keep little


def keep_little() -> None:
    """From now on threads share one heap, else what one lets go of is for no other; and see `weights_apart`. Whoever
    measures time leaves it."""
    global _mallopt
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(AttributeError):  # another C library
            _mallopt = ctypes.CDLL(None).mallopt
            for parameter, value in ((_ARENAS, 1), (_ALONE, _VALUES), (_TRIMMED, 2 * _VALUES)):
                _mallopt(parameter, value)


@contextmanager
def weights_apart() -> Iterator[None]:
    """Large blocks that are made inside, which last, do not lie between values that come and go: they leave no holes
    where they were. In a process that keeps little."""
    if _mallopt is None:
        yield
        return
    _mallopt(_ALONE, _WEIGHTS)
    try:
        yield
    finally:
        _mallopt(_ALONE, _VALUES)
