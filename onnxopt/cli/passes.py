"""`onnxopt passes`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from onnxopt.cli.options import load_plugins, plugin_option
from onnxopt.cli.say import say

_HEADINGS = ("pass", "level", "kind", "requires", "from", "what it does")


@click.command()
@plugin_option
def passes(plugins: tuple[str, ...]) -> None:
    """List the passes: name, lowest level that runs them, kind, what they require, where they come from.

    \b
    onnxopt passes
    onnxopt explain conv-bn-folding
    """
    import onnxopt.passes  # noqa: F401 - registers them
    from onnxopt.pipeline import all_passes, origin

    load_plugins(plugins)
    rows = [
        (name, f"O{cls.info.opt_level}", cls.kind, ", ".join(cls.info.required) or "-", origin(cls), cls.summary())
        for name, cls in all_passes().items()
    ]
    if sys.stdout.isatty():
        _print_table(rows)
        return
    widths = [max(map(len, column)) for column in zip(_HEADINGS, *rows)]
    for row in (_HEADINGS, *rows):
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from onnxopt.report.terminal import show

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in _HEADINGS:
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*(Text(cell, "bold" if i == 0 else "") for i, cell in enumerate(row)))
    show(table)
