"""Layout for the width of a terminal.

Tables drop columns instead of cutting figures, and long names fold between parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_UNLIMITED_WIDTH: Final = 10_000
_ENDS: Final = ("/ ", "._-:")  # of the parts of a name, the best first
_WORD_START: Final = re.compile("(?<=[a-z])[A-Z]")  # then where a word of an operator's name begins


@dataclass(frozen=True)
class Fitting:
    """The first table that fits the terminal, or `otherwise`, or the last table.

    Text that may wrap counts `least` columns.
    """

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


@dataclass(frozen=True)
class Name:
    """A name that is never cut: a long name continues in the next line, after a complete part."""

    text: str
    style: str = ""

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, cell_len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("\n  ".join(folded(self.text, options.max_width)), self.style, overflow="fold")


def folded(name: str, width: int) -> Iterator[str]:
    """`/model/layers.0/mlp/MatMul` as `/model/layers.0/` and `mlp/MatMul`, where both fit, also set off by two;
    `BatchNormalization` as `Batch` and `Normalization`."""
    most = width
    while len(name) > most:
        ends = (max(name.rfind(end, 1, most) for end in some) + 1 for some in _ENDS)
        word = max((m.start() for m in _WORD_START.finditer(name, 1) if m.start() <= most), default=0)
        end = next((end for end in (*ends, word) if end > most // 3), most)
        yield name[:end]
        name, most = name[end:], max(width - 2, 1)
    yield name
