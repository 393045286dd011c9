"""Models in memory, as files that the optimizer and the judge read, in a folder that goes afterwards."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from onnxopt.errors import OnnxOptError, file_path

if TYPE_CHECKING:
    from onnx import ModelProto

    AnyModel: TypeAlias = "str | os.PathLike[str] | ModelProto"

IN_MEMORY = "ModelProto"  # how messages call a model without a file


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yields a folder that goes when the block is left. Errors that are raised in the block do not name the folder."""
    with tempfile.TemporaryDirectory(prefix="onnxopt.") as name:
        try:
            yield Path(name)
        except OnnxOptError as e:
            e.message = e.message.replace(f"{name}/out/", "").replace(f"{name}/", "")
            raise


@contextmanager
def model_file(model: AnyModel) -> Iterator[Path]:
    """Yields the path of a model: its own; of a ModelProto, which is not changed, one that goes when the block is left.

    Raises UsageError for what is neither.
    """
    from onnx import ModelProto

    if not isinstance(model, ModelProto):
        yield file_path(model)
        return
    from onnxopt.io.materialize import materialize

    with temporary_folder() as folder:
        materialize(model, folder / IN_MEMORY)
        yield folder / IN_MEMORY


def name_of(file: Path) -> str:
    """What users call a model that `model_file` gave a file."""
    return IN_MEMORY if file.name == IN_MEMORY else str(file)


@contextmanager
def input_files(given: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Yields a .npy file for each input's value: paths as they are, arrays in files that go when the block is left."""
    arrays = {name: value for name, value in given.items() if not isinstance(value, (str, os.PathLike))}
    files = {name: os.fspath(value) for name, value in given.items() if name not in arrays}
    if not arrays:
        yield files
        return
    import numpy as np

    with temporary_folder() as folder:
        for i, (name, array) in enumerate(arrays.items()):
            files[name] = str(folder / f"{i}.npy")
            np.save(files[name], np.asarray(array), allow_pickle=False)
        yield files
