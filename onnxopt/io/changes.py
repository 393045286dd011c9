"""Files that somebody else writes while they are read: what is made of them is of neither the old nor the new ones."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onnxopt.errors import ModelError
from onnxopt.io.external import data_of

if TYPE_CHECKING:
    from onnxopt.graph import Model

_HINT: Final = "nothing is written: run it again when it stays as it is"


class Watch:
    """What files are as long as they are not written to, and no other file gets their name. One that is removed was
    read as it was."""

    def __init__(self, *files: Path) -> None:
        self._seen = {file: _state(file) for file in files}

    @classmethod
    def data(cls, model: Model) -> Watch:
        """Of the data files that a model names; what cannot be read others say."""
        found, reader = [], data_of(model)
        for name in model.data_files:
            with suppress(ModelError):
                found.append(reader.place("", name))
        return cls(*(place for place in found if place is not None))

    @property
    def changed(self) -> Path | None:
        """The first that is another now."""
        now = ((file, before, _state(file)) for file, before in self._seen.items())
        return next((file for file, before, after in now if after is not None and after != before), None)

    def refuse(self) -> None:
        """Raises ModelError for one that is another now."""
        if (file := self.changed) is not None:
            raise ModelError(f"{file} was changed while it was read", _HINT)

    def refuse_removed(self) -> None:
        """Raises ModelError for one that was there and is not."""
        for file, before in self._seen.items():
            if before is not None and _state(file) is None:
                raise ModelError(f"{file} was removed while it was read", _HINT)


def _state(file: Path) -> tuple[int, int] | None:
    """Size and time: what a network's file system says of inodes may be another each time."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
