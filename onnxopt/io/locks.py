"""File locks of folders and files, released when the process ends in any way."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

_PATIENCE: Final = 10.0  # seconds; exclusive work takes milliseconds
_PAUSE: Final = 0.01
CAN_LOCK: Final = sys.platform != "win32"  # whether the system can lock folders


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Context with exclusive rights to rename or clear staged files in a folder.

    Without folder locks (Windows, some file systems) there is no waiting.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY) if sys.platform != "win32" else -1
    except OSError:  # writable folder without list permission
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
    """Create a file locked until closed. Raises OSError."""
    made = open(file, "xb")  # closed by the caller  # noqa: SIM115 - whoever asked closes it
    _lock(made.fileno())
    return made


def is_owned(file: Path) -> bool:
    """Whether a living process holds the file; True if unknown, False if it is not a regular file."""
    if sys.platform == "win32":
        try:
            os.rename(file, file)  # refused for open files
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
