"""`onnxopt report IN OUT -o report.html`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from onnxopt.cli.options import NewFile, library_option, pipeline_options, settings_of
from onnxopt.cli.project import ProjectCommand
from onnxopt.cli.say import say
from onnxopt.errors import UsageError


@click.command(cls=ProjectCommand, epilog="Exit codes: 0 done, 2 wrong usage, unreadable input or unwritable page.")
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("result", metavar="OUT", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=NewFile(), required=True, metavar="FILE.html", help="The page to write.")
@click.option(
    "--from",
    "record",
    type=click.Path(path_type=Path),
    metavar="FILE.json",
    help="What `optimize --report` wrote. [default: optimize again, in memory]",
)
@click.option("--no-verify", is_flag=True, help="Do not compare OUT with IN.")
@click.option("--no-times", is_flag=True, help="Leave out measured times: the same page each time.")
@pipeline_options
@library_option
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def report(
    source: Path,
    result: Path,
    output: Path,
    record: Path | None,
    no_verify: bool,
    no_times: bool,
    quiet: bool,
    custom_op_libraries: tuple[str, ...],
    **given: Any,
) -> None:
    """Show in one HTML page what became of the model IN in the optimized model OUT.

    The page needs no network. What the passes did is read from the report of the optimization, or found out by
    running it again: give the options OUT was made with.

    \b
    onnxopt report model.onnx model.opt.onnx -o report.html
    onnxopt report model.onnx model.opt.onnx -o report.html -O3
    onnxopt optimize model.onnx model.opt.onnx --report report.json
    onnxopt report model.onnx model.opt.onnx -o report.html --from report.json
    """
    if record is not None:
        _refuse_options(click.get_current_context(), given)
    from onnxopt.api import report as make_page
    from onnxopt.reporting.plain import size
    from onnxopt.reporting.progress import Progress

    with Progress(enabled=not quiet) as progress:
        page = make_page(
            source,
            result,
            output,
            record=record,
            verify=not no_verify,
            times=not no_times,
            custom_op_libraries=custom_op_libraries,
            progress=progress.phase,
            **settings_of(given),
        )
    if not quiet:
        for doubt in page.doubts:
            say(f"warning: {doubt}", err=True)
        say(f"{output}: {size(len(page.html.encode()))}, open it in a browser")


def _refuse_options(ctx: click.Context, given: dict[str, Any]) -> None:
    named = [p for p in ctx.command.params if p.name in given]
    for p in named:
        if p.name and ctx.get_parameter_source(p.name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"--from contradicts {p.opts[-1]}: nothing is run again", "leave one of them out")
