"""`onnxopt find MODEL PATTERN`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onnxopt.cli.files import json_text, named_text, refuse_swapped
from onnxopt.cli.options import Number, format_option
from onnxopt.cli.say import say, say_all, say_lines
from onnxopt.plaintext import counted

if TYPE_CHECKING:
    from onnxopt.rewriting import SubgraphMatch

_LARGE = 20_000  # nodes of a model, of which nothing is inferred to show shapes: that takes longer than to find


@click.command(epilog="Exit codes: 0 something was found, 1 nothing was, 2 wrong usage or unreadable input.")
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@click.argument("pattern", metavar="PATTERN|@FILE")
@click.option("--match-outputs", is_flag=True, help="Only matches whose results are outputs of their graph.")
@click.option("--overlapping", is_flag=True, help="Also matches that share nodes with an earlier one.")
@click.option("--match-placeholder", is_flag=True, help="Only matches whose variables are inputs of their graph.")
@click.option("--ignore-literals", is_flag=True, help="Do not compare attributes and constants.")
@click.option("--tolerance", type=Number(0), default=0.0, help="Floats are equal that differ by so much of their size.")
@click.option("--exact", is_flag=True, help="Attributes that are not written have their defaults.")
@click.option("--single-use", is_flag=True, help="Results in between are used nowhere else.")
@format_option("text", "json")
def find(
    model: Path,
    pattern: str,
    match_outputs: bool,
    match_placeholder: bool,
    overlapping: bool,
    ignore_literals: bool,
    tolerance: float,
    exact: bool,
    single_use: bool,
    form: str,
) -> None:
    """Find the nodes of MODEL that look like PATTERN, an expression or the body of a function in ONNX text.

    \b
    onnxopt find model.onnx "Relu(Conv(x, w, ...))"
    onnxopt find model.onnx "Conv|ConvTranspose(x, const(w), ..., group=1)"
    onnxopt find model.onnx "(x) => (y) { n = Neg (x)  s = Sigmoid (n)  y = Mul (x, s) }"
    """
    from onnxopt.analysis.facts import infer
    from onnxopt.io import blaming, load
    from onnxopt.rewriting import SubgraphMatcher
    from onnxopt.rewriting.unknown import refuse_unknown

    refuse_swapped(model, pattern, "find")
    matcher = SubgraphMatcher(
        named_text(pattern, "a pattern"),
        match_outputs=match_outputs,
        match_placeholder=match_placeholder,
        overlapping=overlapping,
        ignore_literals=ignore_literals,
        tolerance=tolerance,
        exact=exact,
        shared=not single_use,
    )
    with blaming(model):
        loaded = load(model, stored=True)
        found = matcher.match(loaded)
        if not found:
            refuse_unknown(matcher.example.results, loaded)
        if form == "json":
            records = [
                {
                    "scope": m.anchor.graph.path if m.anchor.graph is not None else "",
                    "results": [v.name for v in m.results],
                    "nodes": {
                        name: {
                            "op": n.op,
                            "name": n.name,
                            "outputs": [v.name if v is not None else "" for v in n.outputs],
                        }
                        for name, n in m.nodes.items()
                    },
                    "values": {name: v.name if v is not None else None for name, v in m.values.items()},
                }
                for m in found
            ]
            say_all(json_text(records))
        else:
            if found and loaded.node_count() <= _LARGE:
                infer(loaded)  # for the shapes that are shown
            say_lines(_lines(found))
            say(f"{model}: {counted(len(found), 'match')}")
    if not found:
        sys.exit(1)


def _lines(found: Sequence[SubgraphMatch]) -> Iterator[str]:
    from onnxopt.graph.text import node_text

    for i, m in enumerate(found, 1):
        scope = m.anchor.graph.path if m.anchor.graph is not None else ""
        yield f"{i}. {scope}: {', '.join(v.name for v in m.results)}"
        for node in dict.fromkeys(reversed([n for n, _ in m.bindings.covered])):
            yield f"   {node_text(node)}"
