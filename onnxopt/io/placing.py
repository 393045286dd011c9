"""Moves a finished model into place: new data files first, then the model; replaced files are removed last.

At any moment readers find the old model with old data, or the new one with new data.
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
_TRIES: Final = 40 if sys.platform == "win32" else 0  # attempts before the last
_PAUSE: Final = 0.05
_DATA: Final = re.compile(rf"\.[0-9a-f]{{{_TOKEN}}}\.data")


def data_name(model: str, digest: str) -> str:
    """Return the name of a model's data file: different contents have different names, so no data file is
    overwritten."""
    return f"{model}.{digest[:_TOKEN]}.data"


def is_data_of(model: str, file: str) -> bool:
    """Whether `file` is a name made by `data_name` for this model."""
    return file.startswith(model) and _DATA.fullmatch(file, len(model)) is not None


def put_in_place(
    model: Path,
    data: Sequence[Path],
    target: Path,
    intend: Callable[[str, Sequence[str]], None],
    backup: Path | None = None,
) -> None:
    """Rename `data` and `model` into place, on the same file system, and remove data files read only by the old
    `target`.

    `intend` is called with all affected data files before any change. `backup`, a model beside `target`, keeps its
    data.
    Raises OSError, and WriteError if `target` is not a regular file.
    """
    refuse_special(target)
    names = [file.name for file in data]
    with alone_in(target.parent):
        old = [name for name in _ours(target) if name not in names]
        if old:  # the new model may refer to old data files
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
    """Rename `file`, replacing `target`. Raises OSError.

    Retries on Windows, which refuses while a search index or virus scanner has a file open.
    """
    for _ in range(_TRIES):
        with suppress(PermissionError):
            return os.replace(file, target)
        time.sleep(_PAUSE)
    return os.replace(file, target)


def refuse_special(target: Path) -> None:
    """Raise WriteError if `target` is not a regular file (a device, pipe or folder), which a rename would replace."""
    try:
        mode = target.stat().st_mode
    except OSError:
        return
    if stat.S_ISDIR(mode):
        raise WriteError(f"{target} is a directory", "name the file to write")
    if not stat.S_ISREG(mode):
        raise WriteError(f"{target} is not a file, and is not replaced", "name a file to write")


def remove_unread(target: Path, names: Iterable[str]) -> None:
    """Remove onnxopt's data files in `names` not read by the model `target`, if it exists."""
    found = [n for n in names if is_data_of(target.name, n) and (target.parent / n).exists()]
    if not found:
        return
    try:
        read = _read_by(target) if target.exists() else set()
    except OnnxOptError:  # its reads are unknown
        return
    for name in found:
        if name not in read:
            _remove(target.parent / name)


def listed(folder: Path) -> list[str]:
    """Return the names in a folder; none if it cannot be listed."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _ours(target: Path, reader: Path | None = None) -> list[str]:
    """Return onnxopt's data files for `target` read by `reader`, by default the present file."""
    called, reader = target.name, reader or target
    if not reader.exists() or not any(is_data_of(called, name) for name in listed(target.parent)):
        return []
    try:
        return sorted(n for n in _read_by(reader) if is_data_of(called, n))
    except OnnxOptError:  # not a model
        return []


def _read_by(model: Path) -> set[str]:
    from onnxopt.io.external import data_files, external_tensors
    from onnxopt.io.load import read_proto

    return set(data_files(external_tensors(read_proto(model, weights=False))))


def _remove(file: Path) -> None:
    try:
        if stat.S_ISREG(file.lstat().st_mode):
            file.unlink()
    except OSError:  # open in another process (Windows), or already removed
        return


__all__ = ["data_name", "is_data_of", "listed", "move", "put_in_place", "refuse_special", "remove_unread"]
