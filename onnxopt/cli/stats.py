"""`onnxopt stats A [B]`."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("a", metavar="A", type=click.Path(path_type=Path))
@click.argument("b", metavar="[B]", required=False, type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["table", "json", "markdown"]), default="table", show_default=True)
def stats(a: Path, b: Path | None, form: str) -> None:
    """Count operators, nodes, initializers, parameters and bytes of model A, or show what changed from A to B.

    \b
    onnxopt stats model.onnx
    onnxopt stats model.onnx model.opt.onnx
    onnxopt stats model.onnx model.opt.onnx --format markdown
    """
    from onnxopt.api import stats as count

    before = count(a)
    after = count(b) if b is not None else None
    if form == "json":
        found = before.to_dict() if after is None else {"before": before.to_dict(), "after": after.to_dict()}
        click.echo(json.dumps(found, indent=2))
        return
    from onnxopt.report import stats_table

    if form == "markdown":
        click.echo(stats_table.markdown(before, after))
        return
    from rich.console import Console

    Console(highlight=False).print(stats_table.one(before) if after is None else stats_table.diff(before, after))
