"""`onnxopt report IN OUT -o report.html`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from onnxopt.cli.options import NewFile, make_options, pipeline_options
from onnxopt.cli.project import ProjectCommand
from onnxopt.cli.say import say
from onnxopt.errors import UsageError, WriteError


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
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def report(
    source: Path,
    result: Path,
    output: Path,
    record: Path | None,
    no_verify: bool,
    no_times: bool,
    quiet: bool,
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
    for path in (source, result, *([record] if record is not None else [])):
        if os.path.realpath(path) == os.path.realpath(output):
            raise WriteError(f"{output} is one of the files to read", "write the page to another name")
    from onnxopt.io import Staged, blaming, refuse_overwriting_input
    from onnxopt.reporting.progress import Progress

    for model in (source, result):
        refuse_overwriting_input(model, output)
    with Progress(enabled=not quiet) as progress, Staged(output) as staged, blaming(source), blaming(result):
        from onnxopt.comparison import compare_files, read_history

        options = make_options(given)
        if record is not None:
            history = read_history(record)
        else:
            from onnxopt.comparison import repeat

            history = repeat(source, options, progress.phase)
        progress.phase("comparing")
        found = compare_files(source, result, history)
        verdict = history.report["verification"] if not found.doubts else None
        if verdict is None and not no_verify:
            from onnxopt.comparison import judge

            progress.phase("verifying")
            allowed = history.report["pipeline"]["tolerances"]
            verdict = judge(source, result, options, history.journal if not found.doubts else (), allowed).to_dict()
        progress.phase("writing")
        staged.write_bytes(_page(found.to_dict(verdict), not no_times).encode())
        size = staged.bytes
        staged.commit()
    if not quiet:
        _tell(output, size, found.doubts)


def _refuse_options(ctx: click.Context, given: dict[str, Any]) -> None:
    named = [p for p in ctx.command.params if p.name in given]
    for p in named:
        if p.name and ctx.get_parameter_source(p.name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"--from contradicts {p.opts[-1]}: nothing is run again", "leave one of them out")


def _page(data: dict[str, Any], times: bool) -> str:
    from onnxopt import __version__
    from onnxopt.reporting.html import page

    return page(data | {"times": times, "version": __version__})


def _tell(output: Path, size: int, doubts: list[str]) -> None:
    from onnxopt.reporting.plain import size as shown

    for doubt in doubts:
        say(f"warning: {doubt}", err=True)
    say(f"{output}: {shown(size)}, open it in a browser")
