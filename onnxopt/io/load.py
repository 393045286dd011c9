"""Reads an ONNX file into a Model, with errors of a single line; attributes later errors to the file or its changes."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError, Message
from onnx import ModelProto

from onnxopt.errors import (
    InvariantError,
    ModelError,
    OnnxOptError,
    PassError,
    file_path,
    is_starved,
    plain,
    refuse_pipe,
    unreadable,
)
from onnxopt.graph.model import Model
from onnxopt.graph.reader import read_model
from onnxopt.io.external import bring_in_small, data_files, data_of, external_tensors, inline_data
from onnxopt.proto.external import ExternalData
from onnxopt.proto.wire import FileState, MappedFile, Stored, skim, state_of

Places: TypeAlias = dict[int, tuple[int, int]]  # (start, length) by index of the initializer
# (proto, stands alone (see `Model`), weights left in the file, mapped file).
Read: TypeAlias = "tuple[ModelProto, bool, Places, MappedFile | None]"

_WORTH: Final = 1 << 20  # bytes of a file
_MIN_LAZY_BYTES: Final = 1 << 14  # bytes of a weight; shapes and axes, often queried, are smaller
_FIELD: Final = 512  # minimum average bytes of nodes and initializers
_LOCATION: Final = b"location"  # the key of an external tensor's file name
_CHANGED_HINT: Final = "nothing is written: run it again when it stays as it is"


def load(
    path: str | Path,
    *,
    freeze_initializers: bool = False,
    inline_functions: bool = False,
    convert: Callable[[ModelProto, Path], bool] | None = None,
    stored: bool = False,
) -> Model:
    """Load a model. External data stays on disk until read.

    `freeze_initializers`: see `read_model`. `inline_functions` inlines calls of model-local functions. `convert` may
    change the proto before indexing, and returns whether it did. `stored`: large weights stay in the file, outside the
    proto until it is written, unless functions are inlined.

    Small external tensors (see `belongs_inside`) are moved into the model. Raises ModelError for a missing, empty,
    truncated or non-ONNX file, and for unresolved names.
    """
    path = file_path(path)
    proto, stands_alone, places, file = _read(path, stored)
    data = ExternalData(path.absolute().parent, path.name)
    outside = [] if stands_alone else external_tensors(proto)
    files, brought_in = data_files(outside), bring_in_small(outside, data)
    changed = inline_functions and len(proto.functions) > 0
    if changed:
        from onnxopt.proto.functions import inlined

        if places:  # weights left in the file
            proto = read_proto(path)
            bring_in_small(external_tensors(proto), data)
        proto, places, file = inlined(proto, path), {}, None
    if convert is not None:
        changed = convert(proto, path) or changed
    model = read_model(proto, path, freeze_initializers=freeze_initializers)
    model.version += changed or brought_in > 0  # differs from the file
    model.file, model.stands_alone = file, stands_alone
    model.data_files, model.brought_in = files, brought_in
    for i, place in places.items():
        model.graph.initializers[proto.graph.initializer[i].name].stored = Stored(path, *place)
    model.read_external = data.decode
    return model


def from_proto(proto: ModelProto, *, freeze_initializers: bool = False) -> Model:
    """Return a Model over a copy of `proto`; the caller's message is not changed."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    return read_model(copy, freeze_initializers=freeze_initializers)


def read_proto(path: Path, *, weights: bool = True) -> ModelProto:
    """Return the ModelProto of a file, with external data left on disk. `weights`: include large weights."""
    return _read(path, stored=not weights)[0]


def named_files(path: Path) -> list[str]:
    """Return the sorted names of the data files that the model in a file names."""
    return data_files(external_tensors(read_proto(path, weights=False)))


def load_whole(path: Path) -> ModelProto:
    """Return the ModelProto of a file with all its weights, external data included."""
    proto = read_proto(path)
    inline_data(proto, ExternalData(path.absolute().parent, path.name))
    return proto


def _read(path: Path, stored: bool) -> Read:
    """Read a file; `stored`: leave large weights in the (mapped) file."""
    refuse_pipe(path)
    try:
        found = (_skimmed(path) if stored else None) or _parse(path)
    except (OSError, DecodeError) as e:
        raise unreadable(path, e) from None
    proto = found[0]
    if not proto.HasField("graph") or not (proto.ir_version or proto.opset_import):
        raise ModelError(
            f"{path} is a protobuf, but not an ONNX model",
            "a ModelProto has a graph and an IR version; was this a tensor (.pb) or another format?",
        )
    return found


