"""`-` as a model: bytes on stdin or stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onnxopt.cli.closed import is_closed
from onnxopt.errors import ModelError, OnnxOptError, UsageError


def is_stream(place: str) -> bool:
    return place == "-"


@contextmanager
def streams(source: str, destination: str) -> Iterator[tuple[Path, Path]]:
    """Files for a source and a destination, of which either may be `-`.

    The result is written to stdout at the end of the block, unless an error was raised. A result with external data is
    refused. Raises ModelError and UsageError.
    """
    import tempfile

    with tempfile.TemporaryDirectory(prefix="onnxopt.") as folder:
        given, made = Path(source), Path(destination)
        if is_stream(source):
            given = Path(folder) / "stdin"
        if is_stream(destination):
            made = Path(folder) / "out" / "stdout"
            made.parent.mkdir()
        try:
            if is_stream(source):
                _read(given)
            if is_stream(destination) and is_closed("stdout"):
                raise UsageError(
                    "a model would be written to stdout, which is closed", "onnxopt optimize model.onnx OUT"
                )
            if is_stream(destination) and sys.stdout.isatty():
                raise UsageError("a model would be written to the terminal", "onnxopt optimize model.onnx - > out.onnx")
            yield given, made
            if is_stream(destination) and made.exists():
                _write(made)
        except OnnxOptError as e:
            e.message = e.message.replace(f"{folder}/out/", "").replace(f"{folder}/", "")
            raise


def _read(given: Path) -> None:
    import shutil

    from onnxopt.io.external import external_tensors
    from onnxopt.io.load import read_proto

    if sys.stdin.isatty():
        raise UsageError("a model is read from stdin, and nothing is there", "cat model.onnx | onnxopt optimize - -")
    with open(given, "wb") as f:
        shutil.copyfileobj(sys.stdin.buffer, f)
    if external_tensors(read_proto(given, weights=False)):
        raise ModelError("the model on stdin has external data, which stdin does not carry", "name its file as IN")


def _write(made: Path) -> None:
    import shutil

    if len(list(made.parent.iterdir())) > 1:
        raise ModelError(
            "the result has external data, which stdout does not carry", "name a file as OUT, or --external inline"
        )
    with open(made, "rb") as f:
        shutil.copyfileobj(f, sys.stdout.buffer)
    sys.stdout.buffer.flush()
