"""Staging folders for unfinished output, beside the destination. Leftovers of killed processes are cleared by
the next."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from onnxopt.io.locks import CAN_LOCK, alone_in, is_owned, own
from onnxopt.io.placing import listed, remove_unread

_MAX_NAME_BYTES: Final = 200  # bytes of a name, of 255 in most file systems
_ROOM: Final = 1 << 20  # bytes
MANY: Final = "onnxopt"  # staging name for results of many models
# locked while the process lives; lists the data files about to appear beside the destination
_OWNER: Final = "onnxopt.owner"
_FOLDER = re.compile(r"[a-z0-9_]{8}\.tmp")
_FILE = re.compile(r"[a-z0-9_]{8}\.onnx\.tmp")


class StagingFolder:
    """The folder `.NAME.XXXXXXXX.tmp` in `parent`, with `NAME` the file to be written. Raises OSError.

    Owned through a lock that ends with the process. The next staging folder for the same name removes unlocked ones,
    and data files put in place for a model that never followed.
    """

    def __init__(self, parent: Path, name: str, *others: str) -> None:
        """`others`: names whose leftovers are cleared, too."""
        self._parent, self._prefix = parent, _prefix(name)
        # Memory reserved for clean-up when memory is exhausted; mapped, since malloc keeps freed memory.
        self._room = mmap.mmap(-1, _ROOM, access=mmap.ACCESS_COPY)
        self._model: tuple[Path, IO[bytes]] | None = None
        try:
            with alone_in(parent):
                clear(parent, name, *others, MANY)
                self.path = Path(tempfile.mkdtemp(prefix=self._prefix, suffix=".tmp", dir=parent))
                self._owner = own(self.path / _OWNER)
        except BaseException:  # an interrupt during creation
            with alone_in(parent):
                if hasattr(self, "_owner"):
                    self._owner.close()
                if hasattr(self, "path"):
                    _remove_folder(self.path)
                clear(parent, name)  # a folder without a known path yet
            raise

    def files(self) -> list[Path]:
        """Return the staged files."""
        return [f for f in sorted(self.path.iterdir()) if f.name != _OWNER]

    def file_in(self, folder: Path) -> Path:
        """Return a hidden file name for a model readable only beside its data. Raises OSError."""
        if self._model is None:
            middle = self.path.name[len(self._prefix) : -len(".tmp")]
            file = folder / f"{self._prefix}{middle}.onnx.tmp"
            with alone_in(folder):
                self._model = file, own(file)
        return self._model[0]

    def intend(self, model: str, names: Sequence[str]) -> None:
        """Record the data files of a model, beside this folder, about to be created or removed."""
        self._owner.write("".join(f"{name}\n" for name in (model, *names)).encode("utf-8", "surrogateescape"))
        self._owner.flush()

    def let_go(self) -> None:
        """Close the hidden file before its rename on Windows, where open files cannot be renamed."""
        if self._model is not None and sys.platform == "win32":
            self._model[1].close()

    def remove(self) -> None:
        """Remove the folder and its contents."""
        self._room.close()
        self._owner.close()
        _remove_folder(self.path)
        if self._model is not None:
            self._model[1].close()
            self._model[0].unlink(missing_ok=True)


def _prefix(name: str) -> str:
    """Return the prefix of staging names for `name`, within the length limit of file systems."""
    short = name
    while len(os.fsencode(short)) > _MAX_NAME_BYTES:
        short = short[: len(short) - max(1, (len(os.fsencode(short)) - _MAX_NAME_BYTES) // 4)]
    if short != name:  # keeps long names with a common beginning apart
        import zlib  # few names are long

        short += f"~{zlib.crc32(os.fsencode(name)):08x}"
    return f".{short}."


def clear(parent: Path, *names: str) -> None:
    """Remove leftovers of killed processes in `parent` under these names."""
    prefixes = tuple({_prefix(name) for name in names})
    hidden = [f for f in listed(parent) if f.startswith(prefixes)]
    for found, prefix in [(f, prefix) for f in hidden for prefix in prefixes if f.startswith(prefix)]:
        entry, rest = parent / found, found[len(prefix) :]
        if _FOLDER.fullmatch(rest) and entry.is_dir() and not entry.is_symlink():
            _clear_folder(entry)
        elif _FILE.fullmatch(rest) and _is_file(entry) and not is_owned(entry):
            entry.unlink(missing_ok=True)


def _clear_folder(entry: Path) -> None:
    owner = entry / _OWNER
    if not _is_file(owner):
        if CAN_LOCK:  # not being created at this moment
            _remove_empty(entry)
        return
    if is_owned(owner):
        return
    try:
        text = owner.read_bytes()
    except OSError:  # not a leftover: its owner is removing it now
        return
    model, *names = text.decode("utf-8", "surrogateescape").splitlines() or [""]
    if model and os.path.basename(model) == model:
        remove_unread(entry.parent / model, names)
    _remove_folder(entry)


def _remove_folder(folder: Path) -> None:
    """Remove the owner's file last: without it the contents are unknown."""
    for path in sorted((folder / name for name in listed(folder)), key=lambda path: path.name == _OWNER):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()
    _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
