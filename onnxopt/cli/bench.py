"""`onnxopt bench A [B]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from onnxopt.cli import options
from onnxopt.cli.files import json_text
from onnxopt.cli.say import say, say_all
from onnxopt.cli.values import Number, input_option
from onnxopt.errors import UsageError


@click.command(
    epilog="A and B run in turn, in one process apart from this one, so that what disturbs the machine disturbs both. "
    "p10 and p90: four in five runs lie between them. The ratio is a trimmed mean over several openings of the files, "
    "with its 95 % interval; so is a median. The table says where the time goes: nodes of a run, by operator, as "
    "onnxruntime's profile has them.\n\nExit codes: 0 measured, 1 onnxruntime cannot load or run a model, or crashed, "
    "2 wrong usage or unreadable input."
)
@click.argument("a", metavar="A", type=click.Path(path_type=Path))
@click.argument("b", metavar="[B]", required=False, type=click.Path(path_type=Path))
@click.option("--runs", type=click.IntRange(1), help="Runs of each model. [default: as many as --seconds allow]")
@click.option("--seconds", type=Number(0, min_open=True), help="Duration of the measurement. [default: 5]")
@click.option(
    "--warmup", type=click.IntRange(0), default=3, show_default=True, help="Runs after each loading, not counted."
)
@click.option("--threads", type=click.IntRange(0), default=0, help="Threads of an operator. [default: the runtime's]")
@click.option(
    "--level",
    type=click.Choice(["none", "basic", "extended", "all"]),
    default="all",
    show_default=True,
    help="Graph optimizations of onnxruntime.",
)
@click.option(
    "--clock",
    type=click.Choice(["wall", "processor"]),
    default="wall",
    show_default=True,
    help="The measured time; processor: time of a single thread, for machines under load (with --threads 1).",
)
@options.provider_option
@options.custom_op_option
@options.dim_option("Give a dynamic dim its size. [default: a batch of 1, others 64 or what the model takes]")
@input_option("Measure with this input.")
@options.seed_option
@options.timeout_option("each load and each run")
@options.limit_option
@options.format_option("table", "json")
def bench(
    a: Path, b: Path | None, runs: int | None, seconds: float | None, memory: int, form: str, **given: Any
) -> None:
    """Measure the latency of model A in onnxruntime, or compare models A and B.

    \b
    onnxopt bench model.onnx
    onnxopt bench model.onnx model.opt.onnx
    onnxopt bench model.onnx model.opt.onnx --threads 1 --level none --runs 100
    onnxopt bench model.onnx model.opt.onnx --threads 1 --clock processor
    onnxopt bench model.onnx model.opt.onnx --dim batch=8 --dim sequence=128 --format json
    """
    from onnxopt.comparison.latency import BenchOptions
    from onnxopt.comparison.latency import bench as measure
    from onnxopt.io import blaming
    from onnxopt.reporting import latency
    from onnxopt.reporting.progress import Progress

    if runs is not None and seconds is not None:
        raise UsageError("--runs contradicts --seconds", "leave one of them out")
    settings = BenchOptions(runs, 5.0 if seconds is None else seconds, limit=memory, operators=True, **given)
    with Progress() as progress, blaming(a), blaming(b or a):
        progress.phase("loading")
        found = measure([a] if b is None else [a, b], settings, progress.phase).to_dict()
    if form == "json":
        say_all(json_text(found))
    elif found["failure"]:
        say(f"✗ not measured: {found['failure']}")
    elif sys.stdout.isatty():
        latency.print_latencies(found)
    else:
        for line in latency.lines(found):
            say(line)
    if found["failure"]:
        sys.exit(1)
