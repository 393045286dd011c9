"""The terminal through rich: the only console. Names are plain text, without markup or control sequences."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment

from onnxopt.plaintext import harmless, printable
from onnxopt.reporting.fitting import Text

_UNBOUNDED: Final = 10_000  # characters: nobody folds what a program or a file is to get


class Terminal(Console):
    """A console in which strings are plain text; a style needs a `Text`.

    Without a terminal the width is unlimited, unless COLUMNS is set. Without a stream (pythonw on Windows) output is
    dropped.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        stream = sys.stderr if stderr else sys.stdout
        is_bounded = (stream is not None and stream.isatty()) or os.environ.get("COLUMNS", "").isdecimal()
        width = None if is_bounded else _UNBOUNDED
        super().__init__(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, **given: Any) -> Text:
        """A string as text, without markup, in words that are not cut."""
        made = super().render_str(text, **given)
        return Text(made.plain, style=made.style, justify=made.justify, overflow=made.overflow)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Returns rich's segments with names escaped; only rich's own segments may control the terminal."""
        for piece in super().render(renderable, options):
            if piece.control:
                yield piece
            else:
                yield Segment(harmless(printable(piece.text, keep="\n")), piece.style)


def show(*renderables: RenderableType) -> None:
    """Print to stdout."""
    terminal = Terminal()
    for renderable in renderables:
        terminal.print(Group(renderable))  # print joins texts, and what they are is lost
