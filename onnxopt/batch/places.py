"""Places of models and results: paths and URLs, destinations of a batch, folders of unfinished files."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from onnxopt.batch import Job
from onnxopt.errors import ModelError, UsageError, WriteError, listed, plain, unwritable
from onnxopt.io.external import data_files, external_tensors
from onnxopt.io.load import named_files, read_proto
from onnxopt.io.staging import MANY, StagingFolder, alone_in, clear, is_data_of
from onnxopt.proto.external import ExternalData, file_of
from onnxopt.proto.wire import stands_alone


def is_url(place: str) -> bool:
    """Return whether a place is a URL: `s3://bucket/model.onnx`, `file:///models/model.onnx`."""
    return "://" in place


def fetch(place: str, folder: Path) -> Path:
    """Copy the model at a URL with its data files into `folder`, and return its path. Raises ModelError."""
    local = folder / (os.path.basename(place) or "model.onnx")
    system, path = _open(place)
    try:
        system.get_file(path, str(local))
    except (OSError, ValueError) as e:
        raise ModelError(f"{place}: {e or type(e).__name__}", "check the URL") from None
    tensors = external_tensors(read_proto(local, weights=False))
    data = ExternalData(folder, place)
    for tensor in tensors:
        data.place(tensor.name, file_of(tensor))  # which refuses files outside of the folder
    for name in (name for name in data_files(tensors) if name != local.name):
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


# -- destinations ---------------------------------------------------------------------------------------------------


def destinations(sources: Sequence[str], folder: str) -> list[str]:
    """Return a file in `folder` (path or URL) for each source, keeping distinguishing parent folders.

    `a/x.onnx b/x.onnx` become `folder/a/x.onnx folder/b/x.onnx`; models of the same folder lie side by side. Raises
    UsageError if a result would replace a source, or two results have the same place.
    """
    if not is_url(folder) and os.path.exists(folder) and not os.path.isdir(folder):
        raise UsageError(f"{folder} is a file", "name a folder")
    plain = ["/" + s.split("://", 1)[1].lstrip("/") if is_url(s) else os.path.abspath(s) for s in sources]
    common = os.path.commonpath([os.path.dirname(p) for p in plain])
    names = [os.path.relpath(p, common) for p in plain]
    places = [f"{folder.rstrip('/')}/{n}" if is_url(folder) else str(Path(folder) / n) for n in names]
    if len(set(places)) < len(places):
        twice = next(p for p in places if places.count(p) > 1)
        raise UsageError(f"{twice} would be written twice", "name each model once")
    _refuse_replacing(sources, places)
    return places


def _refuse_replacing(sources: Sequence[str], places: Sequence[str]) -> None:
    """Raise UsageError if a result would replace a model of the batch."""
    read = {os.path.realpath(source): source for source in sources if not is_url(source)}
    for source, place in zip(sources, places):
        taken = None if is_url(place) else read.get(os.path.realpath(place))
        if taken == source:
            raise UsageError(f"{place} is the input itself", "name another folder, or use --in-place")
        if taken is not None:
            raise UsageError(
                f"{place}, the result of {source}, is one of the models", "name another folder, or leave that model out"
            )


def refuse_shared(pairs: Sequence[tuple[str, str]]) -> None:
    """Raise UsageError if a result would replace a further model of the batch, or a data file of a further model.

    pairs: source and destination of each job.
    """
    local = [(source, place) for source, place in pairs if not (is_url(source) or is_url(place))]
    if len(local) < 2:
        return
    owners: dict[str, dict[str, str]] = {}  # {file: {model that reads it: description}}
    for source, _ in local:
        owners.setdefault(os.path.realpath(source), {})[source] = "one of the models"
        for file in _data_of(Path(source)):
            owners.setdefault(os.path.realpath(file), {}).setdefault(source, f"a data file of {source}")
    for source, place in local:
        for replaced in _replaced(os.path.realpath(place)):
            others = (what for owner, what in owners.get(os.path.realpath(replaced), {}).items() if owner != source)
            if what := next(others, ""):
                called = place if replaced == os.path.realpath(place) else replaced
                hint = "nothing was written; --out-dir DIR writes the results into another folder"
                raise UsageError(f"{called}, which the result of {source} replaces, is {what}", hint)


def _replaced(place: str) -> Iterator[str]:
    """Yield the files replaced or removed with a model: itself and its own data files."""
    folder, name = os.path.split(place)
    yield place
    yield from (os.path.join(folder, other) for other in listed(Path(folder)) if is_data_of(name, other))


def _data_of(model: Path) -> Iterator[Path]:
    """Yield the data files of a model; none for an invalid model, reported when run."""
    if not model.is_file() or stands_alone(model):
        return
    with suppress(ModelError):
        yield from (model.absolute().parent / name for name in named_files(model) if "\0" not in name)


# -- folders for unfinished files, removed by the next process if their process was killed --------------------------


def staging(job: Job) -> StagingFolder:
    """Return a folder for the result on the destination's file system. Raises WriteError."""
    place = _place(job)
    try:
        place.mkdir(parents=True, exist_ok=True)
        return StagingFolder(place, MANY, os.path.basename(os.path.realpath(job.destination)))
    except OSError as e:
        raise unwritable(job.destination, e, "name a folder that can be written") from None


def fetching() -> StagingFolder:
    """Return a folder for a downloaded model."""
    return StagingFolder(Path(tempfile.gettempdir()), MANY)


def clear_staging(job: Job) -> None:
    """Remove files staged for a job by a killed process."""
    for place in {_place(job), Path(tempfile.gettempdir())}:
        with alone_in(place):
            clear(place, MANY)


def _place(job: Job) -> Path:
    """Return the destination's folder; a temporary folder for URLs and checks."""
    if job.check or is_url(job.destination):
        return Path(tempfile.gettempdir())
    return Path(os.path.realpath(job.destination)).parent


# -- finished results, moved into place: all files, the model last, never partially visible -------------------------


def files_of(model: Path) -> Iterator[Path]:
    """Yield the files of a result in a folder of its own: data, then the model."""
    beside = (model.parent / name for name in listed(model.parent) if is_data_of(model.name, name))
    yield from (*sorted(beside), model)


def same_files(model: Path, target: Path) -> bool:
    """Return whether all files of a result are already in place. The model is compared first."""
    return all(
        place.is_file() and file_digest(place) == file_digest(file)
        for file in reversed([*files_of(model)])
        for real in [Path(os.path.realpath(target))]
        for place in [real if file == model else real.parent / file.name]
    )


def keep_original(original: Path, backup: Path) -> None:
    """Copy a file to a backup, unless the name is taken: a second run must not replace the original. Raises OSError."""
    if backup.exists():
        return
    with tempfile.TemporaryDirectory(prefix=".onnxopt.", suffix=".tmp", dir=backup.parent) as folder:
        copy = Path(folder) / backup.name
        shutil.copy2(original, copy)
        os.replace(copy, backup)  # an interrupted copy must not be mistaken for the original


def file_digest(path: Path) -> str:
    """Return the SHA-256 digest of a file, hexadecimal. Raises OSError."""
    with open(path, "rb", opener=plain) as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
