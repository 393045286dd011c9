"""The report of one optimization in a terminal: passes, rules, what was declined, the verdict."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text


def print_report(report: dict[str, Any], verbose: int = 0) -> None:
    """Print the report of `api.Report.to_dict()` to stdout."""
    console = Console(highlight=False, soft_wrap=False)
    console.print(render(report, verbose))


def render(report: dict[str, Any], verbose: int = 0) -> RenderableType:
    pipeline = report["pipeline"]
    parts: list[RenderableType] = []
    if any(p["nodes"] or _hits(p) for p in pipeline["passes"]):
        parts.append(_passes(pipeline, verbose))
    if verbose:
        declined = _declined(pipeline)
        if declined is not None:
            parts.append(declined)
    parts.append(_summary(report))
    parts.append(_verdict(report.get("verification"), pipeline))
    return Group(*parts)


def _hits(p: dict[str, Any]) -> int:
    return sum(r["hits"] for r in p["rules"].values())


def _passes(pipeline: dict[str, Any], verbose: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("pass", no_wrap=True)
    for heading in ("rewrites", "nodes", "ms"):
        table.add_column(heading, justify="right")
    for p in pipeline["passes"]:
        hits = _hits(p)
        if not hits and not p["nodes"] and not verbose:
            continue
        style = "" if hits or p["nodes"] else "dim"
        table.add_row(p["name"], f"{hits:,}" if hits else "", _delta(-p["nodes"]), f"{p['seconds'] * 1e3:,.0f}", style=style)
        if verbose:
            for name, rule in p["rules"].items():
                if rule["hits"]:
                    table.add_row(f"  {name}", f"{rule['hits']:,}", "", "", style="dim")
    return table


def _delta(n: int) -> str:
    if not n:
        return ""
    return f"[green]-{-n:,}[/]" if n < 0 else f"[red]+{n:,}[/]"


def _declined(pipeline: dict[str, Any]) -> Table | None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="declined", title_justify="left", title_style="bold")
    table.add_column("rule", no_wrap=True)
    table.add_column("why")
    table.add_column("times", justify="right")
    table.add_column("for example", style="dim", overflow="fold")
    for p in pipeline["passes"]:
        for name, rule in p["rules"].items():
            for reason, (count, example) in rule["declined"].items():
                table.add_row(name, reason, f"{count:,}", escape(example))
    return table if table.rows else None


def _summary(report: dict[str, Any]) -> Text:
    pipeline = report["pipeline"]
    before, after = pipeline["nodes_before"], pipeline["nodes_after"]
    share = f" ({(after - before) / before:+.0%})" if before and after != before else ""
    text = Text()
    text.append(report["destination"] or report["source"], style="bold")
    text.append(": ")
    text.append(f"{before:,} → {after:,} nodes{share}" if after != before else f"{after:,} nodes, unchanged")
    text.append(f", {_size(report['bytes_before'])} → {_size(report['bytes_after'])}")
    text.append(f", {report['seconds']:.2f} s", style="dim")
    return text


def _size(n: int) -> str:
    size = float(n)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


_MARKS = {
    "equal": ("✓", "green", "verified"),
    "inconclusive": ("?", "yellow", "verification is inconclusive"),
    "unverified": ("!", "yellow", "not verified"),
    "different": ("✗", "bold red", "DIFFERENT"),
}


def _verdict(verification: dict[str, Any] | None, pipeline: dict[str, Any]) -> Text:
    if verification is None:
        if any(_hits(p) for p in pipeline["passes"]):
            return Text("! not verified: --no-verify", style="yellow")
        return Text("nothing to do: the bytes are the same", style="dim")
    mark, style, word = _MARKS[verification["status"]]
    text = Text(f"{mark} {word}", style=style)
    text.append(f": {verification['message']}", style="default")
    if verification["status"] != "equal" and verification.get("hint"):
        text.append(f"\n  {verification['hint']}", style="dim")
    return text
