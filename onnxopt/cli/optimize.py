"""`onnxopt optimize IN OUT`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from onnxopt.errors import UsageError, WriteError

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class _Bytes(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    name = "bytes"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).lower().removesuffix("b").removesuffix("i")
        number, unit = (text[:-1], text[-1]) if text[-1:] in ("k", "m", "g") else (text, "")
        try:
            return int(float(number) * _UNITS[unit])
        except ValueError:
            self.fail(f"{value!r} is not a number of bytes, like 65536 or 4M", param, ctx)


def _names(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.strip() for text in value for name in text.split(",") if name.strip())


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
    epilog="Exit codes: 0 done, 1 the result differs from the original (nothing is written), 2 wrong usage or "
    "unreadable input, 4 a bug in a pass."
)
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("destination", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "-O",
    "--level",
    type=click.IntRange(0, 3),
    default=2,
    show_default=True,
    help="0: copy; 1: exact; 2: may re-associate floating point; 3: structural algebra.",
)
@click.option(
    "--passes", callback=_names, multiple=True, metavar="NAMES", help="Run these passes instead of a level's."
)
@click.option("--disable", callback=_names, multiple=True, metavar="NAMES", help="Do not run these passes.")
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
@click.option(
    "--max-constant-bytes",
    type=_Bytes(),
    help="How much one constant fold may add to the file. [default: 1M]",
)
@click.option(
    "--freeze-initializers",
    is_flag=True,
    help="Initializers that are also inputs are constants: nobody overrides them.",
)
@click.option("--max-rewrites", type=click.IntRange(0), help="Stop after so many rewrites.")
@click.option(
    "--report",
    "report_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write what was done as JSON.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("-v", "--verbose", count=True, help="Show rules, and why others declined.")
def optimize(
    source: Path,
    destination: Path,
    level: int,
    passes: tuple[str, ...],
    disable: tuple[str, ...],
    no_verify: bool,
    inputs: dict[str, str],
    rtol: float | None,
    atol: float | None,
    seed: int,
    timeout: float,
    max_constant_bytes: int | None,
    freeze_initializers: bool,
    max_rewrites: int | None,
    report_file: Path | None,
    quiet: bool,
    verbose: int,
) -> None:
    """Optimize the model IN, verify the result against it, and write OUT.

    IN is never changed, and OUT appears only when the result computes what IN computes.

    \b
    onnxopt optimize model.onnx model.opt.onnx
    onnxopt optimize model.onnx model.opt.onnx -v --report report.json
    onnxopt optimize model.onnx model.opt.onnx --input tokens=tokens.npy
    """
    from onnxopt.verification import Verifier, VerifyOptions

    if no_verify and (inputs or rtol is not None or atol is not None):
        raise UsageError("--no-verify contradicts --input, --rtol and --atol", "leave one of them out")
    if report_file is not None and not report_file.absolute().parent.is_dir():
        raise WriteError(f"cannot write {report_file}: no such folder", "create the folder first")
    verifier = None
    if not no_verify and level:
        verifier = Verifier(source, VerifyOptions(rtol, atol, seed, inputs, timeout))
        verifier.start()  # it imports while we import
    from onnxopt.api import DifferentResult, OptimizeOptions, optimize_file
    from onnxopt.report.progress import Progress

    options = OptimizeOptions(
        level=level,
        passes=passes or None,
        disable=disable,
        max_constant_bytes=max_constant_bytes,
        max_rewrites=max_rewrites,
        freeze_initializers=freeze_initializers,
    )
    failure = None
    with Progress(enabled=not quiet) as progress:
        try:
            report = optimize_file(
                source,
                destination,
                options,
                check_result=not no_verify,
                verifier=verifier,
                progress=progress.phase,
            )
        except DifferentResult as e:
            failure, report = e, e.report
    if report_file is not None:
        _write_report(report_file, json.dumps(report.to_dict(), indent=2) + "\n")
    if not quiet:
        _print(report.to_dict(), verbose)
    if failure is not None:
        raise failure


def _print(report: dict[str, Any], verbose: int) -> None:
    """A table where somebody looks; plain lines in pipes and logs, which also spares the import of rich."""
    if sys.stdout.isatty():
        from onnxopt.report.console import print_report

        print_report(report, verbose)
    else:
        from onnxopt.report.plain import lines

        for line in lines(report, verbose):
            click.echo(line)


def _write_report(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as e:
        raise WriteError(f"cannot write {path}: {e.strerror or e}", "the model itself was written") from None
