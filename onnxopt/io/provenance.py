"""Provenance in a model's metadata, on request: onnxopt's version, pipeline and source."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from onnxopt.errors import plain, unreadable
from onnxopt.graph.model import Model

_PREFIX: Final = "onnxopt."


def write_provenance(model: Model, source: Path, pipeline: str) -> None:
    """Set `onnxopt.version`, `onnxopt.pipeline` and `onnxopt.source_sha256` in the model's metadata_props.

    The hash covers the file `source` without external data. An unchanged model keeps existing entries. Raises
    ModelError if the source no longer exists.
    """
    import hashlib  # OpenSSL takes its time to load

    from onnxopt import __version__

    given = model.proto.metadata_props
    has = any(p.key.startswith(_PREFIX) for p in given)
    if has and not model.version:
        return
    try:
        with open(source, "rb", opener=plain) as f:
            digest = hashlib.file_digest(f, "sha256").hexdigest()
    except OSError as e:
        raise unreadable(source, e) from None
    kept = [p for p in given if not p.key.startswith(_PREFIX)]
    del given[:]
    given.extend(kept)
    for key, value in (("version", __version__), ("pipeline", pipeline), ("source_sha256", digest)):
        given.add(key=_PREFIX + key, value=value)
    model.version += 1
