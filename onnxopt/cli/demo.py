"""`onnxopt demo`."""

from __future__ import annotations

import math
import os
import shlex
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from onnxopt.cli.files import write_bytes
from onnxopt.cli.say import say
from onnxopt.errors import WriteError, unwritable

if TYPE_CHECKING:
    from onnx import ModelProto

_FOLDER_HINT: Final = "--out-dir DIR names another folder"


@click.command(epilog="Exit codes: 0 done, 2 wrong usage, or a file that is there already.")
@click.option(
    "--out-dir",
    type=click.Path(path_type=Path),
    default=".",
    metavar="DIR",
    help="Write into this folder, created if missing. [default: the current folder]",
)
@click.pass_context
def demo(context: click.Context, out_dir: Path) -> None:
    """Write a small model, demo.onnx, optimize the model, and show commands with their output.

    \b
    onnxopt demo
    onnxopt demo --out-dir tried
    """
    source, destination = out_dir / "demo.onnx", out_dir / "demo.opt.onnx"
    data = network().SerializeToString()
    _refuse_taken(source, destination, data)
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise unwritable(out_dir, e, _FOLDER_HINT) from None
    write_bytes(source, data)
    from onnxopt.cli.optimize import optimize
    from onnxopt.cli.stats import stats

    places = (str(source), str(destination))
    _run(context, optimize, *places)
    _run(context, stats, *places, "--dim", "batch=1")
    say(f"next: onnxopt report {shlex.join(places)} -o report.html", dim=True)


def network() -> ModelProto:
    """Return the model, the same at each call."""
    import numpy as np
    from onnx import parser

    from onnxopt.proto.messages import array_to_tensor

    model = parser.parse_model(files("onnxopt.cli").joinpath("demo.onnxtxt").read_text("utf-8"))
    rng = np.random.default_rng(0)
    declared = list(model.graph.value_info)
    del model.graph.value_info[:]
    for info in declared:
        shape = tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
        if info.name.startswith("w"):
            weights = rng.standard_normal(shape) * (math.sqrt(2 / math.prod(shape[1:])) if len(shape) > 2 else 0.01)
        else:  # variances among them
            weights = rng.uniform(0.5, 1.5, shape)
        model.graph.initializer.append(array_to_tensor(weights.astype(np.float32), info.name))
    return model


def _refuse_taken(source: Path, destination: Path, data: bytes) -> None:
    """Raise WriteError if a file exists that no earlier demo wrote."""
    if source.is_file() and source.read_bytes() == data:
        return
    for file in (source, destination):
        if os.path.lexists(file):
            raise WriteError(f"{file} is there already, and is not the demo's", _FOLDER_HINT)


def _run(context: click.Context, command: click.Command, *words: str) -> None:
    """Run a command, below a line with the command."""
    say(f"$ onnxopt {shlex.join((str(command.name), *words))}", dim=True)
    with command.make_context(command.name, list(words), parent=context.parent) as inner:
        command.invoke(inner)
