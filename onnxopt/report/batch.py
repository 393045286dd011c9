"""What came of many models: lines for logs, a table for terminals, markdown for pull requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from onnxopt.report.plain import MARKS, left_out, size

MARK: Final = {"failed": "✗", "would change": "!"}


def line(outcome: dict[str, Any]) -> str:
    """One line for an outcome (`batch.Outcome.to_dict()`)."""
    name = outcome["destination"] or outcome["source"]
    if outcome["report"] is None:
        return f"✗ {outcome['message'] or outcome['source']}"
    parts = [f"{mark(outcome)} {name}: {nodes(outcome)}, {sizes(outcome)}, {outcome['status']}"]
    parts += [outcome["message"]] if outcome["message"] else [verdict(outcome), note(outcome)]
    return ", ".join(p for p in parts if p)


def mark(outcome: dict[str, Any]) -> str:
    return MARK.get(outcome["status"], "!" if outcome["code"] else "✓")


def nodes(outcome: dict[str, Any]) -> str:
    """222 → 100 nodes (-55%)."""
    report = outcome["report"]
    before, after = report["pipeline"]["nodes_before"], report["pipeline"]["nodes_after"]
    if before == after:
        return f"{before:,} nodes"
    return f"{before:,} → {after:,} nodes ({(after - before) / before:+.0%})" if before else f"{after:,} nodes"


def sizes(outcome: dict[str, Any]) -> str:
    report = outcome["report"]
    before, after = size(report["bytes_before"]), size(report["bytes_after"])
    return before if before == after else f"{before} → {after}"


def verdict(outcome: dict[str, Any]) -> str:
    """verified, not verified, … ; empty where there was nothing to verify."""
    found = outcome["report"].get("verification")
    return MARKS[found["status"]][1] if found else ""


def note(outcome: dict[str, Any]) -> str:
    """What was left out of the result; empty for most."""
    rolled_back = (outcome["report"] or {}).get("rolled_back", [])
    more = f"; and {len(rolled_back) - 1} more" if len(rolled_back) > 1 else ""
    return left_out(rolled_back[0]) + more if rolled_back else ""


def said(outcome: dict[str, Any]) -> str:
    """What is to be said of it: why it failed, what was left out, else its status."""
    return str(outcome["message"] or note(outcome) or outcome["status"])


def summary(outcomes: Sequence[dict[str, Any]]) -> str:
    """3 models: 2 optimized, 1 failed; 4,321 → 1,234 nodes (-71%)."""
    counts: dict[str, int] = {}
    for o in outcomes:
        counts[o["status"]] = counts.get(o["status"], 0) + 1
    said = ", ".join(f"{n} {status}" for status, n in counts.items())
    reports = [o["report"]["pipeline"] for o in outcomes if o["report"] is not None]
    before, after = (sum(r[f"nodes_{when}"] for r in reports) for when in ("before", "after"))
    total = f"; {before:,} → {after:,} nodes ({(after - before) / before:+.0%})" if before else ""
    return f"{len(outcomes)} model{'s' if len(outcomes) != 1 else ''}: {said}{total}"


def markdown(outcomes: Sequence[dict[str, Any]]) -> str:
    """A table as GitHub renders it."""
    rows = ["| | model | nodes | size | result | |", "|-|-|-|-|-|-|"]
    for o in outcomes:
        cells = [mark(o), f"`{o['destination'] or o['source']}`"]
        cells += [nodes(o), sizes(o)] if o["report"] is not None else ["", ""]
        cells += [o["status"], o["message"] or note(o) or (verdict(o) if o["report"] is not None else "")]
        rows.append("| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |")
    return "\n".join(["### onnxopt", "", *rows, "", summary(outcomes), ""])


def print_table(outcomes: Sequence[dict[str, Any]]) -> None:
    """A table for a terminal."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "model", "nodes", "size", "result", ""):
        table.add_column(heading, overflow="fold")
    for o in outcomes:
        style = "red" if o["status"] == "failed" or o["code"] in (1, 2, 4) else "yellow" if o["code"] else ""
        cells = [mark(o), o["destination"] or o["source"]]
        cells += [nodes(o), sizes(o)] if o["report"] is not None else ["", ""]
        cells += [o["status"], o["message"] or note(o) or (verdict(o) if o["report"] is not None else "")]
        table.add_row(*(escape(c) for c in cells), style=style)
    console = Console(highlight=False)
    console.print(table)
    console.print(summary(outcomes))
