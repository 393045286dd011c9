"""`onnxopt passes`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from onnxopt.cli.options import load_plugins, plugin_option
from onnxopt.cli.say import say
from onnxopt.errors import UsageError

if TYPE_CHECKING:
    from onnxopt.pipeline import Pass

_HEADINGS = ("pass", "option", "kind", "requires", "from", "what it does")


@click.command(epilog="Exit codes: 0 done, 2 wrong usage or a plugin that cannot be loaded.")
@plugin_option
def passes(plugins: tuple[str, ...]) -> None:
    """List the passes: name, lowest level or enabling option, kind, requirements, package, description.

    \b
    onnxopt passes
    onnxopt explain conv-bn-folding
    """
    import onnxopt.passes  # noqa: F401 - registers them
    from onnxopt.pipeline import all_passes, origin

    load_plugins(plugins)
    broken = None
    try:
        known = all_passes()
    except UsageError as e:  # of a plugin, which is no reason to be silent about the others
        known, broken = all_passes(plugins=False), e
    rows = [
        (name, _option(cls), cls.kind, ", ".join(cls.info.required) or "-", origin(cls), cls.summary())
        for name, cls in known.items()
    ]
    if sys.stdout.isatty():
        _print_table(rows)
    else:
        widths = [max(map(len, column)) for column in zip(_HEADINGS, *rows)]
        for row in (_HEADINGS, *rows):
            say("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    if broken is not None:
        raise broken


def _option(cls: type[Pass]) -> str:
    from onnxopt.passes.levels import option_for
    from onnxopt.pipeline import Fixpoint, Sequential

    return "-" if cls in (Fixpoint, Sequential) else option_for(cls.info).partition(" ")[0]


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print a table, with requirements and packages on a wide terminal; a list on a narrow terminal."""
    from rich.console import Group
    from rich.padding import Padding

    from onnxopt.reporting.terminal import Fitting, Text, show, table, whole

    tables = []
    for left_out in ((), (3,), (3, 4)):
        kept = [i for i in range(len(_HEADINGS)) if i not in left_out]
        heads = whole(*(_HEADINGS[i] for i in kept[:-1]))
        tables.append(
            table(*heads, _HEADINGS[-1], rows=([Text(row[i], "" if i else "bold") for i in kept] for row in rows))
        )
    entries = [
        Group(Text.assemble((name, "bold"), f"  {option}  {kind}"), Padding(Text(summary), (0, 0, 0, 2)))
        for name, option, kind, _, _, summary in rows
    ]
    show(Fitting(tables[:2], 40, Fitting(tables[2:], 24, Group(*entries))))
