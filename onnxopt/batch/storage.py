"""Models by URL, read and written through fsspec."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnxopt.errors import ModelError, UsageError, WriteError


def is_url(place: str) -> bool:
    """Return whether a place is a URL: `s3://bucket/model.onnx`, `file:///models/model.onnx`."""
    return "://" in place


def fetch(place: str, folder: Path) -> Path:
    """Copy the model at a URL with its data files into `folder`, and return its path. Raises ModelError."""
    from onnxopt.io.external import ExternalData, data_files, external_tensors
    from onnxopt.io.load import read_proto

    local = folder / (os.path.basename(place) or "model.onnx")
    system, path = _open(place)
    try:
        system.get_file(path, str(local))
    except (OSError, ValueError) as e:
        raise ModelError(f"{place}: {e or type(e).__name__}", "check the URL") from None
    tensors = external_tensors(read_proto(local, weights=False))
    ExternalData(folder, place).refuse_elsewhere(tensors)
    for name in sorted({*data_files(tensors)} - {local.name}):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            system.get_file(f"{path.rsplit('/', 1)[0]}/{name}", str(folder / name))
        except (OSError, ValueError) as e:
            raise ModelError(f"{place}: its data file {name}: {e or type(e).__name__}", "keep it beside it") from None
    return local


def store(model: Path, files: Sequence[Path], place: str) -> None:
    """Copy `files`, with `model` last, to the URL `place` and beside it. Raises WriteError."""
    try:
        system, path = _open(place)
        folder = path.rsplit("/", 1)[0]
        for file in files:
            target = path if file == model else f"{folder}/{file.relative_to(model.parent).as_posix()}"
            system.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
            part = f"{target}.part"  # partial files have a different name
            system.put_file(str(file), part)
            system.mv(part, target)
    except (OSError, ValueError) as e:
        raise WriteError(f"cannot write {place}: {e or type(e).__name__}", "check the URL") from None


def _open(place: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise UsageError(f"{place}: URLs need fsspec", "pip install 'onnxopt[dask]'") from None
    try:
        system, path = url_to_fs(place)
    except (ImportError, ValueError) as e:  # a protocol of a missing package, or an unknown protocol
        raise UsageError(f"{place}: {' '.join(str(e).split())}", "install what fsspec asks for") from None
    return system, str(path)
