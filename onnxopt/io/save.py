"""Writes a Model: size planned first, staged beside the destination, renamed into place at the end."""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from google.protobuf.message import EncodeError
from onnx import GraphProto, ModelProto, TensorProto

from onnxopt.errors import ModelError, OnnxOptError, UsageError, WriteError, listed, plain, unreadable, unwritable
from onnxopt.graph.model import Model
from onnxopt.graph.writer import write_deferred
from onnxopt.io.external import copy_file, data_files, data_of, external_tensors
from onnxopt.io.layout import AUTO, INLINE_LIMIT, REUSE, Layout, check_choice, plan
from onnxopt.io.staging import StagingFolder, data_name, is_data_of, put_in_place, refuse_special
from onnxopt.proto.messages import fields, tensor_bytes
from onnxopt.proto.wire import stands_alone

_PATIENCE = 5.0  # seconds to wait for a reader of a pipe
_PAUSE = 0.05
_MAX_INLINE_BYTES = 1 << 10  # bytes; smaller tensors of a materialized model stay in the message
_ALIGNED = 1 << 12
_HINTS = {errno.ENOSPC: "the disk is full; nothing was written", errno.ENOENT: "create the folder first"}
_PREFIX = "onnxopt."  # of provenance in metadata
_SPLICED = 1 << 16  # bytes; larger new weights are spliced into the file without a copy in the proto


class Staged:
    """Staged output files. `commit` renames them to the destination; leaving the block without `commit` discards them.

    The staging folder is beside the destination (same file system), and its data file already has the final name: the
    staged model can be loaded and verified in its final form. `home`: the folder where the model will be read, if moved
    from `destination` later. A device or pipe is written by `commit`.
    """

    def __init__(self, destination: Path, home: Path | None = None) -> None:
        self.asked = destination  # as given by the user
        self.destination = Path(os.path.realpath(destination))
        self.home = self.destination.parent if home is None else home.resolve()
        with _explained(destination):
            self._special = _is_special(destination)
            if not self._special:
                refuse_special(destination)
            parent = Path(tempfile.gettempdir()) if self._special else self.destination.parent
            self._folder = StagingFolder(parent, self.destination.name)
        self._made = self._folder.path / self.destination.name
        self.path = self._made  # the model as readable now
        self.read: list[str] = []  # data files it reads, by name in `home`

    def write(self, model: Model, external: str = AUTO) -> None:
        """Stage `model`; `external` places its external data (see `plan`).

        Raises WriteError (disk full, …), ModelError (bad external data), UsageError.
        """
        check_choice(external)
        with _explained(self.asked):
            if not (model.version == 0 and model.path is not None and self._copy(model, model.path, external)):
                self._encode(model, external)

    def write_bytes(self, data: bytes) -> None:
        """Stage a file other than a model, such as a report. Raises WriteError."""
        with _explained(self.asked):
            self._made.write_bytes(data)

    @property
    def bytes(self) -> int:
        """Total size of the model and its data files, staged or not."""
        staged = self._data
        others = {self.home / name for name in self.read} - {self.home / file.name for file in staged}
        return sum(file.stat().st_size for file in (self._made, *staged, *others) if file.is_file())

    @property
    def _data(self) -> list[Path]:
        return [file for file in self._folder.files() if file.name != self.destination.name]

    def _copy(self, model: Model, source: Path, external: str) -> bool:
        """Copy the source file of an unchanged model byte by byte. Returns False if its external data must move."""
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
        self._write(layout, proto, name)

    def _write(self, layout: Layout, proto: ModelProto, name: str) -> None:
        """Write model and data. `name`: of the data file, or empty."""
        if layout.references:  # references outside the folder are not followed, so the model must be beside the data
            self.path = self._folder.file_in(self.home)
            if not name:
                self._made = self.path
        if name:
            layout.write_data(self._folder.path / name)
        layout.write_model(self._made, proto, name)
        if name and layout.references:
            if not self._folder.path.is_relative_to(self.home):
                what = "weights that do not fit into the file would lie elsewhere than the others"
                raise WriteError(what, "--external copy")
            layout.write_model(self.path, proto, f"{self._folder.path.relative_to(self.home).as_posix()}/{name}")

    def commit(self) -> None:
        """Rename the staged files into place, the model last, then remove replaced files."""
        with _explained(self.asked):
            if self._special:
                import shutil  # reads compression modules

                with open(self._made, "rb") as f, open(_opened(self.asked), "wb") as g:
                    shutil.copyfileobj(f, g)
            else:
                self._folder.let_go()
                put_in_place(self._made, self._data, self.destination, self._folder.intend)

    def __enter__(self) -> Staged:
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.remove()


def save(model: Model, path: str | Path, external: str = AUTO) -> None:
    """Write a model atomically; `external` places its external data (see `OptimizeOptions`).

    Raises WriteError; the destination is then unchanged.
    """
    if not isinstance(model, Model):
        raise UsageError(f"a Model is written, not a {type(model).__name__}", "onnx.save writes a ModelProto")
    with Staged(Path(path)) as staged:
        staged.write(model, external)
        staged.commit()


