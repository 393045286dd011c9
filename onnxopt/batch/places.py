"""Destinations of a batch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from onnxopt.batch.storage import is_url
from onnxopt.errors import ModelError, UsageError
from onnxopt.io.external import data_files, external_tensors
from onnxopt.io.load import read_proto
from onnxopt.io.placing import is_data_of, listed
from onnxopt.proto.wire import stands_alone


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
    read = {os.path.realpath(source): source for source in sources if not is_url(source)}
    for source, place in zip(sources, places):
        taken = None if is_url(place) else read.get(os.path.realpath(place))
        if taken == source:
            raise UsageError(f"{place} is the input itself", "name another folder, or use --in-place")
        if taken is not None:
            raise UsageError(
                f"{place}, the result of {source}, is one of the models", "name another folder, or leave that model out"
            )
    return places


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
        names = data_files(external_tensors(read_proto(model, weights=False)))
        yield from (model.absolute().parent / name for name in names if "\0" not in name)
