"""Temporary files for models in memory, for the optimizer and the verifier."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from onnxopt.arguments import dict_in, kind
from onnxopt.errors import OnnxOptError, UsageError, file_path

if TYPE_CHECKING:
    from onnx import ModelProto

    AnyModel: TypeAlias = "str | os.PathLike[str] | ModelProto"

IN_MEMORY = "ModelProto"  # how messages call a model without a file


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yields a folder, removed at the end of the block; errors raised in the block do not name the folder."""
    with tempfile.TemporaryDirectory(prefix="onnxopt.") as name:
        try:
            yield Path(name)
        except OnnxOptError as e:
            e.message, e.hint = (text.replace(f"{name}{os.sep}", "") for text in (e.message, e.hint))
            raise


@contextmanager
def model_file(model: AnyModel) -> Iterator[Path]:
    """Yields the path of a model: the given path, or a temporary file of a ModelProto.

    Raises UsageError for other arguments.
    """
    from onnx import ModelProto

    if not isinstance(model, ModelProto):
        yield file_path(model)
        return
    from onnxopt.io.save import materialize

    with temporary_folder() as folder:
        materialize(model, folder / IN_MEMORY)
        yield folder / IN_MEMORY


def name_of(file: Path) -> str:
    """Returns the user's name for a model with a file from `model_file`."""
    return IN_MEMORY if file.name == IN_MEMORY else str(file)


@contextmanager
def input_files(given: Mapping[str, Any], setting: str) -> Iterator[dict[str, str]]:
    """Yields a .npy file for each input: given paths, or temporary files of arrays.

    Raises UsageError, naming `setting`, for other values.
    """
    given = dict_in(given, setting, "array")
    arrays = {name: value for name, value in given.items() if not isinstance(value, (str, os.PathLike))}
    files = {name: os.fspath(value) for name, value in given.items() if name not in arrays}
    if not arrays:
        yield files
        return
    import numpy as np

    with temporary_folder() as folder:
        for i, (name, value) in enumerate(arrays.items()):
            array = np.asarray(value)
            if array.dtype.hasobject and not all(isinstance(v, str) for v in array.flat):
                raise UsageError(
                    f"{setting}[{name!r}] is {kind(value)}, not an array",
                    "an array of numbers or text, or the path of a .npy file",
                )
            files[name] = str(folder / f"array {i + 1}")
            with open(files[name], "wb") as file:
                np.save(file, array.astype(str) if array.dtype.hasobject else array, allow_pickle=False)
        yield files
