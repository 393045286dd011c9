"""Where Python code keeps its frames: for a process in one piece, taken at once.

CPython (3.11 and newer) takes chunks of 16 KiB for them from the system, and gives one back when the last frame in it
ends. Where the calls of a loop begin a chunk each of them maps one and unmaps it: a thousand times in a small run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_ROOM: Final = 1 << 16  # words; a frame takes some 50. What nobody uses is an address, not memory


def with_room(function: F) -> F:
    """The first function of a process: its frame asks for so much that its chunk is twice as large, and holds those of
    all that it calls."""
    function.__code__ = function.__code__.replace(co_stacksize=_ROOM)
    return function
