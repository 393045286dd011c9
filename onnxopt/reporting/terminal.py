"""The terminal through rich: the only console, and layout for its width.

Tables drop columns instead of cutting figures, and long names fold between parts. Names are plain text, without markup
or control sequences.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import rich.text
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.containers import Lines
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table

from onnxopt.plaintext import harmless, printable

_UNLIMITED_WIDTH: Final = 10_000
_ENDS: Final = ("/ ", "._-:")  # of the parts of a name, the best first
_WORD: Final = re.compile(r"\S+")
_WORD_START: Final = re.compile("(?<=[a-z])[A-Z]")  # then where a word of an operator's name begins


def table(*columns: Column | str, rows: Iterable[Iterable[RenderableType]] = (), **given: Any) -> Table:
    """Return a table with a rule below the headings; the texts of a column given as `str` wrap."""
    made = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, **given)
    for row in rows:
        made.add_row(*row)
    return made


def whole(*headings: str, **given: Any) -> list[Column]:
    """Return columns whose texts are never cut."""
    return [Column(heading, no_wrap=True, **given) for heading in headings]


def figures(*headings: str, **given: Any) -> list[Column]:
    """Return columns of numbers."""
    return whole(*headings, justify="right", **given)


def grid(rows: Iterable[Iterable[RenderableType]], gap: int = 2) -> Table:
    """Return rows without headings and lines. The first column is faint, and never cut; long texts fold."""
    found = [list(row) for row in rows]
    made = Table.grid(*whole("", style="dim"), padding=(0, gap, 0, 0))
    for _ in found[0][1:] if found else ():
        made.add_column(overflow="fold")
    for row in found:
        made.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return made


@dataclass(frozen=True)
class Fitting:
    """The first table that fits, `otherwise`, or the last table. Text that may wrap counts `least` columns."""

    tables: Sequence[Table]
    least: int = 16
    otherwise: RenderableType | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update(width=_UNLIMITED_WIDTH)
        for table in self.tables[: None if self.otherwise is not None else -1]:
            needed = Measurement.get(console, wide, table).maximum
            for column in table.columns:
                if not column.no_wrap:
                    cells = Measurement.get(console, wide, Group(column.header, *column.cells)).maximum
                    needed -= max(cells - self.least, 0)
            if needed <= options.max_width:
                yield table
                return
        yield self.tables[-1] if self.otherwise is None else self.otherwise


class Text(rich.text.Text):
    """Text that wraps between words. A word longer than a line continues in the next line, after a complete part."""

    def wrap(self, console: Console, width: int, **given: Any) -> Lines:
        if given.get("no_wrap") or self.no_wrap:
            return super().wrap(console, width, **given)
        ends = []
        for word in _WORD.finditer(self.plain):
            *parts, _ = accumulate(map(len, folded(word[0], max(width, 1), indent=0)))
            ends += [word.start() + end for end in parts]
        return rich.text.Text("\n").join(self.divide(ends)).wrap(console, width, **given)


@dataclass(frozen=True)
class Name:
    """A name that is never cut: a long name continues in the next line, after a complete part."""

    text: str
    style: str = ""

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, cell_len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("\n  ".join(folded(self.text, options.max_width)), self.style, overflow="fold")


def folded(name: str, width: int, indent: int = 2) -> Iterator[str]:
    """Yield the parts of a name for lines of `width`, all but the first with an `indent`: `a/layers.0/`, `mlp/Add`."""
    most = width
    while len(name) > most:
        ends = (max(name.rfind(end, 1, most) for end in some) + 1 for some in _ENDS)
        word = max((m.start() for m in _WORD_START.finditer(name, 1) if m.start() <= most), default=0)
        end = next((end for end in (*ends, word) if end > most // 3), most)
        yield name[:end]
        name, most = name[end:], max(width - indent, 1)
    yield name


_UNBOUNDED: Final = 10_000  # characters: output for programs and files is not folded


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
        """Return a string as text without markup, whose words are not cut."""
        made = super().render_str(text, **given)
        return Text(made.plain, style=made.style, justify=made.justify, overflow=made.overflow)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield rich's segments with names escaped; only rich's own segments may control the terminal."""
        for piece in super().render(renderable, options):
            if piece.control:
                yield piece
            else:
                yield Segment(harmless(printable(piece.text, keep="\n")), piece.style)


def show(*renderables: RenderableType) -> None:
    """Print to stdout."""
    terminal = Terminal()
    for renderable in renderables:
        terminal.print(Group(renderable))  # `print` would join texts, and lose their classes
