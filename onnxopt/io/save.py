"""Write a Model: size planned before writing, staged beside the destination, renamed into place at the end."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from onnxopt.errors import ModelError, OnnxOptError, UsageError, WriteError, unwritable
from onnxopt.graph.model import Model
from onnxopt.graph.writer import write_deferred
from onnxopt.io.copying import copy_file
from onnxopt.io.external import data_files, data_of, external_tensors
from onnxopt.io.layout import AUTO, REUSE, check_choice, plan
from onnxopt.io.placing import data_name, is_data_of, listed, put_in_place, refuse_special
from onnxopt.io.staging import StagingFolder
from onnxopt.wire import stands_alone

_PATIENCE = 5.0  # seconds, in which somebody may begin to read a pipe
_PAUSE = 0.05
_SPLICED = 1 << 16  # new weights from here on go into the file without a copy in the proto


class Staged:
    """The written files, not yet at their destination. `commit` renames them, leaving the block discards them.

    The staging folder lies beside the destination (same file system) and the data file in it already has its final
    name, so that the staged model can be opened and verified as it will be. `home`: the folder where it will be read,
    if somebody brings it there from `destination`. A device or a pipe is written to when all is done.
    """

    def __init__(self, destination: Path, home: Path | None = None) -> None:
        self.asked = destination  # as the user calls it
        self.destination = Path(os.path.realpath(destination))
        self.home = self.destination.parent if home is None else home.resolve()
        with _explained(destination):
            self._special = _is_special(destination)
            if not self._special:
                refuse_special(destination)
            parent = Path(tempfile.gettempdir()) if self._special else self.destination.parent
            self._folder = StagingFolder(parent, self.destination.name)
        self._made = self._folder.path / self.destination.name
        self.path = self._made  # the model as it can be read now
        self.read: list[str] = []  # the data files that it reads, by their names in `home`

    def write(self, model: Model, external: str = AUTO) -> None:
        """Stage `model`; `external` says where its external data goes (see `plan`). Raises WriteError (disk full, …),
        ModelError (bad external data), UsageError."""
        check_choice(external)
        with _explained(self.asked):
            if not (model.version == 0 and model.path is not None and self._copy(model, model.path, external)):
                self._encode(model, external)

    def write_bytes(self, data: bytes) -> None:
        """Write what is not a model, such as a report. Raises WriteError."""
        with _explained(self.asked):
            self._made.write_bytes(data)

    @property
    def bytes(self) -> int:
        """Of the model, and of the data files that it reads, staged or not."""
        staged = self._data
        others = {self.home / name for name in self.read} - {self.home / file.name for file in staged}
        return sum(file.stat().st_size for file in (self._made, *staged, *others) if file.is_file())

    @property
    def _data(self) -> list[Path]:
        return [file for file in self._folder.files() if file.name != self.destination.name]

    def _copy(self, model: Model, source: Path, external: str) -> bool:
        """Nothing changed, so nothing is encoded again: the same bytes, whoever wrote them and however. Not where its
        data is in another folder then, or should be; so False."""
        tensors = external_tensors(model.proto)
        if tensors:
            if external not in (AUTO, REUSE) or source.absolute().parent.resolve() != self.home or self._special:
                return False
            data = data_of(model)
            for tensor in tensors:
                data.source_of(tensor)
            self.read = data_files(tensors)
        copy_file(source, self._made)
        return True

    def _encode(self, model: Model, external: str) -> None:
        if model.file is not None and not model.file.is_as_it_was:
            raise ModelError(f"{model.name} changed while it was being optimized", "run again when it is complete")
        proto, deferred = write_deferred(model, _SPLICED)
        layout = plan(proto, deferred, data_of(model), self.home, external, model.stands_alone)
        if self._special and (layout.pieces or layout.references):
            raise WriteError(
                f"the result has external data, which cannot lie beside {self.asked}",
                "write to a file, or --external inline",
            )
        name = data_name(self.destination.name, layout.digest()) if layout.pieces else ""
        self.read = list(dict.fromkeys([*(file for _, file in layout.references), *([name] if name else [])]))
        if layout.references:  # readers do not follow links out of a folder, so it has to lie where they are
            self.path = self._folder.file_in(self.home)
            if not name:
                self._made = self.path
        if name:
            layout.write_data(self._folder.path / name)
        layout.write_model(self._made, proto, name)
        if name and layout.references:
            layout.write_model(self.path, proto, f"{self._below_home()}/{name}")

    def _below_home(self) -> str:
        """Raises WriteError."""
        if not self._folder.path.is_relative_to(self.home):
            raise WriteError(
                "weights that do not fit into the file would lie elsewhere than the others", "--external copy"
            )
        return self._folder.path.relative_to(self.home).as_posix()

    def commit(self) -> None:
        """Rename the staged files into place, the model last; then what they replace is removed."""
        with _explained(self.asked):
            if self._special:
                with open(self._made, "rb") as f, open(_opened(self.asked), "wb") as g:
                    shutil.copyfileobj(f, g)
            else:
                self._folder.let_go()
                put_in_place(self._made, self._data, self.destination, self._folder.intend)

    def __enter__(self) -> Staged:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._folder.remove()


def save(model: Model, path: str | Path, external: str = AUTO) -> None:
    """Write a model atomically; `external` says where its external data goes (see `OptimizeOptions`). Raises
    WriteError; the destination is then as it was."""
    if not isinstance(model, Model):
        raise UsageError(f"a Model is written, not a {type(model).__name__}", "onnx.save writes a ModelProto")
    with Staged(Path(path)) as staged:
        staged.write(model, external)
        staged.commit()


def refuse_overwriting_input(source: Path, destination: Path, model: Model | None = None) -> None:
    """Raises WriteError when writing `destination` would destroy `source` or its data files, however they are called:
    by links, or otherwise spelled. `model`: what `source` holds, if it has been read."""
    if not source.exists():
        return
    place = Path(os.path.realpath(destination))
    if _same(source, place):
        raise WriteError(f"{destination} is the input itself", "write to another name, the original stays untouched")
    called, read = place.name, Path(os.path.realpath(source))

    def is_ours(name: str) -> bool:
        return name == f"{called}.data" or is_data_of(called, name)

    if stands_alone(source) and not (read.parent == place.parent and is_ours(read.name)):
        return  # as most of many small models, which lie in one folder
    ours = [name for name in listed(place.parent) if is_ours(name)]
    if any(_same(source, place.parent / name) for name in ours):
        raise WriteError(f"the input is called as data of {destination} is", "write to another name or folder")
    replaced = [(place, str(destination)), *((place.parent / name, name) for name in ours)]
    replaced = [(file, called) for file, called in replaced if file.exists()]
    if not replaced:
        return
    from onnxopt.io.load import read_proto

    folder = source.absolute().parent
    named = data_files(external_tensors(read_proto(source, weights=False))) if model is None else model.data_files
    for name in named:
        for file, called in replaced:
            if "\0" not in name and _same(folder / name, file):
                raise WriteError(
                    f"{called} is a data file of the input",
                    "write to another name or folder, the original stays untouched",
                )


def _is_special(place: Path) -> bool:
    """Is it a device or a pipe, to be written to and never replaced?"""
    try:
        mode = place.stat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def _opened(place: Path) -> int:
    """A descriptor to write to a device or a pipe. Raises WriteError where nobody reads the pipe, nor begins to."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            found = os.open(place, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError as e:
            if e.errno != errno.ENXIO or not place.is_fifo():
                raise
            if time.monotonic() > end:
                raise WriteError(f"{place} is a pipe that nobody reads", "start who reads it first") from None
            time.sleep(_PAUSE)
        else:
            if sys.platform != "win32":  # which opens it blocking
                os.set_blocking(found, True)
            return found


def _same(a: Path, b: Path) -> bool:
    if os.path.realpath(a) == os.path.realpath(b):
        return True
    try:
        return os.path.samefile(a, b)
    except OSError:
        return False


@contextmanager
def _explained(destination: Path) -> Iterator[None]:
    try:
        yield
    except OnnxOptError:
        raise
    except OSError as e:
        if e.errno == errno.ENOSPC:
            hint = "the disk is full; nothing was written"
        elif e.errno == errno.ENOENT:
            hint = "create the folder first"
        else:
            hint = "check that the folder exists and can be written"
        raise unwritable(destination, e, hint) from None
    except ValueError as e:  # protobuf's own limit: the size plan was wrong
        raise ModelError(f"{destination}: {e}", "the model is larger than protobuf allows") from None


__all__ = ["Staged", "refuse_overwriting_input", "save"]
