"""A finished model into its place: its data first, under a name of their own, then the model, at last what it replaced.

Who reads at any moment finds the old model with the old data, or the new one with the new.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from onnxopt.errors import OnnxOptError, WriteError
from onnxopt.io.locks import alone_in

_TOKEN: Final = 12  # hexadecimal digits
_TRIES: Final = 40 if sys.platform == "win32" else 0  # before the last
_PAUSE: Final = 0.05
_DATA: Final = re.compile(rf"\.[0-9a-f]{{{_TOKEN}}}\.data")


def data_name(model: str, digest: str) -> str:
    """What the data file of a model is called: other bytes have another name, so that none is ever written over."""
    return f"{model}.{digest[:_TOKEN]}.data"


def is_data_of(model: str, file: str) -> bool:
    """Is it such a name?"""
    return file.startswith(model) and _DATA.fullmatch(file, len(model)) is not None


def put_in_place(
    model: Path,
    data: Sequence[Path],
    target: Path,
    intend: Callable[[str, Sequence[str]], None],
    backup: Path | None = None,
) -> None:
    """Rename `data` and `model`, on the same file system, and remove the data file that only the old `target` read.

    `intend` is told which data files come and go, before they do. `backup`, a model beside `target`, keeps its data.
    Raises OSError, and WriteError where `target` is no file.
    """
    refuse_special(target)
    names = [file.name for file in data]
    with alone_in(target.parent):
        old = [name for name in _ours(target) if name not in names]
        if old:  # the new one may refer to what the old one had
            old = sorted({*old} - _read_by(model) - ({*_ours(target, backup)} if backup is not None else set()))
        intend(target.name, [*names, *old])
        for file in [*data, model] if target.exists() else []:
            file.chmod(stat.S_IMODE(target.stat().st_mode))
        try:
            for file in data:
                move(file, target.parent / file.name)
            move(model, target)
        except BaseException:
            remove_unread(target, [*names, *old])
            raise
        for name in old:
            _remove(target.parent / name)


def move(file: Path, target: Path) -> None:
    """Rename `file`, in the place of `target` if that is there. Windows refuses it while anybody has one of them open:
    a search index, a scanner for viruses, which look at what is new for a moment. Raises OSError."""
    for _ in range(_TRIES):
        with suppress(PermissionError):
            return os.replace(file, target)
        time.sleep(_PAUSE)
    return os.replace(file, target)


def refuse_special(target: Path) -> None:
    """Raises WriteError for what a rename would replace, though it is no file: a device, a pipe, a folder."""
    try:
        mode = target.stat().st_mode
    except OSError:
        return
    if stat.S_ISDIR(mode):
        raise WriteError(f"{target} is a directory", "name the file to write")
    if not stat.S_ISREG(mode):
        raise WriteError(f"{target} is not a file, and is not replaced", "name a file to write")


def remove_unread(target: Path, names: Iterable[str]) -> None:
    """Remove those data files of ours that the model `target`, if it is there, does not read."""
    found = [n for n in names if is_data_of(target.name, n) and (target.parent / n).exists()]
    if not found:
        return
    try:
        read = _read_by(target) if target.exists() else set()
    except OnnxOptError:  # whatever it reads
        return
    for name in found:
        if name not in read:
            _remove(target.parent / name)


def listed(folder: Path) -> list[str]:
    """The names in a folder; none where they may not be listed."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _ours(target: Path, reader: Path | None = None) -> list[str]:
    """The data files of ours that the model in place reads, or `reader`, what it was once."""
    called, reader = target.name, reader or target
    if not reader.exists() or not any(is_data_of(called, name) for name in listed(target.parent)):
        return []
    try:
        return sorted(n for n in _read_by(reader) if is_data_of(called, n))
    except OnnxOptError:  # no model
        return []


def _read_by(model: Path) -> set[str]:
    from onnxopt.io.external import data_files, external_tensors
    from onnxopt.io.load import read_proto

    return set(data_files(external_tensors(read_proto(model, weights=False))))


def _remove(file: Path) -> None:
    try:
        if stat.S_ISREG(file.lstat().st_mode):
            file.unlink()
    except OSError:  # another process has it open (Windows), or was faster
        return


__all__ = ["data_name", "is_data_of", "listed", "move", "put_in_place", "refuse_special", "remove_unread"]
