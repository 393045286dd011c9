"""`onnxopt passes`."""

from __future__ import annotations

import click

from onnxopt.cli.options import load_plugins, plugin_option


@click.command()
@plugin_option
def passes(plugins: tuple[str, ...]) -> None:
    """List the passes: name, lowest level that runs them, kind, what they require, where they come from.

    \b
    onnxopt passes
    onnxopt explain conv-bn-folding
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    import onnxopt.passes  # noqa: F401 - registers them
    from onnxopt.pipeline import all_passes, origin

    load_plugins(plugins)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("pass", "level", "kind", "requires", "from"):
        table.add_column(heading, no_wrap=True)
    table.add_column("what it does", overflow="fold")
    for name, cls in all_passes().items():
        cells = (name, f"O{cls.info.opt_level}", cls.kind, ", ".join(cls.info.required), origin(cls), cls.summary())
        table.add_row(*(Text(cell, "bold" if i == 0 else "") for i, cell in enumerate(cells)))
    Console().print(table)
