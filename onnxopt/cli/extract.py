"""`onnxopt extract MODEL OUT --inputs NAMES --outputs NAMES`."""

from __future__ import annotations

from pathlib import Path

import click

from onnxopt.cli.options import external_option
from onnxopt.cli.say import say, say_cut
from onnxopt.cli.values import NewFile, known_values, names_option
from onnxopt.plaintext import counted

_OUT = NewFile("`onnxopt optimize MODEL - --outputs NAMES` cuts and writes to stdout, with -O0 it does no more")


@click.command(epilog="Exit codes: 0 written, 2 wrong usage, unreadable input or unwritable output.")
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@click.argument("destination", metavar="OUT", type=_OUT)
@names_option(
    "--inputs", complete=known_values, help="First values of the part. [default: the needed inputs of the model]"
)
@names_option(
    "--outputs", complete=known_values, help="Last values of the part. [default: all outputs determined by the inputs]"
)
@external_option
@click.option("--data", type=click.Choice(["copy", "reference"]), hidden=True, help="As --external was called.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but warnings and errors.")
def extract(
    model: Path,
    destination: Path,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    external: str,
    data: str | None,
    quiet: bool,
) -> None:
    """Write the part of MODEL between chosen values as a model.

    Values are inputs, outputs and results of nodes, in the main graph or in one body of If, Loop or Scan, by name.

    \b
    onnxopt extract model.onnx head.onnx --outputs conv1
    onnxopt extract model.onnx tail.onnx --inputs relu5,mask
    onnxopt extract model.onnx block.onnx --inputs relu4 --outputs relu5
    onnxopt extract model.onnx step.onnx --outputs 'main / Loop "decode" / body / logits'
    """
    from onnxopt.conversion.extraction import extract_file
    from onnxopt.reporting.plain import size

    external = {"copy": "copy", "reference": "reuse"}[data] if data is not None else external
    done = extract_file(model, destination, inputs, outputs, external=external)
    say_cut(done)
    if quiet:
        return
    counts = f"{done.nodes:,} of {counted(done.nodes_before, 'node')}, {counted(len(done.inputs), 'input')}"
    where = f", data in {', '.join(done.data)}" if done.data else ""
    say(f"{destination}: {counts}, {counted(len(done.outputs), 'output')}, {size(done.bytes)}{where}")
    for kind, types in (("input", done.inputs), ("output", done.outputs)):
        for name, type_text in types.items():
            say(f"  {kind:6}  {name}: {type_text}")
