"""Files of commands: reports beside a result, and models on stdin and stdout."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from onnxopt.cli.say import is_closed
from onnxopt.errors import ModelError, UsageError, WriteError, unwritable

_STAYS: Final = "what was written before stays"


def json_text(data: Any) -> str:
    """Return JSON for all readers: infinity and NaN are null."""
    import json

    text = json.dumps(_finite(data), indent=2, allow_nan=False)
    return text.replace("##", "#\\u0023") + "\n"  # only strings have ##, with which commands to builds begin


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def refuse_models(files: Iterable[Path | None], models: Iterable[str | Path]) -> None:
    """Raise WriteError if a file to be written is a model of the run, or its data file."""
    models = list(models)
    places = {os.path.realpath(model) for model in models}
    for file in files:
        if file is None:
            continue
        if os.path.realpath(file) in places:
            raise WriteError(f"{file} is one of the models", "write to another name")
        if file.exists():
            _refuse_data(file, filter(os.path.isfile, models))


def _refuse_data(file: Path, models: Iterable[str | Path]) -> None:
    from onnxopt.io import refuse_overwriting_input

    for model in models:
        with suppress(ModelError):  # which is told when its turn comes
            refuse_overwriting_input(Path(model), file)


def refuse_unwritable(files: Iterable[Path | None]) -> None:
    """Raise WriteError for a file that cannot be written, as far as known before the run."""
    for file in files:
        if file is None:
            continue
        folder = file.absolute().parent
        if not folder.is_dir():
            raise WriteError(f"cannot write {file}: no such folder", "create the folder first")
        if not os.access(file if file.exists() else folder, os.W_OK):
            raise WriteError(f"cannot write {file}: permission denied", "name another place for it")


def refuse_missing_folder(word: str, hint: str) -> None:
    """Raise UsageError for a missing folder: `new/` is no name for a file."""
    if word.endswith(("/", os.sep)) and not os.path.isdir(word):
        raise UsageError(f"{word} is a folder that is not there", hint)


def refuse_swapped(model: Path, word: str, command: str) -> None:
    """Raise UsageError if the first argument is no file, and the second argument is a model."""
    from shlex import quote

    if not model.exists() and os.path.isfile(word):
        hint = f"the model comes first: onnxopt {command} {quote(word)} {quote(str(model))}"
        raise UsageError(f"{model} is no file, {word} is one", hint)


def named_text(word: str, what: str) -> str:
    """Return `word`, or the text of the file for `@FILE`. `what`: the expected contents. Raises UsageError."""
    if not word.startswith("@"):
        return word
    try:
        return Path(word[1:]).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        why = (e.strerror or e) if isinstance(e, OSError) else "it is not text"
        raise UsageError(f"{word[1:]}: {why}", f"name a file that holds {what}") from None


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file besides the result, whole or not at all. Raises WriteError."""
    from onnxopt.io import Staged

    try:
        if _is_only_written_to(path):
            path.write_bytes(data)
            return
        with Staged(path) as staged:
            staged.write_bytes(data)
            staged.commit()
    except WriteError as e:
        e.hint = e.hint.replace("nothing was written", _STAYS)
        raise
    except OSError as e:
        raise unwritable(path, e, f"check that the folder exists and can be written; {_STAYS}") from None


def _is_only_written_to(path: Path) -> bool:
    """Return whether the path cannot be replaced by a rename, such as /dev/stdout, in use by other programs."""
    place = path.absolute()
    return place.parts[1:2] in (("dev",), ("proc",)) or not os.access(os.path.dirname(os.path.realpath(path)), os.W_OK)


# -- models on stdin and stdout ---------------------------------------------------------------------------------------


@contextmanager
def streams(source: str, destination: str) -> Iterator[tuple[Path, Path]]:
    """Yield files for a source and a destination; either may be `-`.

    The result is written to stdout at the end of the block, unless an error was raised. A result with external data is
    refused. Raises ModelError and UsageError.
    """
    from onnxopt.api.arguments import temporary_folder

    with temporary_folder() as read, temporary_folder() as written:
        given = read / "stdin" if source == "-" else Path(source)
        made = written / "stdout" if destination == "-" else Path(destination)
        if source == "-":
            _read_stdin(given)
        if destination == "-" and is_closed("stdout"):
            raise UsageError("a model would be written to stdout, which is closed", "onnxopt optimize model.onnx OUT")
        if destination == "-" and sys.stdout.isatty():
            raise UsageError("a model would be written to the terminal", "onnxopt optimize model.onnx - > out.onnx")
        yield given, made
        if destination == "-" and made.exists():
            _write_stdout(made)


def _read_stdin(given: Path) -> None:
    import shutil

    from onnxopt.io.external import external_tensors
    from onnxopt.io.load import read_proto

    if sys.stdin.isatty():
        raise UsageError("a model is read from stdin, and nothing is there", "cat model.onnx | onnxopt optimize - -")
    with open(given, "wb") as f:
        shutil.copyfileobj(sys.stdin.buffer, f)
    if external_tensors(read_proto(given, weights=False)):
        raise ModelError("the model on stdin has external data, which stdin does not carry", "name its file as IN")


def _write_stdout(made: Path) -> None:
    import shutil

    if len(list(made.parent.iterdir())) > 1:
        raise ModelError(
            "the result has external data, which stdout does not carry", "name a file as OUT, or --external inline"
        )
    with open(made, "rb") as f:
        shutil.copyfileobj(f, sys.stdout.buffer)
    sys.stdout.buffer.flush()
