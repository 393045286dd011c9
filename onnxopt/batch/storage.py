"""Models by path or by URL: what fsspec can open, a job can read and write."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onnxopt.errors import ModelError, UsageError, WriteError


def is_url(place: str) -> bool:
    """`s3://bucket/model.onnx`, `file:///models/model.onnx`; not a path."""
    return "://" in place


@contextmanager
def fetched(place: str) -> Iterator[Path]:
    """A local file with the model at `place`; a copy, gone afterwards, if that is a URL. Raises ModelError."""
    if not is_url(place):
        yield Path(place)
        return
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / (os.path.basename(place) or "model.onnx")
        try:
            system, path = _open(place)
            system.get_file(path, str(local))
        except (OSError, ValueError) as e:
            raise ModelError(f"{place}: {e or type(e).__name__}", "check the URL") from None
        yield local


def stored(local: Path, place: str) -> None:
    """Bring the files beside `local`, and it last, to the URL `place`. Raises WriteError."""
    try:
        system, path = _open(place)
        folder = path.rsplit("/", 1)[0]
        system.makedirs(folder, exist_ok=True)
        for file in sorted(local.parent.iterdir(), key=lambda p: p == local):
            target = path if file == local else f"{folder}/{file.name}"
            part = f"{target}.part"  # what is half there is never under its name
            system.put_file(str(file), part)
            system.mv(part, target)
    except (OSError, ValueError) as e:
        raise WriteError(f"cannot write {place}: {e or type(e).__name__}", "check the URL") from None


def _open(place: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise UsageError(f"{place}: URLs need fsspec", "pip install 'onnxopt[dask]'") from None
    system, path = url_to_fs(place)
    return system, str(path)
