"""Where the results of many models go."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from onnxopt.batch.storage import is_url
from onnxopt.errors import UsageError


def destinations(sources: Sequence[str], folder: str) -> list[str]:
    """A file in `folder` (a path or URL) for each source, with what distinguishes their folders kept.

    `a/x.onnx b/x.onnx` become `folder/a/x.onnx folder/b/x.onnx`; models of one folder lie side by side. Raises
    UsageError where a result would replace a source, its own or another, or two have the same place.
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
