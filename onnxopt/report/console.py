"""The report of one optimization in a terminal: passes, rules, what was declined, the verdict."""

from __future__ import annotations

from typing import Any, Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from onnxopt.report.plain import change, pass_hits, summary, verdict

STYLES: Final = {
    **dict.fromkeys(("equal", "verified", "verified in pieces"), "green"),
    **dict.fromkeys(("within rounding noise", "inconclusive", "not verified"), "yellow"),
    "different": "bold red",
}


def print_report(report: dict[str, Any], verbose: int = 0) -> None:
    """Print the report of `api.Report.to_dict()` to stdout."""
    Console(highlight=False).print(render(report, verbose))


def print_details(report: dict[str, Any], verbose: int = 0, title: str = "") -> None:
    """Print what the passes did, without what came of it."""
    parts = [Text(title, style="bold")] if title else []
    Console(highlight=False).print(Group(*parts, *_details(report, verbose)))


def _details(report: dict[str, Any], verbose: int) -> list[RenderableType]:
    pipeline = report["pipeline"]
    parts: list[RenderableType] = []
    if any(p["nodes"] or pass_hits(p) for p in pipeline["passes"]):
        parts.append(_passes(pipeline, verbose))
    if verbose and (declined := _declined(pipeline)).rows:
        parts.append(declined)
    return parts


def render(report: dict[str, Any], verbose: int = 0) -> RenderableType:
    parts = _details(report, verbose)
    name, _, rest = summary(report).partition(": ")
    parts.append(Text.assemble((name, "bold"), ": ", rest))
    found = report.get("verification")
    line, _, hint = verdict(report).partition("\n")
    parts.append(Text(line, style=STYLES[found["status"]] if found else "dim"))
    if hint:
        parts.append(Text(hint, style="dim"))
    return Group(*parts)


def _passes(pipeline: dict[str, Any], verbose: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("pass", no_wrap=True)
    for heading in ("rewrites", "nodes", *(["bytes"] if verbose else []), "ms"):
        table.add_column(heading, justify="right")
    for p in pipeline["passes"]:
        hits = pass_hits(p)
        if not hits and not p["nodes"] and not verbose:
            continue
        style = "" if hits or p["nodes"] else "dim"
        saved = [change(-p["bytes"])] if verbose else []
        row = (p["name"], f"{hits:,}" if hits else "", _delta(-p["nodes"]), *saved, f"{p['seconds'] * 1e3:,.0f}")
        table.add_row(*row, style=style)
        if verbose:
            for name, rule in p["rules"].items():
                if rule["hits"]:
                    table.add_row(f"  {name}", f"{rule['hits']:,}", _delta(-rule["nodes"]), "", "", style="dim")
    return table


def _delta(n: int) -> str:
    if not n:
        return ""
    return f"[green]{n:,}[/]" if n < 0 else f"[red]+{n:,}[/]"


def _declined(pipeline: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="declined", title_justify="left", title_style="bold")
    table.add_column("rule", no_wrap=True)
    table.add_column("why")
    table.add_column("times", justify="right")
    table.add_column("for example", style="dim", overflow="fold")
    for p in pipeline["passes"]:
        for name, rule in p["rules"].items():
            for reason, (count, example) in rule["declined"].items():
                table.add_row(name, reason, f"{count:,}", escape(example))
    return table
