"""`-` as a model: its bytes on stdin or stdout."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onnxopt.errors import ModelError, UsageError


def is_stream(place: str) -> bool:
    return place == "-"


@contextmanager
def streams(source: str, destination: str) -> Iterator[tuple[Path, Path]]:
    """Files for a source and a destination of which one or both are `-`. The result goes to stdout when the block is
    left without an error; what has external data beside it does not. Raises ModelError and UsageError."""
    with tempfile.TemporaryDirectory(prefix="onnxopt.") as folder:
        given, made = Path(source), Path(destination)
        if is_stream(source):
            if sys.stdin.isatty():
                raise UsageError(
                    "a model is read from stdin, and nothing is there", "cat model.onnx | onnxopt optimize - -"
                )
            given = Path(folder) / "stdin.onnx"
            given.write_bytes(sys.stdin.buffer.read())
        if is_stream(destination):
            if sys.stdout.isatty():
                raise UsageError("a model would be written to the terminal", "onnxopt optimize model.onnx - > out.onnx")
            made = Path(folder) / "out" / "stdout.onnx"
            made.parent.mkdir()
        yield given, made
        if is_stream(destination) and made.exists():
            if len(list(made.parent.iterdir())) > 1:
                raise ModelError("the result has external data, which stdout does not take", "name a file as OUT")
            sys.stdout.flush()
            with open(made, "rb") as f:
                while block := f.read(1 << 20):
                    os.write(sys.stdout.fileno(), block)
