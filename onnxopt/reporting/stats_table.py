"""`onnxopt stats` in a terminal: a model, or two models side by side with the changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.table import Table

from onnxopt.reporting.stats_text import Row, count, exact, interface_changes, notes, sheet
from onnxopt.reporting.terminal import Fitting, Name, Text, figures, grid, table, whole

if TYPE_CHECKING:
    from onnxopt.analysis.stats import ModelStats

Cells = list[RenderableType]

_MIN_NAME_WIDTH: Final = 18  # characters for an operator's name, before a column of figures goes
_FIGURES: Final = 2  # columns before the changes
_LISTED: Final = 6  # inputs and outputs shown


def one(stats: ModelStats) -> RenderableType:
    """Return the table of a model."""
    headings, rows, sums = sheet(stats)
    tables = _narrowing(headings, [_cells(r) for r in rows], [_cells(r, _total_style(r.name)) for r in sums])
    parts: list[RenderableType] = [_heads(("", stats)), _interface(stats), Fitting(tables, _MIN_NAME_WIDTH)]
    parts += [Name(note, "dim") for note in notes(stats)]
    return Group(*parts, *([_nodes(stats)] if stats.work is not None and stats.work.nodes else []))


def _interface(stats: ModelStats) -> Table:
    """Return the inputs, outputs and dynamic dims of a model."""
    rows: list[Cells] = []
    for kind, values in (("inputs", stats.inputs), ("outputs", stats.outputs)):
        for i, (name, kind_of_value) in enumerate(list(values.items())[:_LISTED]):
            rows.append([kind if not i else "", Name(name), Name(kind_of_value)])
        if len(values) > _LISTED:
            rows.append(["", Text(f"and {len(values) - _LISTED} more", "dim"), ""])
    for i, (symbol, places) in enumerate(stats.dynamic.items()):
        shown = ", ".join(places[:_LISTED]) + (", …" if len(places) > _LISTED else "")
        rows.append(["dynamic" if not i else "", Name(symbol), Name(shown)])
    return grid(rows)


def _nodes(stats: ModelStats) -> Fitting:
    """Return the nodes with the most work: a table, on narrow terminals without results, else lines."""
    assert stats.work is not None
    lines = [Text.assemble((n.name, "bold"), f"  {n.op}, {count(n.flops)} FLOPs, {n.shape}") for n in stats.work.nodes]
    return Fitting([_work(stats), _work(stats, with_result=False)], least=24, otherwise=Group(*lines))


def _work(stats: ModelStats, *, with_result: bool = True) -> Table:
    assert stats.work is not None
    repeated = any(n.times != 1 for n in stats.work.nodes)
    heads = (*(["times"] if repeated else []), "MACs", "FLOPs", "%")
    made = table("node", *whole("operator"), *(["result"] if with_result else []), *figures(*heads))
    for n in stats.work.nodes:
        part = f"{n.flops / stats.work.flops:.1%}" if stats.work.flops else ""
        times = [exact(n.times) if n.times != 1 else ""] if repeated else []
        result = [Name(n.shape)] if with_result else []
        made.add_row(Name(n.name), n.op, *result, *times, count(n.macs) if n.macs else "", count(n.flops), part)
    return made


def diff(a: ModelStats, b: ModelStats) -> RenderableType:
    """Return the table of changes from `a` to `b`; narrow forms omit the relative, then the absolute change."""
    headings, *parts = sheet(a, b)
    rows, sums = ([_cells(r, _total_style(r.name) if r.change else "dim") for r in part] for part in parts)
    tables = _narrowing(headings, rows, sums, least=2)
    interface = [Text(note, "yellow") for note in interface_changes(a, b)]
    return Group(_heads(("before", a), ("after", b)), *interface, Fitting(tables, _MIN_NAME_WIDTH))


def _narrowing(headings: Sequence[str], rows: Sequence[Cells], sums: Sequence[Cells], least: int = 1) -> list[Table]:
    """Return the table in ever narrower forms. The last form has `least` figures, without padding."""
    numbers = [*range(len(headings), least - 1, -1), least]
    return [
        _table(headings[:n], [r[: n + 1] for r in rows], [r[: n + 1] for r in sums], close=i == len(numbers) - 1)
        for i, n in enumerate(numbers)
    ]


def _table(headings: Sequence[str], rows: Sequence[Cells], sums: Sequence[Cells], *, close: bool) -> Table:
    made = table("operator", *figures(*headings), rows=rows, padding=(0, 0 if close else 1))
    made.add_section()
    for row in sums:
        made.add_row(*row)
    return made


def _cells(row: Row, style: str = "") -> Cells:
    """Return the cells of a row. Names of files are rich Texts, never strings, so that nothing is parsed as markup."""
    changed = "green" if row.change < 0 else "red" if row.change else style
    figures = (Text(text, style if i < _FIGURES else changed) for i, text in enumerate(row.cells))
    return [Name(row.name, style), *figures]


def _total_style(what: str) -> str:
    return "bold" if what == "nodes" else "dim" if what.startswith("  ") else ""


def _heads(*models: tuple[str, ModelStats]) -> Table:
    made = Table.grid(padding=(0, 2, 0, 0))
    for label, stats in models:
        opsets = ", ".join(f"{d} {v}" for d, v in stats.opsets.items())
        details = Text(f"IR {stats.ir_version}, {opsets}", "dim")
        made.add_row(*([Text(label, "dim")] if label else []), Name(stats.path, "bold"), details)
    for column in made.columns[:-2]:
        column.no_wrap = True
    return made
