"""`onnxopt verify A B`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from onnxopt.cli import options
from onnxopt.cli.files import json_text
from onnxopt.cli.say import say, say_all
from onnxopt.cli.values import known_cases, names_option
from onnxopt.errors import UsageError, nearest_file


@click.command(
    epilog="Exit codes: 0 they compute the same (also if the cases prove little, or only rounding noise tells them "
    "apart, which is said; not with --strict), 1 different, or onnxruntime loads B without its optimizations only, or "
    "nothing could be compared, 2 wrong usage or unreadable input. An output may differ by a few roundings, or by "
    "twice what the last bits of the inputs do to it. Where it differs by more, or something inside decides (TopK, a "
    "quantizer), both are compared piece by piece on A's own values. --rtol and --atol replace that: an output may be "
    "off by RTOL times its largest magnitude, plus ATOL, and "
    "nothing else counts."
)
@click.argument("a", metavar="A", type=click.Path(path_type=Path))
@click.argument("b", metavar="B", type=click.Path(path_type=Path))
@names_option(
    "--cases",
    complete=known_cases,
    help="Run these: random, ones, zeros, extremes, wide, edges, below, above, dynamic-1, -2, -3, beyond, beyond-2, "
    "-3, beyond-batch, beyond-batch-2, mask-ones, -right, -left, -one, overrides, flags, flags-2 to -6, uniform; "
    "groups: all, dynamic, masks. [default: all that the model has; with --inputs, none]",
)
@click.option(
    "--inputs",
    "--input",
    "inputs",
    multiple=True,
    metavar="DIR|FILE.npz|NAME=FILE.npy",
    help="Run on this data: a folder of .npy files named as the inputs, an .npz file, onnx's test data "
    "(input_0.pb, …, or a folder of test_data_set_0, …); NAME=FILE.npy gives one input its value in every case.",
)
@options.tolerance_options
@options.dim_option("Give a dynamic dim its size. [default: several sizes, one after the other]", "--verify-dim")
@click.option("--pieces", is_flag=True, help="Look inside, piece by piece, even where the outputs agree.")
@options.memory_option
@options.limit_option
@options.provider_option
@options.custom_op_option
@options.plugin_option
@options.seed_option
@options.timeout_option("each load and each run")
@click.option(
    "--dtype", type=click.Choice(["float16", "bfloat16"]), help="B may have values in this type that are float32 in A."
)
@click.option("--int32", is_flag=True, help="Inputs and outputs of B may be int32 that are int64 in A.")
@options.rename_option("B calls an input, an output or a symbolic dim of A otherwise.")
@click.option("--strip-qdq", is_flag=True, help="Remove pairs of QuantizeLinear and DequantizeLinear from A.")
@options.keep_option
@click.option("--strict", is_flag=True, help="Treat inconclusive results and rounding noise as failures.")
@options.format_option("table", "json")
@click.option("-q", "--quiet", is_flag=True, help="Print the verdict only.")
@click.option("-v", "--verbose", count=True, help="Show all nodes and rewrites at the places of differences.")
def verify(
    a: Path, b: Path, inputs: tuple[str, ...], strict: bool, form: str, quiet: bool, verbose: int, **given: Any
) -> None:
    """Compare the results of models A and B, output by output, with onnxruntime's optimizations off.

    \b
    onnxopt verify model.onnx model.opt.onnx
    onnxopt verify model.onnx model.opt.onnx --cases random,dynamic --pieces
    onnxopt verify model.onnx model.opt.onnx --inputs test_data_set_0
    onnxopt verify model.onnx model.opt.onnx --inputs ids=ids.npy --cases masks
    onnxopt verify model.onnx model.opt.onnx --rtol 1e-3 --format json

    A crash or hang of onnxruntime in A or B is reported as a result.
    """
    from onnxopt.io import blaming
    from onnxopt.reporting.progress import Progress
    from onnxopt.verification import INCONCLUSIVE, WITHIN_NOISE, VerifyOptions
    from onnxopt.verification.two_files import compare_files

    options.load_plugins(given.pop("plugins"))
    files, datasets = _split(inputs)
    given["cases"] = given["cases"] or (None if inputs else ("all",))
    given |= {"dtype": given["dtype"] or "", "limit": given["memory"], "memory": given.pop("verify_memory")}
    verify_options = VerifyOptions(inputs=files, datasets=datasets, **given)
    if given["keep"] and not given["strip_qdq"]:
        raise UsageError("--keep is for --strip-qdq", "without it all quantizers stay")
    with Progress(enabled=not quiet) as progress, blaming(a), blaming(b):
        progress.phase("comparing")
        found = compare_files(a, b, verify_options)
    if form == "json":
        say_all(json_text(found.to_dict()))
    else:
        _print(found.to_dict(), quiet, verbose)
    sys.exit(int(strict if found.status in (INCONCLUSIVE, WITHIN_NOISE) else not found.agrees))


def _split(inputs: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return ({input name: file}, folders and archives)."""
    given, places = {}, []
    for text in inputs:
        name, found, file = text.rpartition("=")
        if not found or Path(text).exists():
            places.append(text)
        elif not name or not Path(file).is_file():
            raise UsageError(f"--inputs {text}: no such file", nearest_file(file, "give NAME=FILE.npy"))
        else:
            given[name] = file
    return given, tuple(places)


def _print(found: dict[str, Any], quiet: bool, verbose: int) -> None:
    if sys.stdout.isatty() and not quiet:
        from onnxopt.reporting.console import print_comparison

        print_comparison(found, verbose)
        if found["places"]:
            files = shlex.join((found["a"], found["b"]))
            say(f"next: onnxopt report {files} -o report.html marks it in both graphs", dim=True)
        return
    from onnxopt.plaintext import cleaned
    from onnxopt.reporting import verdict

    for line in verdict.lines(cleaned(found), verbose) if quiet else verdict.comparison_lines(found, verbose):
        say(line)
