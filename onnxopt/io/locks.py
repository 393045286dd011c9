"""Who works in a folder: locks that end with their process, however that ends."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

_PATIENCE: Final = 10.0  # seconds; what is done alone takes milliseconds
_PAUSE: Final = 0.01
CAN_LOCK: Final = sys.platform != "win32"  # folders, where the system has such locks


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """While no other process renames or clears what we made in this folder. Where a folder cannot be locked (Windows,
    some file systems) nobody waits."""
    try:
        descriptor = os.open(folder, os.O_RDONLY) if sys.platform != "win32" else -1
    except OSError:  # a folder that may be written, but not listed
        descriptor = -1
    try:
        deadline = time.monotonic() + _PATIENCE
        while descriptor >= 0 and not _lock(descriptor) and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def own(file: Path) -> IO[bytes]:
    """Create a file that is ours until it is closed. Raises OSError."""
    made = open(file, "xb")  # noqa: SIM115 - whoever asked closes it
    _lock(made.fileno())
    return made


def is_owned(file: Path) -> bool:
    """Does a living process hold the file? Yes where that cannot be found out. What is no plain file is nobody's."""
    if sys.platform == "win32":
        try:
            os.rename(file, file)  # refused for what is open
        except OSError:
            return True
        return False
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return True
    try:
        return not _lock(descriptor)
    finally:
        os.close(descriptor)


if sys.platform == "win32":

    def _lock(descriptor: int) -> bool:
        return True

else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
