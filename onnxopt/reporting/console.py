"""The report of an optimization in a terminal: passes, rules, declined matches, the verdict."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from onnxopt.plaintext import cleaned
from onnxopt.reporting import kept, places, verdict
from onnxopt.reporting.fitting import Fitting, Text
from onnxopt.reporting.plain import change, declined, on_request, pass_hits, statistics, summary, warnings, without_work
from onnxopt.reporting.plain import verdict as outcome
from onnxopt.reporting.terminal import show

STYLES: Final = {
    **dict.fromkeys(("equal", "verified", "verified in pieces"), "green"),
    **dict.fromkeys(("within rounding noise", "inconclusive", "not verified"), "yellow"),
    **dict.fromkeys(("loads without optimizations only", "different"), "bold red"),
}


def print_report(report: dict[str, Any], verbose: int) -> None:
    """Print the report of `api.Report.to_dict()` to stdout."""
    show(render(cleaned(report), verbose))


def print_details(report: dict[str, Any], verbose: int, title: str) -> None:
    """Print the rewrites of the passes, without the result."""
    parts = [Text(title, style="bold")] if title else []
    show(Group(*parts, *_details(cleaned(report), verbose)))


def _details(report: dict[str, Any], verbose: int) -> list[RenderableType]:
    pipeline = report["pipeline"]
    parts: list[RenderableType] = []
    if any(p["nodes"] or pass_hits(p) or statistics(p) for p in pipeline["passes"]):
        parts.append(Fitting([_passes(pipeline, verbose), _passes(pipeline, verbose, close=True)]))
    parts += [Text(line, "dim") for line in without_work(pipeline, verbose)]
    parts += [Text(line, "dim") for line in on_request(report, verbose)]
    if verbose and (lines := [line for p in pipeline["passes"] for line in declined(p)]):
        listed = Group(Text("declined", "bold"), *(Text(line) for line in lines))
        parts.append(Fitting([_declined(pipeline)], least=28, otherwise=listed))
    return parts


def render(report: dict[str, Any], verbose: int = 0) -> RenderableType:
    parts = _details(report, verbose)
    if not verbose:
        parts += [Text(line, "yellow") for line in kept.lines(report)]
    parts += [Text(line, "yellow") for line in warnings(report)]
    name, _, rest = summary(report).partition(": ")
    parts.append(Text.assemble((name, "bold"), ": ", rest))
    found = report.get("verification")
    parts += told(found, verbose, seen=verbose > 0) if found else [Text(line, "dim") for line in outcome(report)]
    return Group(*parts)


def told(found: dict[str, Any], verbose: int = 0, *, seen: bool = False) -> list[RenderableType]:
    """Returns a verdict with its places; `seen`: with the figures of the compared pieces."""
    style = STYLES[found["status"]]
    parts: list[RenderableType] = []
    if seen and (table := _grid(verdict.grouped(verdict.figures(found)))).rows:
        parts.append(table)
    parts.append(Text(f"{verdict.MARKS[found['status']][0]} {verdict.sentence(found)}", style))
    for place in places.shown(found, verbose):
        where = Text.assemble((places.value(place), "bold"), ": ", (places.difference(place), style))
        parts.append(Padding(_grid([("at", where)], gap=1), (0, 0, 0, 2)))
        parts.append(Padding(_grid(places.rows(place, verbose)), (0, 0, 0, 4)))
    parts += [Padding(Text(text, "dim"), (0, 0, 0, 2)) for text in (places.more(found, verbose), found["hint"]) if text]
    return parts


def _grid(rows: Iterable[tuple[str, RenderableType]], gap: int = 2) -> Table:
    """Returns labels with their texts; long texts wrap below the text column."""
    grid = Table.grid(padding=(0, gap, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for label, text in rows:
        grid.add_row(label, Text(text) if isinstance(text, str) else text)
    return grid


def _passes(pipeline: dict[str, Any], verbose: int, *, close: bool = False) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0 if close else 1))
    table.add_column("pass", no_wrap=True)
    for heading in ("rewrites", "nodes", *(["bytes"] if verbose else []), "ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for p in pipeline["passes"]:
        hits, counted = pass_hits(p), statistics(p)
        if not hits and not p["nodes"] and not counted:
            continue
        style = "" if hits or p["nodes"] else "dim"
        saved = [change(-p["bytes"])] if verbose else []
        row = (p["name"], f"{hits:,}" if hits else "", _delta(-p["nodes"]), *saved, f"{p['seconds'] * 1e3:,.0f}")
        table.add_row(*row, style=style)
        for what, n in counted.items():
            table.add_row(f"  {what} counted: {n:,}", style="dim")
        if verbose and not counted:
            for name, rule in p["rules"].items():
                if rule["hits"]:
                    table.add_row(f"  {name}", f"{rule['hits']:,}", _delta(-rule["nodes"]), "", "", style="dim")
    return table


def _delta(n: int) -> Text:
    return Text(f"{n:+,}" if n else "", "green" if n < 0 else "red")


def _declined(pipeline: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="declined", title_justify="left", title_style="bold")
    table.add_column("rule", no_wrap=True)
    table.add_column("why")
    table.add_column("times", justify="right")
    table.add_column("for example", style="dim", overflow="fold")
    for p in pipeline["passes"]:
        for name, rule in p["rules"].items():
            for reason, d in rule["declined"].items():
                table.add_row(name, reason, f"{d['count']:,}", d["example"])
    return table
