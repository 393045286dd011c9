"""`onnxopt stats A [B]`, and the changes of a run by operator (`--stats`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from onnxopt.cli.files import json_text
from onnxopt.cli.options import dim_option, format_option, shape_option, together
from onnxopt.cli.say import say, say_all
from onnxopt.errors import UsageError, few

if TYPE_CHECKING:
    from onnxopt.analysis.stats import ModelStats


# Options for counting models, and for the format.
counting_options = together(
    format_option("table", "json", "markdown", "csv"),
    dim_option("Size of a dynamic dim, for MACs."),
    shape_option("Shape of an input, for MACs."),
    click.option("--no-work", is_flag=True, help="Omit MACs, FLOPs and memory, which need shape inference."),
)


@click.command(epilog="Exit codes: 0 done, 2 wrong usage or unreadable input.")
@click.argument("a", metavar="A", type=click.Path(path_type=Path))
@click.argument("b", metavar="[B]", required=False, type=click.Path(path_type=Path))
@click.option("--top", type=click.IntRange(0), default=0, metavar="N", help="List the N nodes with the most work.")
@counting_options
def stats(a: Path, b: Path | None, top: int, **counting: Any) -> None:
    """Count operators, nodes, initializers, parameters, bytes and work of model A, or show the changes from A to B,
    like `onnxopt diff`.

    MACs are multiplications with accumulation; FLOPs are two for each MAC, and one for every other scalar operation.
    Memory is an estimate of the peak memory of values, without weights.

    \b
    onnxopt stats model.onnx
    onnxopt stats model.onnx --top 10 --dim batch=1
    onnxopt stats model.onnx model.opt.onnx
    onnxopt stats model.onnx model.opt.onnx --format markdown
    """
    form = counting["form"]
    if top and counting["no_work"]:
        raise UsageError("--no-work contradicts --top", "leave one of them out")
    if top and (form == "csv" or (b is not None and form != "json")):
        what = "--format csv has" if form == "csv" else "a comparison has"
        raise UsageError(f"{what} no list of nodes for --top", "of one model the table has it; --format json always")
    say_counts(a, b, top=top, **counting)


def say_counts(
    a: Path,
    b: Path | None,
    *,
    form: str,
    dims: dict[str, int],
    shapes: dict[str, tuple[int, ...]],
    no_work: bool,
    top: int = 0,
) -> None:
    """Print the contents of a model, or the changes from one model to another."""
    from onnxopt.api.analyses import stats as count

    found = [count(path, work=not no_work, top=top, dims=dims, shapes=shapes) for path in (a, b) if path is not None]
    for model in found:
        if model.missing_files:
            lost = few(model.missing_files)
            say(f"warning: {model.path}: its data file {lost} is missing: bytes on disk are without it", err=True)
    if form == "json":
        records = [model.to_dict() for model in found]
        say_all(json_text(records[0] if b is None else dict(zip(("before", "after"), records))))
    else:
        _say_text(found, form)


def _say_text(found: list[ModelStats], form: str) -> None:
    """Print the contents of one model, or the changes from the first to the second, for a reader."""
    from onnxopt.plaintext import cleaned
    from onnxopt.reporting import stats_text

    models: list[ModelStats] = cleaned(found)
    # Figures of a comparison that are bounds: their difference may be no change.
    bounds = {} if len(models) == 1 else dict(zip(("before", "after"), map("; ".join, map(stats_text.bounds, models))))
    notes = [f"{label}: {text}" for label, text in bounds.items() if text]
    if form == "csv":
        say_all(stats_text.csv(*models))
    elif form == "markdown":
        say_all("\n".join([stats_text.markdown(*models), *(f"\n{n}" for n in notes)]))
    else:
        from onnxopt.reporting import stats_table
        from onnxopt.reporting.terminal import Text, show

        table = stats_table.one(*models) if len(models) == 1 else stats_table.diff(*models)
        show(table, *(Text(note, "dim") for note in notes))


_MARKS: Final = {ord(c): f"&#{ord(c)};" for c in "`[]"}  # of Markdown, which would begin code or a link
_MAX_MODELS: Final = 20  # models in a step summary: a page takes 1 MiB


def show_changes(report: dict[str, Any], *, err: bool = False) -> None:
    """Print the table of changes of a report (`api.Report.to_dict()`)."""
    if (found := _both(report)) is not None:
        from onnxopt.reporting.stats_table import diff
        from onnxopt.reporting.terminal import Terminal

        Terminal(stderr=err).print(diff(*found))


def changes_markdown(outcomes: Sequence[dict[str, Any]]) -> str:
    """Return folded tables of changes in Markdown, of the first models."""
    from html import escape

    from onnxopt.reporting.stats_text import markdown

    parts = []
    for outcome in outcomes[:_MAX_MODELS]:
        if outcome["report"] is not None and (found := _both(outcome["report"])) is not None:
            name = escape(found[1].path or found[0].path).translate(_MARKS)
            parts.append(f"<details><summary>what changed in {name}</summary>\n\n{markdown(*found)}\n\n</details>\n")
    return "\n".join(parts)


def _both(report: dict[str, Any]) -> tuple[ModelStats, ModelStats] | None:
    stats = report.get("stats")
    if not stats:
        return None
    from onnxopt.analysis.stats import ModelStats
    from onnxopt.plaintext import cleaned

    before, after = (cleaned(ModelStats(**stats[which])) for which in ("before", "after"))
    return before, after
