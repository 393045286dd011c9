"""The terminal as rich writes to it: the only console, so that no name is markup, and none is anything but text."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from onnxopt.plaintext import harmless, printable

_UNBOUNDED: Final = 10_000  # characters: nobody folds what a program or a file is to get


class Terminal(Console):
    """Strings are text: who wants a style makes a `Text`. What is no terminal is as wide as what is written, unless
    COLUMNS says otherwise. Where there is no stream (pythonw on Windows), what is written goes nowhere."""

    def __init__(self, *, stderr: bool = False) -> None:
        stream = sys.stderr if stderr else sys.stdout
        is_bounded = (stream is not None and stream.isatty()) or os.environ.get("COLUMNS", "").isdecimal()
        width = None if is_bounded else _UNBOUNDED
        super().__init__(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What rich is about to write, piece by piece; only its own pieces control anything."""
        for piece in super().render(renderable, options):
            if piece.control:
                yield piece
            else:
                yield Segment(harmless(printable(piece.text, keep="\n")), piece.style)


def show(*renderables: RenderableType) -> None:
    """Print them to stdout."""
    terminal = Terminal()
    for renderable in renderables:
        terminal.print(renderable)
