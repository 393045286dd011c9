"""`onnxopt verify` in a terminal."""

from __future__ import annotations

from typing import Any, Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from onnxopt.plaintext import cleaned
from onnxopt.report.comparison import counts, figures, kind, label, sizes, tolerances
from onnxopt.report.console import told
from onnxopt.report.terminal import show

_SHOWN: Final = 8  # outputs of a case, where none differs
_CASE_STYLES: Final = {"different": "bold red", "not verified": "yellow", "skipped": "dim"}


def print_comparison(found: dict[str, Any], verbose: int = 0) -> None:
    """Print the record of `verification.Comparison.to_dict()` to stdout."""
    show(render(cleaned(found), verbose))


def render(found: dict[str, Any], verbose: int = 0) -> RenderableType:
    parts: list[RenderableType] = []
    if any(c["outputs"] for c in found["cases"]):
        parts.append(_table(found))
    for case in found["cases"]:
        if case["note"]:
            parts.append(Text(f"{case['name']}: {case['status']}: {case['note']}", _CASE_STYLES[case["status"]]))
    parts += [Text(line, "dim") for line in tolerances(found)]
    parts += told(found, verbose, seen=True)
    return Group(*parts)


def _table(found: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("case", no_wrap=True)
    table.add_column("output", overflow="fold")
    table.add_column("type", overflow="fold", style="dim")
    for heading in ("max abs", "max rel", "cosine", "ulp", "NaN", "Inf"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for case in found["cases"]:
        shown, rest = _worst(case["outputs"])
        for i, o in enumerate(shown):
            cells = [f"{o['max_abs']:.1e}", f"{o['max_rel']:.1e}"] if figures(o) else ["", ""]
            cells += ["" if o["cosine"] is None else f"{o['cosine']:.6f}", "" if o["ulp"] is None else f"{o['ulp']:,}"]
            cells += [counts(o["nan"]), counts(o["inf"])] if o["rtol"] is not None else ["", ""]
            name = "" if i else case["name"] + (f"\n  {sizes(case)}" if case["dims"] else "")
            mark = Text("✓", "green") if o["ok"] else Text(f"✗ {o['note']}", "bold red")
            table.add_row(Text(name), Text(label(o)), Text(kind(o)), *cells, mark)
        if rest:
            table.add_row("", Text(f"and {len(rest)} more, closer than these", "dim"))
    return table


def _worst(outputs: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(those to show, those that are fine): all that differ, and the largest differences, in the model's order."""
    ranked = sorted(range(len(outputs)), key=lambda i: (outputs[i]["ok"], -outputs[i]["max_rel"]))
    count = max(_SHOWN, sum(not o["ok"] for o in outputs))
    return [outputs[i] for i in sorted(ranked[:count])], [outputs[i] for i in ranked[count:]]
