"""Read an ONNX file into a Model, or say in one line why it cannot be."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError
from onnx import ModelProto

from onnxopt.errors import ModelError, file_path, plain, refuse_pipe, unreadable
from onnxopt.graph.model import Model
from onnxopt.graph.reader import read_model
from onnxopt.io.external import ExternalData, bring_in_small, data_files, external_tensors, inline_data
from onnxopt.wire import MappedFile, Stored, skim

Places: TypeAlias = dict[int, tuple[int, int]]  # (start, length) by the initializer's index
# A proto; whether it stands alone (see `Model`); the places of weights that stayed in the file.
Read: TypeAlias = "tuple[ModelProto, bool, Places, MappedFile | None]"

_WORTH: Final = 1 << 20  # bytes of a file
_LARGE: Final = 1 << 14  # bytes of a weight: shapes and axes, which many ask for, are smaller
_FIELD: Final = 512  # bytes of a field on average, nodes and initializers
_LOCATION: Final = b"location"  # the key by which a tensor names its file


def load(
    path: str | Path,
    *,
    freeze_initializers: bool = False,
    inline_functions: bool = False,
    convert: Callable[[ModelProto, Path], bool] | None = None,
    stored: bool = False,
) -> Model:
    """Load a model. External data stays on disk until somebody reads it.

    `freeze_initializers`: see `read_model`. `inline_functions` puts the bodies of model-local functions in place of
    their calls. `convert`: changes the proto before it is indexed, and says whether it did. `stored`: large weights
    stay in the file, too, unless functions are put in place; they are no part of the proto until it is written.
    External tensors that belong inside (see `belongs_inside`) are brought in.
    Raises ModelError for a missing, empty, truncated or non-ONNX file, and for a model whose names do not resolve.
    """
    path = file_path(path)
    proto, stands_alone, places, file = _read(path, stored)
    data = ExternalData(path.absolute().parent, path.name)
    outside = [] if stands_alone else external_tensors(proto)
    files, brought_in = data_files(outside), bring_in_small(outside, data)
    changed = inline_functions and len(proto.functions) > 0
    if changed:
        from onnxopt.io.inlining import inlined

        if places:  # weights that stayed in the file
            proto = read_proto(path)
            bring_in_small(external_tensors(proto), data)
        proto, places, file = inlined(proto, path), {}, None
    if convert is not None:
        changed = convert(proto, path) or changed
    model = read_model(proto, path, freeze_initializers=freeze_initializers)
    model.version += changed or brought_in > 0  # it is not the file any more
    model.file, model.stands_alone = file, stands_alone
    model.data_files, model.brought_in = files, brought_in
    for i, place in places.items():
        model.graph.initializers[proto.graph.initializer[i].name].stored = Stored(path, *place)
    model.read_external = data.decode
    return model


def from_proto(proto: ModelProto, *, freeze_initializers: bool = False) -> Model:
    """A Model over a copy of `proto`; the caller's message is not changed."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    return read_model(copy, freeze_initializers=freeze_initializers)


def read_proto(path: Path, *, weights: bool = True) -> ModelProto:
    """The ModelProto in a file, with external data left where it is. `weights`: with the data of large ones in it."""
    return _read(path, stored=not weights)[0]


def load_whole(path: Path) -> ModelProto:
    """The ModelProto in a file with all its weights, those of data files too."""
    proto = read_proto(path)
    inline_data(proto, ExternalData(path.absolute().parent, path.name))
    return proto


def _read(path: Path, stored: bool) -> Read:
    """`stored`: large weights stay in the file, which is mapped."""
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
    """None of what has no large weights, or so many fields that looking through them takes longer than copying. Nor on
    Windows: nobody could put another file in the place of this one, which is mapped as long as the graph lives."""
    if sys.platform == "win32" or not path.is_file() or path.stat().st_size < _WORTH:
        return None
    try:
        file = MappedFile(path)
        light, places = skim(file.view, _LARGE, len(file.view) // _FIELD)
        return (ModelProto.FromString(light), _LOCATION not in light, places, file) if places else None
    except (OSError, ValueError, DecodeError):  # said of the whole, unless it can be read otherwise
        return None


def _parse(path: Path) -> Read:
    """Parse straight from the file's pages: reading it first would copy every weight once more."""
    with open(path, "rb", opener=plain) as f:
        if os.fstat(f.fileno()).st_size == 0:
            raise ModelError(f"{path} is empty", "the export or the download did not finish")
        try:
            mapped = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # a file system without pages
            return ModelProto.FromString(f.read()), False, {}, None
        with mapped, memoryview(mapped) as view:
            proto = ModelProto.FromString(view)
            # Where tensors are small that is sooner asked of all bytes than of each tensor.
            is_fine = len(view) < _FIELD * (len(proto.graph.node) + len(proto.graph.initializer))
            return proto, is_fine and mapped.find(_LOCATION) < 0, {}, None
