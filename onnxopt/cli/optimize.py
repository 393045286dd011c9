"""`onnxopt optimize IN OUT`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from onnxopt.cli.options import Recorder, Watch, instrument_options, make_options, pipeline_options, write_text
from onnxopt.cli.project import ProjectCommand
from onnxopt.errors import UsageError, WriteError


def _feeds(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    feeds = {}
    for text in value:
        name, found, file = text.partition("=")
        if not found or not name:
            raise click.BadParameter(f"{text!r} is not NAME=FILE.npy")
        if not Path(file).is_file():
            raise click.BadParameter(f"{file}: no such file")
        feeds[name] = file
    return feeds


@click.command(
    cls=ProjectCommand,
    epilog="Exit codes: 0 done, 1 the result differs from the original (nothing is written), 2 wrong usage or "
    "unreadable input, 3 written without a rewrite that made the result wrong, 4 a bug in a pass.",
)
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("destination", metavar="OUT", type=click.Path(path_type=Path))
@pipeline_options
@click.option("--strict", is_flag=True, help="A result that differs is an error: leave out nothing, write nothing.")
@click.option("--no-verify", is_flag=True, help="Do not compare the result with the original.")
@click.option(
    "--input",
    "inputs",
    callback=_feeds,
    multiple=True,
    metavar="NAME=FILE.npy",
    help="Verify with this input.",
)
@click.option("--rtol", type=float, help="Largest difference, relative to an output's range. [default: by type]")
@click.option("--atol", type=float, help="Largest absolute difference. [default: by type]")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the inputs made for verification.")
@click.option("--timeout", type=float, default=600.0, show_default=True, help="Seconds verification may take.")
@click.option("--max-rewrites", type=click.IntRange(0), help="Stop after so many rewrites.")
@click.option(
    "--report",
    "report_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write what was done as JSON.",
)
@instrument_options
@click.option(
    "--reproducer",
    type=click.Path(path_type=Path, file_okay=False),
    help="If a pass fails, leave in this folder what `onnxopt reproduce` needs.",
)
@click.option("--zero-weights", is_flag=True, help="Leave the weights out of the reproducer: zeros in their place.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("-v", "--verbose", count=True, help="Show rules, and why others declined.")
def optimize(
    source: Path,
    destination: Path,
    strict: bool,
    no_verify: bool,
    inputs: dict[str, str],
    rtol: float | None,
    atol: float | None,
    seed: int,
    timeout: float,
    max_rewrites: int | None,
    report_file: Path | None,
    reproducer: Path | None,
    zero_weights: bool,
    quiet: bool,
    verbose: int,
    **given: Any,
) -> None:
    """Optimize the model IN, verify the result against it, and write OUT.

    IN is never changed, and OUT appears only when the result computes what IN computes.

    \b
    onnxopt optimize model.onnx model.opt.onnx
    onnxopt optimize model.onnx model.opt.onnx -v --report report.json
    onnxopt optimize model.onnx model.opt.onnx --input tokens=tokens.npy
    onnxopt optimize model.onnx model.opt.onnx --pipeline "canonicalize,fixpoint(elim-identity,dead-code)"
    onnxopt optimize model.onnx model.opt.onnx --time-passes --print-ir-after=conv-bn-folding

    Options may have defaults in onnxopt.toml, or in [tool.onnxopt] of pyproject.toml: level = 1.
    """
    from onnxopt.verification import Verifier, VerifyOptions

    if no_verify and (inputs or rtol is not None or atol is not None):
        raise UsageError("--no-verify contradicts --input, --rtol and --atol", "leave one of them out")
    if report_file is not None and not report_file.absolute().parent.is_dir():
        raise WriteError(f"cannot write {report_file}: no such folder", "create the folder first")
    verifier, verify_options = None, VerifyOptions(rtol, atol, seed, inputs, timeout)
    if not no_verify and (given["level"] or given["pipeline"]):
        verifier = Verifier(source, verify_options)
        verifier.start()  # it imports while we import
    from onnxopt.api import DifferentResult, optimize_file
    from onnxopt.report.progress import Progress

    options, watch = make_options(given, max_rewrites), Watch(source, given)
    if verbose or report_file is not None:
        from onnxopt.pipeline.instruments import Sizes

        watch.instruments.append(Sizes())
    recorder = Recorder() if report_file is not None else None
    if recorder is not None:
        watch.instruments += recorder.instruments
    failure = None
    with Progress(enabled=not quiet) as progress:
        try:
            report = optimize_file(
                source,
                destination,
                options,
                check_result=not no_verify,
                verify_options=verify_options,
                verifier=verifier,
                progress=progress.phase,
                instruments=watch.instruments,
                reproducer=reproducer,
                zero_weights=zero_weights,
            )
        except DifferentResult as e:
            failure, report = e, e.report
        if failure is not None and not strict:
            from onnxopt.rollback import roll_back

            try:
                report = roll_back(
                    failure,
                    source,
                    destination,
                    options,
                    verify_options=verify_options,
                    progress=progress.phase,
                    instruments=recorder.instruments if recorder is not None else (),
                    reproducer=reproducer,
                )
                failure = None
            except DifferentResult as e:
                failure, report = e, e.report
    if report_file is not None and recorder is not None:
        write_text(report_file, json.dumps(report.to_dict() | recorder.to_dict(), indent=2) + "\n")
    if not quiet:
        _print(report.to_dict(), verbose)
    watch.report()
    if failure is not None:
        raise failure
    if report.rolled_back:
        sys.exit(_warn(report.rolled_back))


def _warn(rolled_back: list[Any]) -> int:
    for r in rolled_back:
        what = f"rule {r.rule} of pass {r.pass_text}" if r.rule else f"pass {r.pass_text}"
        click.echo(f"warning: {what} was left out, it made the result wrong: {r.message}", err=True)
        for line in r.match:
            click.echo(f"  {r.scope}: {line}", err=True)
    click.echo("hint: report it; --strict makes this an error, `onnxopt bisect` shows the smallest part", err=True)
    return 3


def _print(report: dict[str, Any], verbose: int) -> None:
    """A table where somebody looks; plain lines in pipes and logs, which also spares the import of rich."""
    if sys.stdout.isatty():
        from onnxopt.report.console import print_report

        print_report(report, verbose)
    else:
        from onnxopt.report.plain import lines

        for line in lines(report, verbose):
            click.echo(line)
