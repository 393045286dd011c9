"""A finished result into its place: all of its files, the model last, nothing ever half there."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


def files_of(model: Path) -> Iterator[Path]:
    """The files of a result that has a folder to itself: its data, then the model."""
    for file in sorted(model.parent.rglob("*"), key=lambda p: p == model):
        if file.is_file() and not file.is_symlink():
            yield file


def same_files(model: Path, target: Path) -> bool:
    """Is all of the result at its place already?"""
    return all(
        place.is_file() and file_digest(place) == file_digest(file)
        for file in files_of(model)
        for place in [_place_of(file, model, Path(os.path.realpath(target)))]
    )


def move_files(model: Path, target: Path) -> None:
    """Rename the result's files into place, on the same file system. Raises OSError."""
    real = Path(os.path.realpath(target))
    for file in files_of(model):
        place = _place_of(file, model, real)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():
            shutil.copymode(place, file)
        os.replace(file, place)


def keep_original(original: Path, backup: Path) -> None:
    """Keep a file under another name, unless that is taken: a second run would replace the first original by what the
    first run made. Raises OSError."""
    if backup.exists():
        return
    with tempfile.TemporaryDirectory(prefix=".onnxopt.", suffix=".tmp", dir=backup.parent) as folder:
        copy = Path(folder) / backup.name
        shutil.copy2(original, copy)
        os.replace(copy, backup)  # an interrupted copy must not pass for the original


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _place_of(file: Path, model: Path, target: Path) -> Path:
    return target if file == model else target.parent / file.relative_to(model.parent)
