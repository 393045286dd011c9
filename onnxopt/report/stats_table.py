"""`onnxopt stats` in a terminal or as Markdown: one model, or two side by side with what changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from onnxopt.plaintext import counted
from onnxopt.report.fitting import Fitting, Name
from onnxopt.report.plain import size

if TYPE_CHECKING:
    from onnxopt.analysis.measures.cost import ModelStats

Row = tuple[str, int, int]
Cells = list[RenderableType]
Show = Callable[[int], str]

_LEAST: Final = 18  # characters for an operator's name, before a column of figures goes
_LISTED: Final = 6  # inputs and outputs shown
_FORMULAS: Final = ("=", "+", "-", "@")  # what spreadsheets run


def exact(n: int) -> str:
    return f"{n:,}"


def count(n: int) -> str:
    """Elements for people: 2,194 or 25.6 M."""
    if n < 100_000:
        return f"{n:,}"
    return f"{n / 1e9:.2f} G" if n >= 999_950_000 else f"{n / 1e6:.2f} M" if n < 9_995_000 else f"{n / 1e6:.1f} M"


def share(before: int, after: int) -> str:
    """`-70%`, `×42`; never without a sign where something changed, nor -100% where something is left."""
    if before == after:
        return ""
    if not before:
        return "new"
    ratio = after / before
    if ratio >= 9.95:
        return f"×{ratio:,.0f}"
    percent = (ratio - 1) * 100
    if after and percent < -99.5:
        return f"{max(percent, -99.9):.1f}%"
    return f"{percent:+.0f}%" if abs(percent) >= 9.5 else f"{percent:+.1f}%"


def change(before: int, after: int, show: Show = exact) -> str:
    """`-238`, `+36.1 MiB`, nothing when equal."""
    return "" if before == after else ("-" if after < before else "+") + show(abs(after - before))


def totals(a: ModelStats, b: ModelStats) -> Iterator[tuple[str, int, int, Show]]:
    """(what, before, after, how to show it); parts of the row before start with two spaces."""
    yield "nodes", a.nodes, b.nodes, exact
    inner = [sum(n for scope, n in s.nodes_by_scope.items() if scope != "main") for s in (a, b)]
    if any(inner):
        yield "  in bodies and functions", inner[0], inner[1], exact
    yield "operator types", len(a.operators), len(b.operators), exact
    yield "initializers", a.initializers, b.initializers, exact
    if a.functions or b.functions:
        yield "functions", a.functions, b.functions, exact
    yield "parameters", a.parameters, b.parameters, count
    yield "bytes in memory", sum(a.bytes_by_type.values()), sum(b.bytes_by_type.values()), size
    types = list(dict.fromkeys((*a.bytes_by_type, *b.bytes_by_type)))
    for name in types if len(types) > 1 else ():
        yield f"  {name}", a.bytes_by_type.get(name, 0), b.bytes_by_type.get(name, 0), size
    yield "bytes on disk", a.file_bytes, b.file_bytes, size
    if a.work is not None and b.work is not None:
        yield "MACs", a.work.macs, b.work.macs, count
        yield "FLOPs", a.work.flops, b.work.flops, count
        yield "peak memory", a.work.peak_bytes, b.work.peak_bytes, size


def operators(a: ModelStats, b: ModelStats) -> list[Row]:
    """Operator counts, the largest decrease first, then those that stayed, by count."""
    names = sorted({*a.operators, *b.operators})
    rows = [(name, a.operators.get(name, 0), b.operators.get(name, 0)) for name in names]
    return sorted(rows, key=lambda r: (r[2] == r[1], r[2] - r[1] or -r[2]))


# -- in a terminal ---------------------------------------------------------------------------------------


def one(stats: ModelStats) -> RenderableType:
    """Table of one model."""
    rows = [_row(name, _figures(stats, name, n)) for name, n in stats.operators.items()]
    sums = [_row(what, (show(n),), _total_style(what)) for what, n, _, show in totals(stats, stats)]
    interface = Table.grid(padding=(0, 2, 0, 0))
    for kind, values in (("inputs", stats.inputs), ("outputs", stats.outputs)):
        for i, (name, kind_of_value) in enumerate(list(values.items())[:_LISTED]):
            interface.add_row(Text(kind if not i else "", "dim"), Name(name), Name(kind_of_value))
        if len(values) > _LISTED:
            interface.add_row("", Text(f"and {len(values) - _LISTED} more", "dim"))
    for i, (symbol, places) in enumerate(stats.dynamic.items()):
        shown = ", ".join(places[:_LISTED]) + (", …" if len(places) > _LISTED else "")
        interface.add_row(Text("dynamic" if not i else "", "dim"), Name(symbol), Name(shown))
    for grid in interface.columns[:1]:
        grid.no_wrap = True
    figures = Fitting(_narrowing(_headings(stats), rows, sums), _LEAST)
    parts: list[RenderableType] = [_heads(("", stats)), interface, figures]
    parts += [Text(note, "dim") for note in notes(stats)]
    return Group(*parts, *([_nodes(stats)] if stats.work is not None and stats.work.nodes else []))


def _headings(stats: ModelStats) -> tuple[str, ...]:
    return ("nodes", "MACs", "FLOPs") if stats.work is not None else ("nodes",)


def _figures(stats: ModelStats, operator: str, n: int) -> tuple[str, ...]:
    if stats.work is None:
        return (exact(n),)
    macs, flops = stats.work.macs_by_operator.get(operator, 0), stats.work.flops_by_operator.get(operator, 0)
    return exact(n), count(macs) if macs else "", count(flops) if flops else ""


def notes(stats: ModelStats) -> Iterator[str]:
    """What the figures leave out."""
    work = stats.work
    if work is None:
        return
    open_sizes = "are not known (--dim, --shape)" if stats.dynamic else "are not known"
    if work.inexact:
        what = "MACs and FLOPs" if work.peak_exact else "MACs, FLOPs and memory"
        yield f"{what} are a lower bound: the sizes of {counted(work.inexact, 'node')} {open_sizes}"
    elif not work.peak_exact:
        yield f"memory is a lower bound: sizes {open_sizes}"
    if work.peak_at:
        yield f"memory is highest at {work.peak_at}"


def _nodes(stats: ModelStats) -> Table:
    """The nodes that compute most."""
    assert stats.work is not None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    repeated = any(n.times != 1 for n in stats.work.nodes)
    for heading in ("node", "operator", "result"):
        table.add_column(heading, no_wrap=heading == "operator")
    for heading in (*(["times"] if repeated else []), "MACs", "FLOPs", "%"):
        table.add_column(heading, justify="right", no_wrap=True)
    for n in stats.work.nodes:
        part = f"{n.flops / stats.work.flops:.1%}" if stats.work.flops else ""
        times = [exact(n.times) if n.times != 1 else ""] if repeated else []
        table.add_row(Name(n.name), n.op, Name(n.shape), *times, count(n.macs) if n.macs else "", count(n.flops), part)
    return table


def diff(a: ModelStats, b: ModelStats) -> RenderableType:
    """Table of what changed from `a` to `b`: without the relative, then the absolute change where it is narrow."""
    rows = [_changed(name, x, y, exact) for name, x, y in operators(a, b)]
    sums = [_changed(what, x, y, show) for what, x, y, show in totals(a, b)]
    tables = _narrowing(("before", "after", "change", "%"), rows, sums, least=2)
    return Group(_heads(("before", a), ("after", b)), *_interface_changes(a, b), Fitting(tables, _LEAST))


def _narrowing(headings: Sequence[str], rows: Sequence[Cells], sums: Sequence[Cells], least: int = 1) -> list[Table]:
    """The table, and it without the last columns, one after the other: no fewer than `least` of figures, at last close
    together."""
    numbers = [*range(len(headings), least - 1, -1), least]
    return [
        _table(headings[:n], [r[: n + 1] for r in rows], [r[: n + 1] for r in sums], close=i == len(numbers) - 1)
        for i, n in enumerate(numbers)
    ]


def _table(headings: Sequence[str], rows: Sequence[Cells], sums: Sequence[Cells], *, close: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0 if close else 1))
    table.add_column("operator")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    table.add_section()
    for row in sums:
        table.add_row(*row)
    return table


def _row(name: str, figures: Sequence[str], style: str = "") -> Cells:
    """Names come from files: no strings, so that nothing in them is markup."""
    return [Name(name, style), *(Text(f, style) for f in figures)]


def _changed(name: str, before: int, after: int, show: Show) -> Cells:
    style = _total_style(name) if before != after else "dim"
    row = _row(name, (show(before), show(after)), style)
    colour = "green" if after < before else "red"
    return [*row, Text(change(before, after, show), colour), Text(share(before, after), colour)]


def _total_style(what: str) -> str:
    return "bold" if what == "nodes" else "dim" if what.startswith("  ") else ""


def _heads(*models: tuple[str, ModelStats]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for label, stats in models:
        cells = [Text(label, "dim")] if label else []
        opsets = ", ".join(f"{d} {v}" for d, v in stats.opsets.items())
        details = Text(f"IR {stats.ir_version}, {opsets}", "dim")
        grid.add_row(*cells, Name(stats.path, "bold"), details)
    for column in grid.columns[:-2]:
        column.no_wrap = True
    return grid


def _interface_changes(a: ModelStats, b: ModelStats) -> Iterator[Text]:
    """What callers would notice: an optimizer has no business here."""
    for kind, before, after in (("input", a.inputs, b.inputs), ("output", a.outputs, b.outputs)):
        for name in dict.fromkeys((*before, *after)):
            x, y = before.get(name), after.get(name)
            if x != y:
                yield Text(f"{kind} {name}: {x or 'absent'} → {y or 'absent'}", "yellow")
        if before.keys() == after.keys() and list(before) != list(after):
            yield Text(f"{kind}s are in another order", "yellow")


# -- as Markdown -----------------------------------------------------------------------------------------


def markdown(a: ModelStats, b: ModelStats | None = None) -> str:
    """The same as a Markdown table, for a pull request."""
    if b is None:
        headings = _headings(a)
        lines = [f"**{_escaped(a.path)}**", "", _line("operator", *headings), "|---" + "|---:" * len(headings) + "|"]
        lines += [_line(name, *_figures(a, name, n)) for name, n in a.operators.items()]
        empty = [""] * (len(headings) - 1)
        lines += [_line(_total(what), show(n), *empty, escape=False) for what, n, _, show in totals(a, a)]
        lines += [line for note in notes(a) for line in ("", _escaped(note))]
        if a.work is not None and a.work.nodes:
            lines += ["", "| node | operator | result | MACs | FLOPs |", "|---|---|---|---:|---:|"]
            lines += [_line(n.name, n.op, n.shape, count(n.macs), count(n.flops)) for n in a.work.nodes]
        return "\n".join(lines)
    lines = [f"**{_escaped(a.path)}** → **{_escaped(b.path)}**", ""]
    for note in _interface_changes(a, b):
        lines += [_escaped(note.plain), ""]
    lines += ["| operator | before | after | change | % |", "|---|---:|---:|---:|---:|"]
    for name, x, y in operators(a, b):
        lines.append(_line(name, exact(x), exact(y), change(x, y), share(x, y)))
    for what, x, y, show in totals(a, b):
        lines.append(_line(_total(what), show(x), show(y), change(x, y, show), share(x, y), escape=False))
    return "\n".join(lines)


def csv(a: ModelStats, b: ModelStats | None) -> str:
    """The same as comma-separated values, in exact numbers: kind, name, value; before and after of two models."""
    import csv as writer
    import io

    text = io.StringIO()
    out = writer.writer(text, lineterminator="\n")
    two = b is not None
    other = b if b is not None else a
    out.writerow(["kind", "name", "before", "after"] if two else ["kind", "name", "value"])

    def row(kind: str, name: str, before: int, after: int) -> None:
        cell = f"'{name}" if name.startswith(_FORMULAS) else name
        out.writerow([kind, cell, before, after] if two else [kind, cell, before])

    for what, x, y, _ in totals(a, other):
        row("total", what.strip(), x, y)
    for name, x, y in operators(a, other):
        row("operator", name, x, y)
    if a.work is not None and other.work is not None:
        for kind in ("macs_by_operator", "flops_by_operator"):
            before, after = getattr(a.work, kind), getattr(other.work, kind)
            for name in dict.fromkeys((*before, *after)):
                row(kind.partition("_")[0], name, before.get(name, 0), after.get(name, 0))
    for scope in dict.fromkeys((*a.nodes_by_scope, *other.nodes_by_scope)):
        row("scope", scope, a.nodes_by_scope.get(scope, 0), other.nodes_by_scope.get(scope, 0))
    return text.getvalue()


def _total(what: str) -> str:
    return what.strip() if what.startswith("  ") else f"**{what}**"


def _line(name: str, *figures: str, escape: bool = True) -> str:
    return f"| {' | '.join((_escaped(name) if escape else name, *figures))} |"


def _escaped(text: str) -> str:
    text = "".join("\\" + c if c in "\\|*_`[" else c for c in text)
    return text.replace("<", "&lt;").replace("](", "]\\(")
