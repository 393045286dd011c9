"""Write a Model: size planned before writing, staged beside the destination, renamed into place at the end."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from onnx import ModelProto, TensorProto

from onnxopt.errors import ModelError, OnnxOptError, WriteError
from onnxopt.graph.model import Model
from onnxopt.graph.writer import write_deferred, write_model
from onnxopt.io.external import ExternalData, all_tensors, data_of, external_tensors, location
from onnxopt.io.splice import write_spliced
from onnxopt.protos import is_external, tensor_bytes

INLINE_LIMIT = 1_900_000_000  # protobuf ends at 2 GiB; the rest is room for names and attributes
_SPLICED = 1 << 16  # new weights from here on go into the file without a copy in the proto
_SMALL = 1024  # tensors below this stay inline beside external data
_PAGE = 4096


class Staged:
    """The written files, not yet at their destination. `commit` renames them, leaving the block discards them.

    The staging folder lies beside the destination (same file system) and the files in it already have their final
    names, so that the staged model can be opened and verified as it will be.
    """

    def __init__(self, destination: Path) -> None:
        self.asked = destination  # as the user calls it
        self.destination = Path(os.path.realpath(destination))
        if self.destination.is_dir():
            raise WriteError(f"{destination} is a directory", "name the file to write")
        with _explained(destination):
            self.folder = Path(
                tempfile.mkdtemp(prefix=f".{self.destination.name}.", suffix=".tmp", dir=self.destination.parent)
            )

    @property
    def path(self) -> Path:
        return self.folder / self.destination.name

    def write(self, model: Model) -> None:
        """Write `model` into the staging folder. Raises WriteError (disk full, …), ModelError (bad external data)."""
        with _explained(self.asked):
            if model.version == 0 and model.path is not None:
                self._copy(model, model.path)
            else:
                self._write_changed(model)

    def write_bytes(self, data: bytes) -> None:
        """Write what is not a model, such as a report. Raises WriteError."""
        with _explained(self.asked):
            self.path.write_bytes(data)

    def _copy(self, model: Model, source: Path) -> None:
        """Nothing changed, so nothing is encoded again: the same bytes, whoever wrote them and however."""
        tensors = external_tensors(model.proto)
        data = ExternalData(source.absolute().parent, source.name)
        shutil.copyfile(source, self.path)
        for file in {location(t).file for t in tensors}:
            target = self.folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(data.path("", file), target) if self._same_folder(source) else shutil.copyfile(
                data.path("", file), target
            )

    def _same_folder(self, source: Path) -> bool:
        return source.resolve().parent == self.destination.parent

    def _write_changed(self, model: Model) -> None:
        proto, deferred = write_deferred(model, _SPLICED)
        tensors = list(all_tensors(proto))
        external = any(is_external(t) for t in tensors)
        if external or sum(tensor_bytes(t.data_type, t.dims) for t in tensors) > INLINE_LIMIT:
            self._write_external(model, write_model(model), tensors)
        elif deferred:
            with open(self.path, "wb") as f:
                write_spliced(f, proto.SerializeToString(), deferred)
        else:
            self.path.write_bytes(proto.SerializeToString())

    def _write_external(self, model: Model, proto: ModelProto, tensors: list[TensorProto]) -> None:
        source = data_of(model)
        name = self.destination.name + ".data"
        before: list[tuple[TensorProto, TensorProto]] = []
        try:
            with open(self.folder / name, "wb") as f:
                for tensor in tensors:
                    size = tensor_bytes(tensor.data_type, tensor.dims)
                    stays = not is_external(tensor) and (size < _SMALL or not tensor.HasField("raw_data"))
                    if stays:
                        continue
                    old = TensorProto()
                    old.CopyFrom(tensor)
                    before.append((tensor, old))
                    data = source.bytes_of(tensor) if is_external(tensor) else tensor.raw_data
                    padding = -f.tell() % (_PAGE if size >= 1 << 20 else 64)
                    f.write(b"\0" * padding)
                    offset = f.tell()
                    f.write(data)
                    tensor.ClearField("raw_data")
                    _set_location(tensor, name, offset, len(data))
            self.path.write_bytes(proto.SerializeToString())
        finally:
            for tensor, old in before:  # the model in memory goes on reading where it read
                tensor.CopyFrom(old)

    def commit(self) -> None:
        """Rename the staged files into place, the model last."""
        with _explained(self.asked):
            for file in sorted(self.folder.rglob("*"), key=lambda p: p == self.path):
                if file.is_dir() or file.is_symlink():
                    continue
                target = self.destination.parent / file.relative_to(self.folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                if target.exists():
                    shutil.copymode(target, file)
                os.replace(file, target)

    def __enter__(self) -> Staged:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def save(model: Model, path: str | Path) -> None:
    """Write a model atomically. Raises WriteError; the destination is then as it was."""
    with Staged(Path(path)) as staged:
        staged.write(model)
        staged.commit()


def refuse_overwriting_input(source: Path, destination: Path, proto: ModelProto | None = None) -> None:
    """Raises WriteError when writing `destination` would destroy `source` or its data files. `proto`: what `source`
    holds, if it has been read."""
    if not source.exists():
        return
    place = os.path.realpath(destination)
    if os.path.realpath(source) == place:
        raise WriteError(f"{destination} is the input itself", "write to another name, the original stays untouched")
    replaced = {os.path.realpath(place + end): f"{destination}{end}" for end in ("", ".data")}
    if any(os.path.exists(file) for file in replaced):
        from onnxopt.io.load import read_proto

        folder = source.absolute().parent
        for tensor in external_tensors(read_proto(source) if proto is None else proto):
            file = replaced.get(os.path.realpath(folder / location(tensor).file))
            if file is not None:
                raise WriteError(
                    f"{file} is a data file of the input",
                    "write to another name or folder, the original stays untouched",
                )


def _set_location(tensor: TensorProto, file: str, offset: int, length: int) -> None:
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", file), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


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
        raise WriteError(f"cannot write {destination}: {e.strerror or e}", hint) from None
    except ValueError as e:  # protobuf's own limit: the size plan was wrong
        raise ModelError(f"{destination}: {e}", "the model is larger than protobuf allows") from None


__all__ = ["Staged", "refuse_overwriting_input", "save"]
