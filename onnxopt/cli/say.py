"""All that commands write goes through here: a line at a time, of which no name makes two, or anything but text."""

from __future__ import annotations

import codecs
import os
import sys
from codecs import register_error
from collections.abc import Iterable
from io import TextIOWrapper
from itertools import islice
from typing import Final

import click

from onnxopt.plaintext import harmless, line, printable

_TOGETHER: Final = 1000  # lines
_ASCII: Final = "onnxopt_ascii"
_SPELLED: Final = dict(
    zip(
        "✓✗→…·×−–›≤≥≠√²³ᵀ₁₂π",
        ["+", "x", "->", "...", "*", "x", "-", "-", ">", "<=", ">=", "!=", "sqrt", "^2", "^3", "^T", "1", "2", "pi"],
        strict=True,
    )
)


def spell_out(stream: TextIOWrapper) -> None:
    """What the stream's encoding does not have (a pipe on Windows, LANG=C) is spelled in ASCII, or escaped.

    To click a stream in ASCII is a mistake, to be written to in UTF-8: it would mix what goes through click with what
    does not. So ASCII gets a name that click does not know.
    """
    register_error("onnxopt.spelled", _spelled)
    encoding = stream.encoding
    if codecs.lookup(encoding).name == "ascii":
        codecs.register(_ascii)
        encoding = _ASCII
    stream.reconfigure(encoding=encoding, errors="onnxopt.spelled")


def _ascii(name: str) -> codecs.CodecInfo | None:
    if name != _ASCII:
        return None
    known = codecs.lookup("ascii")
    return codecs.CodecInfo(
        known.encode,
        known.decode,
        known.streamreader,
        known.streamwriter,
        known.incrementalencoder,
        known.incrementaldecoder,
        _ASCII,
    )


def _spelled(error: UnicodeError) -> tuple[str | bytes, int]:
    assert isinstance(error, UnicodeEncodeError)
    failed = error.object[error.start : error.end]
    return "".join(_SPELLED.get(c) or c.encode("ascii", "backslashreplace").decode() for c in failed), error.end


def say(text: str = "", *, err: bool = False, dim: bool = False) -> None:
    """One line."""
    click.echo(click.style(line(text), dim=True) if dim and styled(err=err) else line(text), err=err)


def say_lines(texts: Iterable[str]) -> None:
    """Lines, of which there may be many: they are written together."""
    rest = iter(texts)
    while some := list(islice(rest, _TOGETHER)):
        click.echo("\n".join(map(line, some)))


def styled(*, err: bool) -> bool:
    """May what is written there have colours? Only on a terminal that knows them, of somebody who wants them."""
    stream = sys.stderr if err else sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say_error(message: str, hint: str, *, colour: bool = False) -> None:
    """What went wrong, and what to do about it, on stderr."""
    red, faint, off = ("\x1b[1;31m", "\x1b[2m", "\x1b[0m") if colour else ("", "", "")
    click.echo(f"{red}error:{off} {line(message)}", err=True)
    if hint:
        click.echo(f"{faint}hint:{off} {line(hint)}", err=True)


def say_all(text: str, *, err: bool = False) -> None:
    """A document of several lines, which ends them itself: whoever made it wrote names into it as text."""
    click.echo(harmless(printable(text, keep="\n\t")), nl=not text.endswith("\n"), err=err)


def say_command(text: str, *, err: bool) -> None:
    """A command to the build, in a line."""
    click.echo(printable(text), err=err)
