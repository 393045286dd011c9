"""`onnxopt stats` in words, as Markdown and CSV: a model, or two models side by side with the changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from onnxopt.plaintext import counted
from onnxopt.reporting.plain import change, size

if TYPE_CHECKING:
    from onnxopt.analysis.stats import ModelStats

Show = Callable[[int], str]

_FORMULAS: Final = ("=", "+", "-", "@")  # spreadsheets run texts that begin so


def exact(n: int) -> str:
    return f"{n:,}"


def count(n: int) -> str:
    """Return a count in a readable unit: 2,194 or 25.6 M."""
    if n < 100_000:
        return f"{n:,}"
    return f"{n / 1e9:.2f} G" if n >= 999_950_000 else f"{n / 1e6:.2f} M" if n < 9_995_000 else f"{n / 1e6:.1f} M"


def share(before: int, after: int) -> str:
    """Return `-70%` or `×42`; a change always has a sign, and -100% means that nothing is left."""
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


def totals(a: ModelStats, b: ModelStats) -> Iterator[tuple[str, int, int, Show]]:
    """Yield (label, before, after, format); labels of sub-entries start with two spaces."""
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


def operators(a: ModelStats, b: ModelStats) -> list[tuple[str, int, int]]:
    """Return operator counts: the largest decrease first, then unchanged operators, by count."""
    names = sorted({*a.operators, *b.operators})
    rows = [(name, a.operators.get(name, 0), b.operators.get(name, 0)) for name in names]
    return sorted(rows, key=lambda r: (r[2] == r[1], r[2] - r[1] or -r[2]))


class Row(NamedTuple):
    """A row of a sheet. `change`: how the figure changed between two models."""

    name: str
    cells: tuple[str, ...]
    change: int = 0


def sheet(a: ModelStats, b: ModelStats | None = None) -> tuple[tuple[str, ...], list[Row], list[Row]]:
    """Return (headings, operators, totals) of a model, or of the changes between two models."""
    if b is not None:
        rows = [_changed(name, x, y, exact) for name, x, y in operators(a, b)]
        return ("before", "after", "change", "%"), rows, [_changed(*total) for total in totals(a, b)]
    headings = ("nodes", "MACs", "FLOPs") if a.work is not None else ("nodes",)
    rows = [Row(name, _figures_of(a, name, n)) for name, n in a.operators.items()]
    return headings, rows, [Row(what, (show(n),)) for what, n, _, show in totals(a, a)]


def _changed(name: str, before: int, after: int, show: Show) -> Row:
    return Row(name, (show(before), show(after), change(after - before, show), share(before, after)), after - before)


def _figures_of(stats: ModelStats, operator: str, n: int) -> tuple[str, ...]:
    """Return the figures of an operator with `n` nodes."""
    if stats.work is None:
        return (exact(n),)
    macs, flops = stats.work.macs_by_operator.get(operator, 0), stats.work.flops_by_operator.get(operator, 0)
    return exact(n), count(macs) if macs else "", count(flops) if flops else ""


def notes(stats: ModelStats) -> Iterator[str]:
    """Yield notes on incomplete figures, and the node at which memory is highest."""
    yield from bounds(stats)
    if stats.work is not None and stats.work.peak_at:
        yield f"memory is highest at {stats.work.peak_at}"


def bounds(stats: ModelStats) -> Iterator[str]:
    """Yield the figures that are lower bounds."""
    work = stats.work
    if work is None:
        return
    open_sizes = "are not known (--dim, --shape)" if stats.dynamic else "are not known"
    if work.inexact:
        what = "MACs and FLOPs" if work.peak_exact else "MACs, FLOPs and memory"
        yield f"{what} are a lower bound: the sizes of {counted(work.inexact, 'node')} {open_sizes}"
    elif not work.peak_exact:
        yield f"memory is a lower bound: sizes {open_sizes}"


def interface_changes(a: ModelStats, b: ModelStats) -> Iterator[str]:
    """Yield changes of inputs and outputs, which an optimizer must not make."""
    for kind, before, after in (("input", a.inputs, b.inputs), ("output", a.outputs, b.outputs)):
        for name in dict.fromkeys((*before, *after)):
            x, y = before.get(name), after.get(name)
            if x != y:
                yield f"{kind} {name}: {x or 'absent'} → {y or 'absent'}"
        if before.keys() == after.keys() and list(before) != list(after):
            yield f"{kind}s are in another order"


def markdown(a: ModelStats, b: ModelStats | None = None) -> str:
    """Return the figures as a table in Markdown, for a pull request."""
    headings, rows, sums = sheet(a, b)
    lines = [" → ".join(f"**{_escaped(model.path)}**" for model in (a, b) if model is not None), ""]
    if b is not None:
        lines += [line for note in interface_changes(a, b) for line in (_escaped(note), "")]
    lines += [_line("operator", *headings), "|---" + "|---:" * len(headings) + "|"]
    lines += [_line(row.name, *row.cells) for row in rows]
    padding = [""] * (len(headings) - len(sums[0].cells))
    lines += [_line(_total(row.name), *row.cells, *padding, escape=False) for row in sums]
    if b is None:
        lines += [line for note in notes(a) for line in ("", _escaped(note))]
        if a.work is not None and a.work.nodes:
            lines += ["", "| node | operator | result | MACs | FLOPs |", "|---|---|---|---:|---:|"]
            lines += [_line(n.name, n.op, n.shape, count(n.macs), count(n.flops)) for n in a.work.nodes]
    return "\n".join(lines)


def csv(a: ModelStats, b: ModelStats | None = None) -> str:
    """Return exact figures as comma-separated values: kind, name, value; for two models before and after."""
    import csv as writer
    import io

    other = a if b is None else b
    rows: list[tuple[str, str, int, int]] = [("total", what.strip(), x, y) for what, x, y, _ in totals(a, other)]
    rows += [("operator", *row) for row in operators(a, other)]
    work = (a.work, other.work) if a.work is not None and other.work is not None else ()
    for kind in ("macs", "flops"):
        rows += _by_name(kind, [getattr(w, f"{kind}_by_operator") for w in work])
    rows += _by_name("scope", [a.nodes_by_scope, other.nodes_by_scope])
    lacking = [{"nodes of unknown size": w.inexact, "peak memory": int(not w.peak_exact)} for w in work]
    rows += [row for row in _by_name("lower bound", lacking) if any(row[2:])]
    text = io.StringIO()
    out = writer.writer(text, lineterminator="\n")
    out.writerow(["kind", "name", *(["value"] if b is None else ["before", "after"])])
    for kind, name, *figures in rows:
        cell = f"'{name}" if name.startswith(_FORMULAS) else name
        out.writerow([kind, cell, *figures[: 1 if b is None else 2]])
    return text.getvalue()


def _by_name(kind: str, counts: Sequence[Mapping[str, int]]) -> list[tuple[str, str, int, int]]:
    """Return a row for each name of two counts; none without counts."""
    names = dict.fromkeys(name for count in counts for name in count)
    return [(kind, name, counts[0].get(name, 0), counts[-1].get(name, 0)) for name in names]


def _total(what: str) -> str:
    return what.strip() if what.startswith("  ") else f"**{what}**"


def _line(name: str, *figures: str, escape: bool = True) -> str:
    return f"| {' | '.join((_escaped(name) if escape else name, *figures))} |"


def _escaped(text: str) -> str:
    text = "".join("\\" + c if c in "\\|*_`[" else c for c in text)
    return text.replace("<", "&lt;").replace("](", "]\\(")
