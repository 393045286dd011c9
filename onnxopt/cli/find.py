"""`onnxopt find MODEL PATTERN`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from onnxopt.cli.files import json_text, named_text, refuse_swapped
from onnxopt.cli.options import format_option
from onnxopt.cli.say import say, say_all, say_lines
from onnxopt.cli.values import Number
from onnxopt.plaintext import counted


@click.command(epilog="Exit codes: 0 something was found, 1 nothing was, 2 wrong usage or unreadable input.")
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@click.argument("pattern", metavar="PATTERN|@FILE")
@click.option("--match-outputs", is_flag=True, help="Only matches with outputs of the graph as results.")
@click.option("--overlapping", is_flag=True, help="Also matches that share nodes with an earlier match.")
@click.option("--match-placeholder", is_flag=True, help="Only matches with inputs of the graph as variables.")
@click.option("--ignore-literals", is_flag=True, help="Do not compare attributes and constants.")
@click.option("--tolerance", type=Number(0), default=0.0, help="Relative tolerance for floats.")
@click.option("--exact", is_flag=True, help="Attributes absent from the pattern have their defaults.")
@click.option("--single-use", is_flag=True, help="Results in between are used nowhere else.")
@format_option("text", "json")
def find(model: Path, pattern: str, form: str, **matching: Any) -> None:
    """Find the nodes of MODEL that match PATTERN, an expression or the body of a function in ONNX text.

    \b
    onnxopt find model.onnx "Relu(Conv(x, w, ...))"
    onnxopt find model.onnx "Conv|ConvTranspose(x, const(w), ..., group=1)"
    onnxopt find model.onnx "(x) => (y) { n = Neg (x)  s = Sigmoid (n)  y = Mul (x, s) }"
    """
    from onnxopt.api.analyses import find as search

    refuse_swapped(model, pattern, "find")
    found = search(model, named_text(pattern, "a pattern"), **matching)
    if form == "json":
        say_all(json_text([m.to_dict() for m in found]))
    else:
        for i, m in enumerate(found, 1):
            say_lines([f"{i}. {m.scope}: {', '.join(m.results)}", *(f"   {line}" for line in m.text)])
        say(f"{model}: {counted(len(found), 'match')}")
    if not found:
        sys.exit(1)
