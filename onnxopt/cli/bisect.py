"""`onnxopt bisect IN`: finds the rewrite that makes a result wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onnxopt.cli import options
from onnxopt.cli.command import ProjectCommand
from onnxopt.cli.files import refuse_models, refuse_unwritable, write_bytes
from onnxopt.cli.say import say
from onnxopt.cli.values import NewFile, verify_dim_option
from onnxopt.plaintext import counted


@click.command(cls=ProjectCommand, epilog="Exit codes: 0 found, 2 there is nothing to find, 4 a pass fails.")
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@options.pipeline_options
@options.tolerance_options
@verify_dim_option
@options.custom_op_option
@options.seed_option
@click.option(
    "-o",
    "--output",
    type=NewFile(),
    metavar="FILE",
    help="Where to write the smallest submodel. [default: beside IN, as IN.bisect.onnx]",
)
@click.option("-q", "--quiet", is_flag=True, help="Print the finding only.")
def bisect(source: Path, output: Path | None, quiet: bool, **given: Any) -> None:
    """Find the pass and the single rewrite with which the optimized model differs from IN.

    \b
    onnxopt bisect model.onnx
    onnxopt bisect model.onnx --plugin my_passes.py --with my-pass -o small.onnx
    """
    from onnxopt.api.analyses import bisect as search

    options.refuse_ignored(given)
    output = output or source.with_name(f"{source.stem}.bisect.onnx")
    refuse_models([output], [source])
    refuse_unwritable([output])
    judging = {name: given[name] for name in ("rtol", "atol", "verify_dims", "custom_op_libraries", "seed")}
    found = search(source, progress=(lambda _: None) if quiet else say, **judging, **options.settings_of(given))
    for line in found.lines():
        say(line)
    if found.submodel is not None:
        write_bytes(output, found.submodel.SerializeToString())
        nodes = len(found.submodel.graph.node)
        say(f"{output}: {counted(nodes, 'node')} show{'s' * (nodes == 1)} it")
    else:
        say(f"no part of the model shows it by itself: {output} is not written")
    if not quiet:
        say(f"found by verifying {counted(found.runs, 'result')}")