def _skimmed(path: Path) -> Read | None:
    """Return the model without large weights; None if the file has none, or too many fields to scan.

    Not on Windows: a mapped file could not be replaced while the graph exists.
    """
    if sys.platform == "win32" or not path.is_file() or path.stat().st_size < _WORTH:
        return None
    try:
        file = MappedFile(path)
        light, places = skim(file.view, _MIN_LAZY_BYTES, len(file.view) // _FIELD)
        return (ModelProto.FromString(light), _LOCATION not in light, places, file) if places else None
    except (OSError, ValueError, DecodeError):  # errors are raised by the full parse, unless it succeeds
        return None


def _parse(path: Path) -> Read:
    """Parse the mapped file: reading it first would copy every weight once more."""
    with open(path, "rb", opener=plain) as f:
        if os.fstat(f.fileno()).st_size == 0:
            raise ModelError(f"{path} is empty", "the export or the download did not finish")
        try:
            mapped = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # a file system without mmap
            return ModelProto.FromString(f.read()), False, {}, None
        with mapped, memoryview(mapped) as view:
            proto = ModelProto.FromString(view)
            # For small tensors a search of all bytes is faster than a query of each tensor.
            is_fine = len(view) < _FIELD * (len(proto.graph.node) + len(proto.graph.initializer))
            return proto, is_fine and mapped.find(_LOCATION) < 0, {}, None


class Watch:
    """Recorded state of files, to detect changes while they are read: a result would mix old and new contents.

    A removed file counts as read completely.
    """

    def __init__(self, *files: Path, seen: FileState = None) -> None:
        """Record the states of files. `seen`: an earlier state of the first, if it is read since."""
        self._seen = {file: state_of(file) for file in files}
        if seen is not None:
            self._seen[files[0]] = seen

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
        now = ((file, before, state_of(file)) for file, before in self._seen.items())
        return next((file for file, before, after in now if after is not None and after != before), None)

    def refuse(self) -> None:
        """Raise ModelError for a changed file."""
        if (file := self.changed) is not None:
            raise ModelError(f"{file} was changed while it was read", _CHANGED_HINT)

    def refuse_removed(self) -> None:
        """Raise ModelError for a removed file."""
        for file, before in self._seen.items():
            if before is not None and state_of(file) is None:
                raise ModelError(f"{file} was removed while it was read", _CHANGED_HINT)


@contextmanager
def blaming(source: str | Path | ModelProto) -> Iterator[None]:
    """Context that raises ModelError instead of an internal error if onnx.checker rejects the model.

    Loading does not run the checker, which takes as long as optimizing and rejects models accepted by runtimes.
    """
    try:
        yield
    except (PassError, InvariantError) as e:
        _blame(source, e)
        raise
    except (OnnxOptError, OSError):
        raise
    except Exception as e:
        if not is_starved(e):
            _blame(source, e)
        raise


def _blame(source: str | Path | ModelProto, error: Exception) -> None:
    objection = _objection(source)
    if objection:
        name = source.graph.name if isinstance(source, ModelProto) else source
        hint = "export it anew, or repair it; ONNXOPT_DEBUG=1 shows what it breaks here"
        raise ModelError(f"{name}: not a valid model: {objection}", hint) from error


def _objection(source: str | Path | ModelProto) -> str:
    """Return why onnx.checker (with shape inference) rejects a model, or which string is not UTF-8.

    Empty if the model is valid or the checker does not finish.
    """
    from onnxopt.worker.limits import Limits
    from onnxopt.worker.service import Declined, Sandbox

    proto = source if isinstance(source, ModelProto) else read_proto(Path(source))
    if garbled := _garbled(proto, "model"):
        return garbled
    try:
        with Sandbox(Limits()) as sandbox:
            return str(sandbox.call("objection", proto.SerializeToString()))
    except (Declined, ValueError):  # ValueError: beyond protobuf's limit
        return ""


def _garbled(message: Message, place: str) -> str:
    """Return the first string in a message that is not UTF-8 (returned as bytes by protobuf), or empty."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            for text in [value] if isinstance(value, (str, bytes)) else value:
                if isinstance(text, bytes):
                    return f"{place}: {field.name} {text!r} is not UTF-8"
        elif field.cpp_type == field.CPPTYPE_MESSAGE:
            for i, inner in enumerate([value] if isinstance(value, Message) else value):
                found = _garbled(inner, f"{place}.{field.name}[{i}]")
                if found:
                    return found
    return ""
