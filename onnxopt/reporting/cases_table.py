"""`onnxopt verify` in a terminal: the cases as a table."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from onnxopt.plaintext import cleaned, short
from onnxopt.reporting.cases import counts, figures, kind, label, tolerances
from onnxopt.reporting.console import told
from onnxopt.reporting.fitting import Fitting, Name, Text
from onnxopt.reporting.terminal import show

_MAX_OUTPUTS: Final = 8  # outputs of a case, where none differs
_DIM: Final = 24  # characters of a dim and its size
_FIGURES: Final = ("type", "max abs", "max rel", "cosine", "ulp", "NaN", "Inf")
_DROPPED_FIRST: Final = (
    "ulp",
    "cosine",
    "NaN",
    "Inf",
    "type",
    "max abs",
)  # what goes first where the terminal is narrow
_CASE_STYLES: Final = {"different": "bold red", "not verified": "yellow", "skipped": "dim"}


def print_comparison(found: dict[str, Any], verbose: int) -> None:
    """Print the record of `verification.Comparison.to_dict()` to stdout."""
    show(render(cleaned(found), verbose))


def render(found: dict[str, Any], verbose: int = 0) -> RenderableType:
    parts: list[RenderableType] = []
    if any(c["outputs"] for c in found["cases"]):
        parts.append(Fitting([_table(found, _DROPPED_FIRST[:n]) for n in range(len(_DROPPED_FIRST) + 1)]))
    for case in found["cases"]:
        if case["note"]:
            parts.append(Text(f"{case['name']}: {case['status']}: {case['note']}", _CASE_STYLES[case["status"]]))
    parts += [Text(line, "dim") for line in tolerances(found)]
    parts += told(found, verbose, seen=True)
    return Group(*parts)


def _table(found: dict[str, Any], left_out: Collection[str] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("case", no_wrap=True)
    table.add_column("output")
    figured = [heading for heading in _FIGURES if heading not in left_out]
    for heading in figured:
        figure = heading != "type"
        table.add_column(heading, no_wrap=True, justify="right" if figure else "left", style="" if figure else "dim")
    table.add_column("")
    for case in found["cases"]:
        shown, rest = _worst(case["outputs"])
        name = case["name"] + "".join(f"\n  {short(f'{k}={v}', _DIM)}" for k, v in case["dims"].items())
        for i, o in enumerate(shown):
            said = _cells(o)
            cells = [Text(said[heading]) for heading in figured]
            mark = Text("✓", "green") if o["ok"] else Text(f"✗ {o['note']}", "bold red")
            table.add_row(Text("" if i else name), Name(label(o)), *cells, mark)
        if rest:
            table.add_row("", Text(f"and {len(rest)} more, closer than these", "dim"))
    return table


def _cells(o: dict[str, Any]) -> dict[str, str]:
    """Returns the cells of an output, by heading."""
    cells = dict.fromkeys(_FIGURES, "") | {"type": kind(o)}
    if figures(o):
        cells |= {"max abs": f"{o['max_abs']:.1e}", "max rel": f"{o['max_rel']:.1e}"}
    if o["cosine"] is not None:
        cells["cosine"] = f"{o['cosine']:.6f}"
    if o["ulp"] is not None:
        cells["ulp"] = f"{o['ulp']:,}"
    if o["rtol"] is not None:
        cells |= {"NaN": counts(o["nan"]), "Inf": counts(o["inf"])}
    return cells


def _worst(outputs: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns (shown outputs, remaining equal outputs), in the model's order.

    Shown are all different outputs and the largest differences.
    """
    ranked = sorted(range(len(outputs)), key=lambda i: (outputs[i]["ok"], -outputs[i]["max_rel"]))
    count = max(_MAX_OUTPUTS, sum(not o["ok"] for o in outputs))
    return [outputs[i] for i in sorted(ranked[:count])], [outputs[i] for i in ranked[count:]]
