"""Output of commands: escaped lines on standard streams, and the settings of a run's output."""

from __future__ import annotations

import codecs
import os
import sys
from codecs import register_error
from collections.abc import Iterable
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import click

from onnxopt.errors import few
from onnxopt.plaintext import harmless, line, printable

if TYPE_CHECKING:
    from onnxopt.batch.budget import Budget
    from onnxopt.conversion.extraction import Extraction


def open_closed() -> None:
    """Open closed standard streams: reads return nothing, writes are dropped.

    The lowest descriptors are then in use, so no model gets descriptor 1, to which libraries may print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  as long as the process lives


def is_closed(name: str) -> bool:
    """Return whether the named standard stream was closed when Python started."""
    return getattr(sys, f"__{name}__") is None


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
    """Write characters outside the stream's encoding (a pipe on Windows, LANG=C) in ASCII, or escaped.

    click treats an ASCII stream as a mistake and writes UTF-8, which would mix encodings. ASCII therefore gets a codec
    name unknown to click.
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
    return codecs.CodecInfo(*known, known.incrementalencoder, known.incrementaldecoder, _ASCII)


def _spelled(error: UnicodeError) -> tuple[str | bytes, int]:
    assert isinstance(error, UnicodeEncodeError)
    failed = error.object[error.start : error.end]
    return "".join(_SPELLED.get(c) or c.encode("ascii", "backslashreplace").decode() for c in failed), error.end


def say(text: str = "", *, err: bool = False, dim: bool = False) -> None:
    """Print a line. `dim`: a command to copy, which stays a single line on a narrow terminal."""
    if dim:
        click.echo(click.style(line(text), dim=True) if styled(err=err) else line(text), err=err)
        return
    for part in _fitted(line(text), sys.stderr if err else sys.stdout):
        click.echo(part, err=err)


def _fitted(text: str, stream: TextIO) -> list[str]:
    """Return the text as lines for the width of a terminal, with its indent; elsewhere as a single line."""
    if not stream.isatty():
        return [text]
    from shutil import get_terminal_size

    width = get_terminal_size().columns
    if len(text) <= width:
        return [text]
    from textwrap import TextWrapper

    within = " " * (len(text) - len(text.lstrip()))
    fitting = TextWrapper(width, initial_indent=within, subsequent_indent=within)
    fitting.break_long_words = fitting.break_on_hyphens = False  # names can be copied
    return fitting.wrap(text.strip()) or [text]


def say_lines(texts: Iterable[str]) -> None:
    """Print many lines in a single write."""
    rest = iter(texts)
    while some := list(islice(rest, _TOGETHER)):
        click.echo("\n".join(part for text in some for part in _fitted(line(text), sys.stdout)))


def styled(*, err: bool) -> bool:
    """Return whether the stream may have colours: a terminal with colours, not disabled by the user."""
    stream = sys.stderr if err else sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say_error(message: str, hint: str, *, colour: bool = False) -> None:
    """Print an error and its hint on stderr."""
    red, faint, off = ("\x1b[1;31m", "\x1b[2m", "\x1b[0m") if colour else ("", "", "")
    click.echo(f"{red}error:{off} {line(message)}", err=True)
    if hint:
        click.echo(f"{faint}hint:{off} {line(hint)}", err=True)


def say_all(text: str, *, err: bool = False) -> None:
    """Print a document of several lines; the author of the document has escaped names."""
    click.echo(harmless(printable(text, keep="\n\t")), nl=not text.endswith("\n"), err=err)


def say_command(text: str, *, err: bool) -> None:
    """Print a command to the build system as a line."""
    click.echo(printable(text), err=err)


def say_cut(done: Extraction) -> None:
    """Warn of unneeded inputs, and of outputs that the part of a model does not have."""
    for said, names, where in (
        ("no output needs", done.unneeded, "inputs"),
        ("the inputs do not give", done.left_out, "outputs"),
    ):
        if names:
            say(f"warning: {said} {few([f'`{name}`' for name in names])}: left out of the {where}", err=True)


@dataclass(eq=False, repr=False)
class OutputSettings:
    """Settings of the output.

    `form`: text or json. `junit`, `report`: files. `budgets`: limits. `quiet`: errors only. `data_on_stdout`: stdout
    is used for the model. `verbose`: rules, and reasons for declining. `stats`: changes by operator.
    """

    form: str = "text"
    junit: Path | None = None
    report: Path | None = None
    budgets: tuple[Budget, ...] = ()
    quiet: bool = False
    data_on_stdout: bool = False
    verbose: int = 0
    stats: bool = False

    @property
    def has_summary(self) -> bool:
        """Return whether GitHub's step summary is available."""
        return bool(os.environ.get("GITHUB_STEP_SUMMARY"))

    @property
    def to_machines(self) -> bool:
        """Return whether programs read the output; an unverified result is then an error."""
        environment = os.environ.get("GITHUB_STEP_SUMMARY") or os.environ.get("GITHUB_ACTIONS") == "true"
        return bool(self.form != "text" or self.junit or environment)

    @property
    def wanted(self) -> bool:
        """Return whether the output has more than the lines of a single run."""
        return bool(self.to_machines or self.budgets)
