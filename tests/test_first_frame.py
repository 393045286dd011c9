"""Where the frames of a process are kept."""

from __future__ import annotations

import subprocess
import sys

import pytest

from onnxopt.__main__ import run
from onnxopt.first_frame import with_room
from tests.samples import ROOT

_CALLS = 100


def wide(x: int) -> int:
    """Of which a frame is larger than one of `worst`, so that one begins a chunk wherever that ends."""
    return max(x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x)


def worst(levels: int) -> int:
    """Page faults of so many calls, at the level where they are most."""
    from resource import RUSAGE_SELF, getrusage

    before = getrusage(RUSAGE_SELF).ru_minflt
    for i in range(_CALLS):
        wide(i)
    here = getrusage(RUSAGE_SELF).ru_minflt - before
    return max(here, worst(levels - 1)) if levels else here


@with_room
def worst_with_room(levels: int) -> int:
    """The same, below a frame with room."""
    return worst(levels)


@pytest.mark.skipif(sys.platform != "linux" or sys.version_info < (3, 11), reason="of CPython's chunks on Linux")
def test_frames_below_the_first_are_in_its_chunk() -> None:
    code = f"from {__name__} import worst, worst_with_room; print(worst(300), worst_with_room(300))"
    # In a process of its own: a large frame around the tests is room for those below it, too.
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    without, with_it = map(int, done.stdout.split())
    assert without >= _CALLS, "else CPython has other ways by now, and needs no room"
    assert with_it < _CALLS // 2


def test_the_command_begins_with_room() -> None:
    assert run.__code__.co_stacksize == worst_with_room.__code__.co_stacksize > 1000
