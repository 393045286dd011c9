"""Bars by operator, the passes in time, rewrites of each pass, and declined rules; the table for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from onnxopt.plaintext import cleaned, counted
from onnxopt.reporting.html.markup import Markup, join, link, num, panel, row, table, tag
from onnxopt.reporting.plain import change, left_out, pass_hits, reasons, statistics, summary, verdict, warnings
from onnxopt.reporting.stats_text import exact

Row = tuple[Any, ...]  # an operator, and its count in each model

_MAX_OPERATORS: Final = 14  # operators that changed, before the rest is folded


def operators(data: dict[str, Any]) -> Markup:
    """Return counts of operators, for two models with the largest change first and unchanged ones folded."""
    counts = [stats["operators"] for stats in data["stats"]]
    widest = max([1, *(n for of_a_model in counts for n in of_a_model.values())])
    rows: list[Row] = [(op, *(found.get(op, 0) for found in counts)) for op in {**counts[0], **counts[-1]}]
    changed = sorted((r for r in rows if r[1] != r[-1]), key=lambda r: (-abs(r[-1] - r[1]), r[0]))
    same = sorted((r for r in rows if r[1] == r[-1]), key=lambda r: (-r[1], r[0]))
    if len(counts) == 1:
        bars = _bars(same, widest) if same else tag("p", "None.", class_="none")
        return panel("Operators", None, bars, id="operators")
    none = tag("p", "No operator changed its count.", class_="none")
    return panel(
        "Operators",
        join(tag("span", "before", class_="key was"), tag("span", "after", class_="key")),
        _bars(changed, widest, "that changed") if changed else none,
        tag("details", tag("summary", f"{len(same)} unchanged"), _counted(same, widest)) if same else None,
        id="operators",
    )


def _bars(rows: Sequence[Row], widest: int, what: str = "") -> Markup:
    """Return the first operators, and all others folded; `what`: a description of the others."""
    rest = rows[_MAX_OPERATORS:]
    title = f"{len(rest)} more {what}".rstrip()
    more = tag("details", tag("summary", title), _counted(rest, widest)) if rest else None
    return join(_counted(rows[:_MAX_OPERATORS], widest), more)


def _counted(rows: Sequence[Row], widest: int) -> Markup:
    """Return a bar and a figure for each model, and the difference of two models."""
    body = [
        row(
            op,
            tag("td", *(tag("i", style=f"width:{n / widest:.2%}") for n in counts), class_="twin", aria_hidden="true"),
            *(num(exact(n)) for n in counts),
            *(_signed(b - a, f"{b - a:+,}") for a, b in pairwise(counts)),
        )
        for op, *counts in rows
    ]
    named = ("before", "after", "change") if len(rows[0]) > 2 else ("nodes",)
    return table(["operator", tag("td", aria_hidden="true"), *named], body, named)


def timeline(data: dict[str, Any]) -> Markup:
    """Return a lane for each pass with rewrites, over the time of the run, below the number of nodes."""
    report, times = data["history"]["report"], data["times"]
    runs = data["history"]["timeline"]
    pipeline = report["pipeline"]
    worked = [p["name"] for p in pipeline["passes"] if pass_hits(p) or p["nodes"]]
    told = f"{counted(len(runs), 'run')} of {counted(len(pipeline['passes']), 'pass')}{'' if times else ', in order'}"
    content = [_lanes(runs, worked, pipeline["nodes_before"], times)] if runs else []
    if not runs:
        told = "the report has no timeline; a newer onnxopt writes one"
    if times and sum(report["phases"].values()) > 0:
        content.insert(0, _phases(report["phases"]))
    return panel("Timeline", told, *content, id="timeline")


def _phases(phases: dict[str, float]) -> Markup:
    whole = sum(phases.values())
    parts = [tag("i", style=f"width:{s / whole:.2%}", title=f"{name} {s * 1e3:,.0f} ms") for name, s in phases.items()]
    text = " · ".join(f"{name} {s * 1e3:,.0f} ms" for name, s in phases.items())
    return join(tag("div", *parts, class_="phases", aria_hidden="true"), tag("p", text, class_="none"))


def _lanes(runs: list[dict[str, Any]], worked: list[str], nodes: int, times: bool) -> Markup:
    starts = [r["start"] if times else float(i) for i, r in enumerate(runs)]
    lengths = [r["seconds"] if times else 0.9 for r in runs]
    whole = max((s + n for s, n in zip(starts, lengths)), default=0) or 1.0
    lanes: dict[str, list[Markup]] = {name: [] for name in worked}
    spent: dict[str, float] = {}
    rest: list[Markup] = []
    before = nodes
    for run, start, length in zip(runs, starts, lengths):
        mark = _mark(run, start / whole, length / whole, times, did=run["nodes"] != before)
        name = run["name"] if run["name"] in lanes else ""
        (lanes[name] if name else rest).append(mark)
        spent[name] = spent.get(name, 0) + run["seconds"]
        before = run["nodes"]
    rows = [_lane(name, marks, spent.get(name, 0), times) for name, marks in lanes.items()]
    if rest:
        rows.append(_lane("others" if rows else "all passes", rest, spent.get("", 0), times))
    return tag("div", _curve(runs, starts, lengths, whole, nodes), *rows, class_="lanes")


def _mark(run: dict[str, Any], start: float, length: float, times: bool, *, did: bool) -> Markup:
    """Return the mark of a run of a pass. `start`, `length`: shares of the whole time; `did`: it changed nodes."""
    took = f", {run['seconds'] * 1e3:,.1f} ms" if times else ""
    title = f"{run['name']}: {counted(run['nodes'], 'node')} left{took}"
    place = f"left:min({start:.3%},100% - 3px);width:{length:.3%}"
    return tag("i", style=place, title=title, class_="did" if did else None)


def _lane(name: str, marks: list[Markup], seconds: float, times: bool) -> Markup:
    told = f"{seconds * 1e3:,.0f} ms" if times else f"{len(marks):,} ×"
    track = tag("span", *marks, class_="track")
    return tag("div", tag("span", name, title=name), track, tag("span", told), class_="lane")


def _curve(runs: list[dict[str, Any]], starts: list[float], lengths: list[float], whole: float, nodes: int) -> Markup:
    """Return the number of nodes over time, as steps."""
    most = max([nodes, 1, *(r["nodes"] for r in runs)])

    def y(n: int) -> str:
        return f"{100 - 96 * n / most:.1f}"

    path = [f"M0 100V{y(nodes)}"]
    path += [f"H{(s + n) / whole * 1000:.1f}V{y(r['nodes'])}" for r, s, n in zip(runs, starts, lengths)]
    drawn = tag("path", d="".join(path) + "H1000V100Z")
    last = runs[-1]["nodes"] if runs else nodes
    label = f"{counted(nodes, 'node')} at first, {last:,} at last"
    picture = tag("svg", drawn, viewBox="0 0 1000 100", preserveAspectRatio="none", role="img", aria_label=label)
    track = tag("span", picture, class_="track")
    return tag("div", tag("span", "nodes"), track, tag("span", f"{nodes:,} → {last:,}"), class_="lane curve")


def passes(data: dict[str, Any]) -> Markup:
    """Return a row for each pass with rewrites, with its rules, and the names of all remaining passes."""
    pipeline, times = data["history"]["report"]["pipeline"], data["times"]
    did = [p for p in pipeline["passes"] if pass_hits(p) or p["nodes"] or statistics(p)]
    idle = [p["name"] for p in pipeline["passes"] if p not in did]
    told = "the optimization was run again for this page" if data["history"]["repeated"] else "as recorded"
    skipped = [f"{name}: {why}" for name, why in pipeline["skipped"].items()]
    longest = max((p["seconds"] for p in did), default=0) or 1.0
    head = ["pass", "runs", "rewrites", "nodes", "bytes of constants", *(["time"] if times else [])]
    rows = [line for p in did for line in _pass(p, longest, times)]
    return panel(
        "Passes",
        told,
        table(head, rows, head[1:]) if did else tag("p", "No pass changed anything.", class_="none"),
        _aside(f"{len(idle)} found nothing to do", idle),
        _aside(f"{len(skipped)} did not run", skipped),
        id="passes",
    )


def _aside(title: str, texts: list[str]) -> Markup | None:
    return tag("details", tag("summary", title), tag("p", ", ".join(texts), class_="none")) if texts else None


def _pass(p: dict[str, Any], longest: float, times: bool) -> list[Markup]:
    meter = tag("span", tag("i", style=f"width:{p['seconds'] / longest:.1%}"), class_="meter", aria_hidden="true")
    time = num(f"{p['seconds'] * 1e3:,.1f} ms", meter) if times else None
    nodes, saved = _signed(-p["nodes"], f"{-p['nodes']:+,}"), _signed(-p["bytes"], change(-p["bytes"]))
    rows = [row(p["name"], num(exact(p["runs"])), num(exact(pass_hits(p))), nodes, saved, time)]
    for name, rule in p["rules"].items():
        if rule["hits"]:
            removed = num(f"{-rule['nodes']:+,}" if rule["nodes"] else "")
            empty = tag("td"), tag("td") if times else None
            rows.append(row(name, tag("td"), num(exact(rule["hits"])), removed, *empty, style="rule"))
    return rows


def _signed(n: int, text: str) -> Markup:
    return tag("td", text if n else "", class_=f"num {'less' if n < 0 else 'more'}")


def declined(data: dict[str, Any]) -> Markup:
    """Return each reason with its count and an example node."""
    spots = data["examples"]
    found = reasons(data["history"]["report"]["pipeline"]["passes"])
    rows = [
        row(rule, tag("td", why), num(exact(n)), tag("td", link(at, spots.get(at))), class_="mono", title=name)
        for name, rule, why, at, n in sorted(found, key=lambda r: (-r[4], *r[1:3]))
    ]
    heads = ("rule", "why not", "times", "for example")
    listed = table(heads, rows, ["times"], "scroll stacked") if rows else None
    none = tag("p", "No rule declined anything.", class_="none")
    return panel("Declined", "where a rule's pattern matched, but a guard said no", listed or none, id="declined")


def notebook(report: dict[str, Any]) -> Markup:
    """Return the summary, the verdict, and the rewrites of each pass, from `Report.to_dict()`."""
    report = cleaned(report)
    lines = [*verdict(report), *left_out(report["rolled_back"], matched=True), *warnings(report)]
    did = [p for p in report["pipeline"]["passes"] if pass_hits(p) or p["nodes"]]
    figures = ((p["name"], exact(pass_hits(p)), f"{-p['nodes']:+,}", f"{p['seconds'] * 1e3:,.0f} ms") for p in did)
    rows = [tag("tr", *(tag("td", figure) for figure in cells)) for cells in figures]
    done = table(("pass", "rewrites", "nodes", "time"), rows) if rows else None
    return tag("div", tag("p", tag("b", summary(report))), *(tag("p", line) for line in lines), done)
