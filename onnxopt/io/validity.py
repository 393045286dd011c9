"""Attributes unexpected errors to the model if onnx.checker rejects it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from google.protobuf.message import Message
from onnx import ModelProto

from onnxopt.errors import InvariantError, ModelError, OnnxOptError, PassError, is_starved


@contextmanager
def blaming(source: str | Path | ModelProto) -> Iterator[None]:
    """Context that raises ModelError instead of an internal error if onnx.checker rejects the model.

    Loading does not run the checker, which takes as long as optimizing and rejects models accepted by runtimes.
    """
    try:
        yield
    except (PassError, InvariantError) as e:
        _blame(source, e)
        raise
    except (OnnxOptError, OSError):
        raise
    except Exception as e:
        if not is_starved(e):
            _blame(source, e)
        raise


def _blame(source: str | Path | ModelProto, error: Exception) -> None:
    objection = _objection(source)
    if objection:
        name = source.graph.name if isinstance(source, ModelProto) else source
        hint = "export it anew, or repair it; ONNXOPT_DEBUG=1 shows what it breaks here"
        raise ModelError(f"{name}: not a valid model: {objection}", hint) from error


def _objection(source: str | Path | ModelProto) -> str:
    """Return why onnx.checker (with shape inference) rejects a model, or which string is not UTF-8.

    Empty if the model is valid or the checker does not finish.
    """
    from onnxopt.io.load import read_proto
    from onnxopt.worker.limits import Limits
    from onnxopt.worker.sandbox import Declined, Sandbox

    garbled = _garbled(source if isinstance(source, ModelProto) else read_proto(Path(source)), "model")
    if garbled:
        return garbled

    try:
        given = source.SerializeToString() if isinstance(source, ModelProto) else str(Path(source).absolute())
        with Sandbox(Limits()) as sandbox:
            return str(sandbox.call("objection", given))
    except (Declined, ValueError):  # ValueError: beyond protobuf's limit
        return ""


def _garbled(message: Message, place: str) -> str:
    """Return the first string in a message that is not UTF-8 (returned as bytes by protobuf), or empty."""
    for field, value in message.ListFields():
        if field.cpp_type == field.CPPTYPE_STRING and field.type == field.TYPE_STRING:
            for text in [value] if isinstance(value, (str, bytes)) else value:
                if isinstance(text, bytes):
                    return f"{place}: {field.name} {text!r} is not UTF-8"
        elif field.cpp_type == field.CPPTYPE_MESSAGE:
            for i, inner in enumerate([value] if isinstance(value, Message) else value):
                found = _garbled(inner, f"{place}.{field.name}[{i}]")
                if found:
                    return found
    return ""
