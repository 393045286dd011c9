"""The report of an optimization as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxopt.plaintext import cleaned
from onnxopt.reporting.html.markup import Markup, tag
from onnxopt.reporting.plain import left_out, pass_hits, summary, verdict, warnings


def table(report: dict[str, Any]) -> Markup:
    """Returns the summary, the verdict, and the rewrites of each pass, from `Report.to_dict()`."""
    report = cleaned(report)
    lines = [*verdict(report), *left_out(report["rolled_back"], matched=True), *warnings(report)]
    did = [p for p in report["pipeline"]["passes"] if pass_hits(p) or p["nodes"]]
    rows = [(p["name"], f"{pass_hits(p):,}", f"{-p['nodes']:+,}", f"{p['seconds'] * 1e3:,.0f} ms") for p in did]
    return tag(
        "div",
        tag("p", tag("b", summary(report))),
        *(tag("p", line) for line in lines),
        tag(
            "table",
            tag("thead", _row("th", ("pass", "rewrites", "nodes", "time"))),
            tag("tbody", *(_row("td", row) for row in rows)),
        )
        if rows
        else None,
    )


def _row(kind: str, cells: Sequence[str]) -> Markup:
    return tag("tr", *(tag(kind, cell) for cell in cells))
