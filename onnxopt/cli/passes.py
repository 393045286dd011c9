"""`onnxopt passes`."""

from __future__ import annotations

import dataclasses

import click


@click.command()
def passes() -> None:
    """List the passes: name, lowest level that runs them, kind, what they do, and their options."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    import onnxopt.passes  # noqa: F401 - registers them
    from onnxopt.pipeline import all_passes

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("pass", "level", "kind", "what it does"):
        table.add_column(heading, overflow="fold", no_wrap=heading != "what it does")
    for name, cls in all_passes().items():
        table.add_row(f"[bold]{name}[/]", f"O{cls.info.opt_level}", cls.kind, cls.summary())
        for field in dataclasses.fields(cls):
            table.add_row(
                "",
                "",
                "",
                f"[dim]{field.name.replace('_', '-')}={field.default}: {field.metadata['help']}[/]",
            )
    Console().print(table)
