"""`onnxopt stats` in a terminal: one model, or two side by side with what changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from onnxopt.report.plain import size

if TYPE_CHECKING:
    from onnxopt.analysis.cost import ModelStats

Row = tuple[str, float, float]


def totals(a: ModelStats, b: ModelStats) -> Iterator[tuple[str, float, float, bool]]:
    """(what, before, after, whether it is in bytes)."""
    yield "nodes", a.nodes, b.nodes, False
    yield "operator types", len(a.operators), len(b.operators), False
    yield "initializers", a.initializers, b.initializers, False
    yield "functions", a.functions, b.functions, False
    yield "parameters", a.parameters, b.parameters, False
    yield "bytes in memory", sum(a.bytes_by_type.values()), sum(b.bytes_by_type.values()), True
    yield "bytes on disk", a.file_bytes, b.file_bytes, True


def operators(a: ModelStats, b: ModelStats) -> list[Row]:
    """Operator counts, the largest decrease first, then those that stayed, by count."""
    names = sorted({*a.operators, *b.operators})
    rows = [(name, a.operators.get(name, 0), b.operators.get(name, 0)) for name in names]
    return sorted(rows, key=lambda r: (r[2] - r[1] == 0, r[2] - r[1] if r[2] != r[1] else -r[2]))


def one(stats: ModelStats) -> RenderableType:
    """Table of one model."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("operator")
    table.add_column("nodes", justify="right")
    for name, count in stats.operators.items():
        table.add_row(name, f"{count:,}")
    table.add_section()
    for what, value, _, in_bytes in totals(stats, stats):
        if value or what != "functions":
            table.add_row(what, size(value) if in_bytes else f"{value:,.0f}", style="bold" if what == "nodes" else "")
    return Group(_head(stats), table)


def diff(a: ModelStats, b: ModelStats) -> RenderableType:
    """Table of what changed from `a` to `b`."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("operator")
    for heading in ("before", "after", "change", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, before, after in operators(a, b):
        _add(table, name, before, after, False)
    table.add_section()
    for what, before, after, in_bytes in totals(a, b):
        if before or after or what != "functions":
            _add(table, what, before, after, in_bytes)
    return Group(_head(a), _head(b), table)


def _head(stats: ModelStats) -> Text:
    opsets = ", ".join(f"{d} {v}" for d, v in stats.opsets.items())
    return Text.assemble((stats.path, "bold"), (f"  IR {stats.ir_version}, {opsets}", "dim"))


def _add(table: Table, name: str, before: float, after: float, in_bytes: bool) -> None:
    def show(n: float) -> str:
        return size(n) if in_bytes else f"{n:,.0f}"

    change = after - before
    if not change:
        table.add_row(name, show(before), show(after), "", "", style="dim")
        return
    colour = "green" if change < 0 else "red"
    sign = "-" if change < 0 else "+"
    share = f"{change / before:+.0%}" if before else "new"
    table.add_row(name, show(before), show(after), f"[{colour}]{sign}{show(abs(change))}[/]", f"[{colour}]{share}[/]")


def markdown(a: ModelStats, b: ModelStats | None = None) -> str:
    """The same as a Markdown table, for a pull request."""
    if b is None:
        rows = [f"| {name} | {count:,} |" for name, count in a.operators.items()]
        rows += [f"| **{what}** | {size(n) if bytes_ else f'{n:,.0f}'} |" for what, n, _, bytes_ in totals(a, a)]
        return "\n".join([f"**{a.path}**", "", "| operator | nodes |", "|---|---:|", *rows])
    rows = [f"| {n} | {x:,.0f} | {y:,.0f} | {y - x:+,.0f} |" for n, x, y in operators(a, b)]
    for what, x, y, bytes_ in totals(a, b):
        sign = "-" if y < x else "+"
        cells = (size(x), size(y), sign + size(abs(y - x))) if bytes_ else (f"{x:,.0f}", f"{y:,.0f}", f"{y - x:+,.0f}")
        rows.append(f"| **{what}** | {' | '.join(cells)} |")
    return "\n".join(["| operator | before | after | change |", "|---|---:|---:|---:|", *rows])
