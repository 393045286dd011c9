"""`onnxopt find MODEL PATTERN`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from onnxopt.cli.files import json_text
from onnxopt.cli.say import say, say_all
from onnxopt.errors import UsageError


@click.command(epilog="Exit codes: 0 something was found, 1 nothing was, 2 wrong usage or unreadable input.")
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@click.argument("pattern", metavar="PATTERN|@FILE")
@click.option("--match-outputs", is_flag=True, help="Only matches whose results are outputs of their graph.")
@click.option("--overlapping", is_flag=True, help="Also matches that share nodes with an earlier one.")
@click.option("--ignore-literals", is_flag=True, help="Do not compare attributes and constants.")
@click.option("--exact", is_flag=True, help="Attributes that are not written have their defaults.")
@click.option("--single-use", is_flag=True, help="Results in between are used nowhere else.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def find(
    model: Path,
    pattern: str,
    match_outputs: bool,
    overlapping: bool,
    ignore_literals: bool,
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
    from onnxopt.analysis.types import infer
    from onnxopt.graph.text import node_text
    from onnxopt.io import blaming, load
    from onnxopt.rewriting import SubgraphMatcher

    if pattern.startswith("@"):
        try:
            pattern = Path(pattern[1:]).read_text()
        except OSError as e:
            raise UsageError(f"{pattern[1:]}: {e.strerror or e}", "name a file that holds a pattern") from None
    matcher = SubgraphMatcher(
        pattern,
        match_outputs=match_outputs,
        overlapping=overlapping,
        ignore_literals=ignore_literals,
        exact=exact,
        shared=not single_use,
    )
    with blaming(model):
        loaded = load(model)
        found = matcher.match(loaded)
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
            if found:
                infer(loaded)  # for the shapes that are shown
            for i, m in enumerate(found, 1):
                scope = m.anchor.graph.path if m.anchor.graph is not None else ""
                say(f"{i}. {scope}: {', '.join(v.name for v in m.results)}")
                for node in dict.fromkeys(reversed([n for n, _ in m.bindings.covered])):
                    say(f"   {node_text(node)}")
            say(f"{model}: {len(found):,} match{'es' if len(found) != 1 else ''}")
    if not found:
        sys.exit(1)