def refuse_overwriting_input(source: Path, destination: Path, model: Model | None = None) -> None:
    """Raise WriteError if writing `destination` would overwrite `source` or its data files, also through links.

    `model`: the contents of `source`, if already read.
    """
    if not source.exists():
        return
    place = Path(os.path.realpath(destination))
    if _same(source, place):
        raise WriteError(f"{destination} is the input itself", "write to another name, the original stays untouched")
    read = Path(os.path.realpath(source))
    if stands_alone(source) and not (read.parent == place.parent and _is_replaced(place.name, read.name)):
        return  # fast exit for many small models in the same folder
    replaced = {place.parent / name: name for name in listed(place.parent) if _is_replaced(place.name, name)}
    if any(_same(source, file) for file in replaced):
        raise WriteError(f"the input is called as data of {destination} is", "write to another name or folder")
    replaced[place] = str(destination)
    _refuse_overwriting_data(source, model, replaced)


def _refuse_overwriting_data(source: Path, model: Model | None, replaced: Mapping[Path, str]) -> None:
    """Raise WriteError if a replaced file is a data file of `source`. `replaced`: {file: name for the user}."""
    from onnxopt.io.load import named_files

    existing = [file for file in replaced if file.exists()]
    names = [] if not existing else named_files(source) if model is None else model.data_files
    folder = source.absolute().parent
    for file in existing:
        if any(_same(folder / name, file) for name in names if "\0" not in name):
            raise WriteError(
                f"{replaced[file]} is a data file of the input",
                "write to another name or folder, the original stays untouched",
            )


def _is_replaced(model: str, name: str) -> bool:
    """Whether writing the file `model` may replace `name` as its data file."""
    return name == f"{model}.data" or is_data_of(model, name)


def _is_special(place: Path) -> bool:
    """Whether the path is a device or pipe, to be written to and never replaced."""
    try:
        mode = place.stat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def _opened(place: Path) -> int:
    """Return a descriptor for writing to a device or pipe. Raises WriteError if the pipe has no reader in time."""
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
            if sys.platform != "win32":  # Windows opens it blocking
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
        hint = _HINTS.get(e.errno or 0, "check that the folder exists and can be written")
        raise unwritable(destination, e, hint) from None
    except ValueError as e:  # protobuf's limit: the planned size was wrong
        raise ModelError(f"{destination}: {e}", "the model is larger than protobuf allows") from None


def materialize(proto: ModelProto, path: Path) -> None:
    """Write `proto` to `path` for programs that read files, leaving the message unchanged.

    Above protobuf's limit the weights go into a data file beside `path`. Raises ModelError for external tensors: a
    ModelProto does not name their folder.
    """
    for tensor in external_tensors(proto):
        raise ModelError(
            f"{path.name}: the data of `{tensor.name}` are in a file, and a ModelProto does not say where",
            "give the path of the model, or a ModelProto with its weights, as onnx.load makes it",
        )
    weights = sum(tensor_bytes(t.data_type, t.dims) for t in proto.graph.initializer if t.HasField("raw_data"))
    message = proto if weights < INLINE_LIMIT else _light(proto, path)
    try:
        path.write_bytes(message.SerializeToString())
    except (EncodeError, ValueError):
        raise ModelError(f"{path.name} is larger than protobuf allows", "keep its weights in initializers") from None


def _light(proto: ModelProto, path: Path) -> ModelProto:
    """Return a copy with large initializers written to a data file. A full copy would double the memory of all
    weights."""
    graph = GraphProto(**fields(proto.graph, leave_out=("initializer",)))
    light = ModelProto(**fields(proto, leave_out=("graph",)), graph=graph)
    file = path.with_name(f"{path.name}.data")
    with open(file, "wb") as data:
        for tensor in proto.graph.initializer:
            raw = tensor.raw_data
            if len(raw) < _MAX_INLINE_BYTES:
                light.graph.initializer.append(tensor)
                continue
            copy = light.graph.initializer.add(**fields(tensor, leave_out=("raw_data",)))
            data.seek(-data.tell() % _ALIGNED, 1)
            copy.data_location = TensorProto.EXTERNAL
            for key, value in (("location", file.name), ("offset", data.tell()), ("length", len(raw))):
                copy.external_data.add(key=key, value=str(value))
            data.write(raw)
    return light


def write_provenance(model: Model, source: Path, pipeline: str) -> None:
    """Record how the model was made in its metadata_props: version of onnxopt, pipeline, SHA-256 of `source`.

    The hash covers the file without external data. An unchanged model keeps existing entries. Raises ModelError if the
    source no longer exists.
    """
    import hashlib  # OpenSSL takes its time to load

    from onnxopt import __version__

    given = model.proto.metadata_props
    has = any(p.key.startswith(_PREFIX) for p in given)
    if has and not model.version:
        return
    try:
        with open(source, "rb", opener=plain) as f:
            digest = hashlib.file_digest(f, "sha256").hexdigest()
    except OSError as e:
        raise unreadable(source, e) from None
    kept = [p for p in given if not p.key.startswith(_PREFIX)]
    del given[:]
    given.extend(kept)
    for key, value in (("version", __version__), ("pipeline", pipeline), ("source_sha256", digest)):
        given.add(key=_PREFIX + key, value=value)
    model.version += 1
