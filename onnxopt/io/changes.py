"""Detects files modified while they are read: a result made from them would mix old and new contents."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onnxopt.errors import ModelError
from onnxopt.io.external import data_of

if TYPE_CHECKING:
    from onnxopt.graph.model import Model

_HINT: Final = "nothing is written: run it again when it stays as it is"


class Watch:
    """Recorded state of files, to detect writes and replacements. A removed file counts as read completely."""

    def __init__(self, *files: Path) -> None:
        self._seen = {file: _state(file) for file in files}

    @classmethod
    def data(cls, model: Model) -> Watch:
        """Return a Watch of the data files named by a model. Unreadable files are reported elsewhere."""
        found, reader = [], data_of(model)
        for name in model.data_files:
            with suppress(ModelError):
                found.append(reader.place("", name))
        return cls(*(place for place in found if place is not None))

    @property
    def changed(self) -> Path | None:
        """The first changed file, or None."""
        now = ((file, before, _state(file)) for file, before in self._seen.items())
        return next((file for file, before, after in now if after is not None and after != before), None)

    def refuse(self) -> None:
        """Raise ModelError for a changed file."""
        if (file := self.changed) is not None:
            raise ModelError(f"{file} was changed while it was read", _HINT)

    def refuse_removed(self) -> None:
        """Raise ModelError for a removed file."""
        for file, before in self._seen.items():
            if before is not None and _state(file) is None:
                raise ModelError(f"{file} was removed while it was read", _HINT)


def _state(file: Path) -> tuple[int, int] | None:
    """Return size and modification time; inodes are unstable on network file systems."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
