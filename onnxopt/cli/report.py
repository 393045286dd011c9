"""`onnxopt report IN [OUT] -o report.html`."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxopt.cli.command import ProjectCommand
from onnxopt.cli.options import custom_op_option, is_given, pipeline_options, settings_of
from onnxopt.cli.say import say
from onnxopt.cli.values import NewFile
from onnxopt.errors import UsageError

if TYPE_CHECKING:
    from onnxopt.api.page import Page


@click.command(cls=ProjectCommand, epilog="Exit codes: 0 done, 2 wrong usage, unreadable input or unwritable page.")
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("result", metavar="[OUT]", required=False, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=NewFile(),
    metavar="FILE.html",
    help="The page to write. [default: the last model's name, in the current folder, if no such file exists]",
)
@click.option(
    "--from",
    "record",
    type=click.Path(path_type=Path),
    metavar="FILE.json",
    help="The file of `optimize --report`. [default: optimize again, in memory]",
)
@click.option("--no-verify", is_flag=True, help="Do not compare OUT with IN.")
@click.option("--no-times", is_flag=True, help="Leave out measured times: the same page each time.")
@pipeline_options
@custom_op_option
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def report(source: Path, result: Path | None, output: Path | None, record: Path | None, **given: Any) -> None:
    """Write an HTML page about the model IN, or about the changes from IN to the optimized model OUT.

    The page needs no network. The changes of each pass are read from the report of the optimization, or from a repeated
    run: give the options of the first run. `onnxopt diff` compares any two models.

    \b
    onnxopt report model.onnx -o model.html
    onnxopt report model.onnx model.opt.onnx -o report.html
    onnxopt report model.onnx model.opt.onnx -o report.html -O3
    onnxopt optimize model.onnx model.opt.onnx --report report.json
    onnxopt report model.onnx model.opt.onnx -o report.html --from report.json
    """
    if result is None:
        _refuse_options({*given, "record"} - {"quiet"}, "{} is about two models: one is only shown", "name OUT")
    elif record is not None:
        runs = given.keys() - {"no_verify", "custom_op_libraries", "no_times", "quiet"}
        _refuse_options(runs, "--from contradicts {}: nothing is run again", "leave one of them out")
    output = output if output is not None else _named_as(result if result is not None else source)
    from onnxopt.api.page import report as make_page
    from onnxopt.reporting.progress import Progress

    with Progress(enabled=not given["quiet"]) as progress:
        page = make_page(
            source,
            result,
            output,
            record=record,
            verify=not given["no_verify"],
            times=not given["no_times"],
            custom_op_libraries=given["custom_op_libraries"],
            progress=progress.phase,
            **(settings_of(given) if result is not None else {}),
        )
    if not given["quiet"]:
        say_page(page, output)


def say_page(page: Page, output: Path, err: bool = False) -> None:
    """Print size and warnings of a written page."""
    from onnxopt.reporting.plain import size

    for doubt in page.doubts:
        say(f"warning: {doubt}", err=True)
    say(f"{output}: {size(len(page.html.encode()))}, open it in a browser", err=err)


def _refuse_options(names: Set[str], why: str, hint: str) -> None:
    """Raise UsageError for the first of these parameters given on the command line."""
    for p in click.get_current_context().command.params:
        if p.name in names and is_given(p.name):
            raise UsageError(why.format(p.opts[-1]), hint)


def _named_as(model: Path) -> Path:
    """Return the default path of the page; an existing file is never replaced."""
    page = Path(f"{model.stem}.html")
    if page.exists():
        raise UsageError(f"{page} exists", f"-o {page} writes over it")
    return page
