"""`onnxopt diff A B`: the changes from one model to another, and a page with both graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onnxopt.cli.report import say_page
from onnxopt.cli.stats import counting_options, say_counts
from onnxopt.cli.values import NewFile


@click.command(epilog="Exit codes: 0 done, also where the models differ, 2 wrong usage, unreadable input or page.")
@click.argument("a", metavar="A", type=click.Path(path_type=Path))
@click.argument("b", metavar="B", type=click.Path(path_type=Path))
@counting_options
@click.option("--html", type=NewFile(), metavar="FILE.html", help="Write a page with both graphs side by side, too.")
def diff(a: Path, b: Path, html: Path | None, **counting: Any) -> None:
    """Show the changes from model A to model B: operators, parameters, bytes, work, inputs and outputs.

    The page also has both graphs, node by node, and changed weights. The models are not run: `onnxopt verify A B`
    checks whether both compute the same, `onnxopt report A B` lists the changes of each pass.

    \b
    onnxopt diff model.onnx model.opt.onnx
    onnxopt diff old.onnx new.onnx --html diff.html
    onnxopt diff old.onnx new.onnx --format markdown
    """
    say_counts(a, b, **counting)
    if html is not None:
        from onnxopt.api.page import diff as make_page
        from onnxopt.reporting.progress import Progress

        with Progress() as progress:
            page = make_page(a, b, html, progress=progress.phase)
        say_page(page, html, err=True)
