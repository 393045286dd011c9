"""`--stats`: the changes of a run by operator, in a terminal and in GitHub's step summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from onnxopt.analysis.stats import ModelStats

_MARKS: Final = {ord(c): f"&#{ord(c)};" for c in "`[]"}  # of Markdown, which would begin code or a link
_MAX_MODELS: Final = 20  # models in a step summary: a page takes 1 MiB


def show_changes(report: dict[str, Any], *, err: bool = False) -> None:
    """Print the table of changes of a report (`api.Report.to_dict()`)."""
    if (found := _both(report)) is not None:
        from onnxopt.reporting.stats_table import diff
        from onnxopt.reporting.terminal import Terminal

        Terminal(stderr=err).print(diff(*found))


def changes_markdown(outcomes: Sequence[dict[str, Any]]) -> str:
    """Folded tables, of the first models."""
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
