"""Folders for what is not finished, beside where it goes. What a killed process left, the next one clears."""

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

_LONGEST: Final = 200  # bytes of a name, of 255 that most file systems allow
_ROOM: Final = 1 << 20  # bytes
MANY: Final = "onnxopt"  # the name under which results of many models are staged
_OWNER: Final = "onnxopt.owner"  # held while the process lives; what it is about to put beside the destination
_FOLDER = re.compile(r"[a-z0-9_]{8}\.tmp")
_FILE = re.compile(r"[a-z0-9_]{8}\.onnx\.tmp")


class StagingFolder:
    """`.NAME.XXXXXXXX.tmp` in `parent`, of which `NAME` is what will be written there. Raises OSError.

    It is ours by a lock that ends with the process: who makes the next for the same name removes those that nobody
    holds, and the data files that were put in place for a model that never followed.
    """

    def __init__(self, parent: Path, name: str, *others: str) -> None:
        """`others`: names of which leftovers are cleared too."""
        self._parent, self._prefix = parent, _prefix(name)
        # To clean up in, where there is no other memory any more. Not by malloc, which keeps what is freed once.
        self._room = mmap.mmap(-1, _ROOM, access=mmap.ACCESS_COPY)
        self._model: tuple[Path, IO[bytes]] | None = None
        try:
            with alone_in(parent):
                clear(parent, name, *others, MANY)
                self.path = Path(tempfile.mkdtemp(prefix=self._prefix, suffix=".tmp", dir=parent))
                self._owner = own(self.path / _OWNER)
        except BaseException:  # an interruption, in the middle of making it
            with alone_in(parent):
                if hasattr(self, "_owner"):
                    self._owner.close()
                if hasattr(self, "path"):
                    _remove_folder(self.path)
                clear(parent, name)  # or what has no name yet
            raise

    def files(self) -> list[Path]:
        """What was staged here."""
        return [f for f in sorted(self.path.iterdir()) if f.name != _OWNER]

    def file_in(self, folder: Path) -> Path:
        """The name of a hidden file for a model that has to lie where its data is, to be read. Raises OSError."""
        if self._model is None:
            middle = self.path.name[len(self._prefix) : -len(".tmp")]
            file = folder / f"{self._prefix}{middle}.onnx.tmp"
            with alone_in(folder):
                self._model = file, own(file)
        return self._model[0]

    def intend(self, model: str, names: Sequence[str]) -> None:
        """Write down the data files of a model beside this folder that are about to come or go."""
        self._owner.write("".join(f"{name}\n" for name in (model, *names)).encode("utf-8", "surrogateescape"))
        self._owner.flush()

    def let_go(self) -> None:
        """Of the hidden file, which is about to be renamed: where a file that is open cannot be."""
        if self._model is not None and sys.platform == "win32":
            self._model[1].close()

    def remove(self) -> None:
        """All that is left of it."""
        self._room.close()
        self._owner.close()
        _remove_folder(self.path)
        if self._model is not None:
            self._model[1].close()
            self._model[0].unlink(missing_ok=True)


def _prefix(name: str) -> str:
    """What the names of all begin with that is staged for `name`: no longer than file systems allow, with an ending."""
    short = name
    while len(os.fsencode(short)) > _LONGEST:
        short = short[: len(short) - max(1, (len(os.fsencode(short)) - _LONGEST) // 4)]
    if short != name:  # two that begin alike stay two
        import zlib  # few names are long

        short += f"~{zlib.crc32(os.fsencode(name)):08x}"
    return f".{short}."


def clear(parent: Path, *names: str) -> None:
    """Remove what killed processes staged in `parent` under these names."""
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
        if CAN_LOCK:  # nobody is just making it
            _remove_empty(entry)
        return
    if is_owned(owner):
        return
    try:
        text = owner.read_bytes()
    except OSError:  # it was not left: who made it is just taking it away
        return
    model, *names = text.decode("utf-8", "surrogateescape").splitlines() or [""]
    if model and os.path.basename(model) == model:
        remove_unread(entry.parent / model, names)
    _remove_folder(entry)


def _remove_folder(folder: Path) -> None:
    """The owner's file last: who finds none does not know what is in there."""
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
