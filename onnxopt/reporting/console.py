"""The report of an optimization, and the comparison of two models, in a terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Column, Table

from onnxopt.plaintext import cleaned, short
from onnxopt.reporting import plain, verdict
from onnxopt.reporting.terminal import Fitting, Name, Text, figures, grid, show, table, whole
from onnxopt.reporting.verdict import counts, has_figures, kind, output_label, tolerances

STYLES: Final = {
    **dict.fromkeys(("equal", "verified", "verified in pieces"), "green"),
    **dict.fromkeys(("within rounding noise", "inconclusive", "not verified"), "yellow"),
    **dict.fromkeys(("loads without optimizations only", "different"), "bold red"),
}


def print_details(report: dict[str, Any], verbose: int, title: str) -> None:
    """Print the rewrites of the passes, without the result."""
    parts = [Text(title, style="bold")] if title else []
    show(Group(*parts, *_details(cleaned(report), verbose)))


def _details(report: dict[str, Any], verbose: int) -> list[RenderableType]:
    pipeline = report["pipeline"]
    parts: list[RenderableType] = []
    if any(map(_is_shown, pipeline["passes"])):
        parts.append(Fitting([_passes(pipeline, verbose), _passes(pipeline, verbose, close=True)]))
    parts += [Text(line, "dim") for line in plain.without_work(pipeline, verbose)]
    parts += [Text(line, "dim") for line in plain.on_request(report, verbose)]
    if verbose and (lines := [line for p in pipeline["passes"] for line in plain.declined(p)]):
        listed = Group(Text("declined", "bold"), *(Text(line) for line in lines))
        parts.append(Fitting([_declined(pipeline)], least=28, otherwise=listed))
    return parts


def print_report(report: dict[str, Any], verbose: int) -> None:
    """Print the report of `api.Report.to_dict()` to stdout."""
    report = cleaned(report)
    parts = _details(report, verbose)
    if not verbose:
        parts += [Text(line, "yellow") for line in plain.kept_lines(report)]
    parts += [Text(line, "yellow") for line in plain.warnings(report)]
    name, _, rest = plain.summary(report).partition(": ")
    parts.append(Text.assemble((name, "bold"), ": ", rest))
    if found := report.get("verification"):
        parts += verdict_parts(found, verbose, seen=verbose > 0)
    else:
        parts += [Text(line, "dim") for line in plain.verdict(report)]
    show(Group(*parts))


def verdict_parts(found: dict[str, Any], verbose: int = 0, *, seen: bool = False) -> list[RenderableType]:
    """Return a verdict with its places; `seen`: with the figures of the compared pieces."""
    style = STYLES[found["status"]]
    parts: list[RenderableType] = []
    if seen and (rows := list(verdict.grouped(verdict.figures(found)))):
        parts.append(grid(rows))
    parts.append(Text(f"{verdict.MARKS[found['status']][0]} {verdict.sentence(found)}", style))
    for place in verdict.shown(found, verbose):
        where = Text.assemble((verdict.value(place), "bold"), ": ", (verdict.difference(place), style))
        parts.append(Padding(grid([("at", where)], gap=1), (0, 0, 0, 2)))
        parts.append(Padding(grid(verdict.rows(place, verbose)), (0, 0, 0, 4)))
    parts += [
        Padding(Text(text, "dim"), (0, 0, 0, 2)) for text in (verdict.more(found, verbose), found["hint"]) if text
    ]
    return parts


def _is_shown(p: dict[str, Any]) -> bool:
    """Return whether a pass changed or counted something."""
    return bool(p["nodes"] or plain.pass_hits(p) or plain.statistics(p))


def _passes(pipeline: dict[str, Any], verbose: int, *, close: bool = False) -> Table:
    heads = ("rewrites", "nodes", *(["bytes"] if verbose else []), "ms")
    made = table(*whole("pass"), *figures(*heads), padding=(0, 0 if close else 1))
    for p in filter(_is_shown, pipeline["passes"]):
        counted, hits = plain.statistics(p), plain.pass_hits(p)
        saved = [plain.change(-p["bytes"])] if verbose else []
        row = (p["name"], f"{hits:,}" if hits else "", _delta(-p["nodes"]), *saved, f"{p['seconds'] * 1e3:,.0f}")
        made.add_row(*row, style="" if hits or p["nodes"] else "dim")
        for what, n in counted.items():
            made.add_row(f"  {what} counted: {n:,}", style="dim")
        if verbose and not counted:
            for name, rule in p["rules"].items():
                if rule["hits"]:
                    made.add_row(f"  {name}", f"{rule['hits']:,}", _delta(-rule["nodes"]), "", "", style="dim")
    return made


def _delta(n: int) -> Text:
    return Text(f"{n:+,}" if n else "", "green" if n < 0 else "red")


def _declined(pipeline: dict[str, Any]) -> Table:
    times, example = Column("times", justify="right"), Column("for example", style="dim", overflow="fold")
    rows = ((rule, why, f"{count:,}", node) for _, rule, why, node, count in plain.reasons(pipeline["passes"]))
    return table(
        *whole("rule"), "why", times, example, rows=rows, title="declined", title_justify="left", title_style="bold"
    )


_MAX_OUTPUTS: Final = 8  # outputs of a case, where none differs
_DIM: Final = 24  # characters of a dim and its size
_FIGURES: Final = ("type", "max abs", "max rel", "cosine", "ulp", "NaN", "Inf")
_DROPPED_FIRST: Final = ("ulp", "cosine", "NaN", "Inf", "type", "max abs")  # first on a narrow terminal
_CASE_STYLES: Final = {"different": "bold red", "not verified": "yellow", "skipped": "dim"}


def print_comparison(found: dict[str, Any], verbose: int) -> None:
    """Print the record of `verification.Comparison.to_dict()` to stdout."""
    found = cleaned(found)
    parts: list[RenderableType] = []
    if any(c["outputs"] for c in found["cases"]):
        parts.append(Fitting([_table(found, _DROPPED_FIRST[:n]) for n in range(len(_DROPPED_FIRST) + 1)]))
    for case in found["cases"]:
        if case["note"]:
            parts.append(Text(f"{case['name']}: {case['status']}: {case['note']}", _CASE_STYLES[case["status"]]))
    parts += [Text(line, "dim") for line in tolerances(found)]
    show(Group(*parts, *verdict_parts(found, verbose, seen=True)))


def _table(found: dict[str, Any], left_out: Collection[str] = ()) -> Table:
    shown = [heading for heading in _FIGURES if heading not in left_out]
    types = [heading for heading in shown if heading == "type"]
    made = table(
        *whole("case"), "output", *whole(*types, style="dim"), *figures(*(h for h in shown if h not in types)), ""
    )
    for case in found["cases"]:
        _add_case(made, case, shown)
    return made


def _add_case(table: Table, case: dict[str, Any], figured: Sequence[str]) -> None:
    shown, rest = _worst(case["outputs"])
    name = case["name"] + "".join(f"\n  {short(f'{k}={v}', _DIM)}" for k, v in case["dims"].items())
    for i, o in enumerate(shown):
        said = _cells(o)
        cells = [Text(said[heading]) for heading in figured]
        mark = Text("✓", "green") if o["ok"] else Text(f"✗ {o['note']}", "bold red")
        table.add_row(Text("" if i else name), Name(output_label(o)), *cells, mark)
    if rest:
        table.add_row("", Text(f"and {len(rest)} more, closer than these", "dim"))


def _cells(o: dict[str, Any]) -> dict[str, str]:
    """Return the cells of an output, by heading."""
    cells = dict.fromkeys(_FIGURES, "") | {"type": kind(o)}
    if has_figures(o):
        cells |= {"max abs": f"{o['max_abs']:.1e}", "max rel": f"{o['max_rel']:.1e}"}
    if o["cosine"] is not None:
        cells["cosine"] = f"{o['cosine']:.6f}"
    if o["ulp"] is not None:
        cells["ulp"] = f"{o['ulp']:,}"
    if o["rtol"] is not None:
        cells |= {"NaN": counts(o["nan"]), "Inf": counts(o["inf"])}
    return cells


def _worst(outputs: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return (all different outputs and the largest differences, other outputs), in the model's order."""
    ranked = sorted(range(len(outputs)), key=lambda i: (outputs[i]["ok"], -outputs[i]["max_rel"]))
    count = max(_MAX_OUTPUTS, sum(not o["ok"] for o in outputs))
    return [outputs[i] for i in sorted(ranked[:count])], [outputs[i] for i in ranked[count:]]
