"""Moving a finished result into place: all of its files, the model last, never partially visible."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from onnxopt.errors import plain
from onnxopt.io.placing import is_data_of, listed, put_in_place
from onnxopt.io.staging import StagingFolder


def files_of(model: Path) -> Iterator[Path]:
    """Yield the files of a result in a folder of its own: data, then the model."""
    beside = (model.parent / name for name in listed(model.parent) if is_data_of(model.name, name))
    yield from (*sorted(beside), model)


def same_files(model: Path, target: Path) -> bool:
    """Return whether all files of a result are already in place. The model is compared first."""
    return all(
        place.is_file() and file_digest(place) == file_digest(file)
        for file in reversed([*files_of(model)])
        for real in [Path(os.path.realpath(target))]
        for place in [real if file == model else real.parent / file.name]
    )


def move_files(model: Path, target: Path, folder: StagingFolder, backup: Path | None = None) -> None:
    """Rename a result's files from `folder` into place. Data read by `backup` stays. Raises OSError and WriteError."""
    real = Path(os.path.realpath(target))
    put_in_place(model, [file for file in files_of(model) if file != model], real, folder.intend, backup)


def keep_original(original: Path, backup: Path) -> None:
    """Copy a file to a backup, unless the name is taken: a second run must not replace the original. Raises OSError."""
    if backup.exists():
        return
    with tempfile.TemporaryDirectory(prefix=".onnxopt.", suffix=".tmp", dir=backup.parent) as folder:
        copy = Path(folder) / backup.name
        shutil.copy2(original, copy)
        os.replace(copy, backup)  # an interrupted copy must not be mistaken for the original


def file_digest(path: Path) -> str:
    """Return the SHA-256 digest of a file, hexadecimal. Raises OSError."""
    with open(path, "rb", opener=plain) as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
