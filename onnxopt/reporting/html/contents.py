"""Contents of a model, or differences of two models: inputs and outputs, weights."""

from __future__ import annotations

from typing import Any, Final

from onnxopt.plaintext import counted
from onnxopt.reporting.html.markup import Markup, tag
from onnxopt.reporting.plain import size
from onnxopt.reporting.stats_text import exact

_MAX_ROWS: Final = 12  # rows before the rest is folded


def interface(data: dict[str, Any]) -> Markup:
    """Returns inputs and outputs with types; for two models, the types before and after."""
    stats = data["stats"]
    labels, rows = _sides(stats, "type"), []
    for kind in ("input", "output"):
        held = [s[f"{kind}s"] for s in stats]
        for name in dict.fromkeys(name for side in held for name in side):
            types = [side.get(name) for side in held]
            cells = [
                tag("td", t if t is not None else "absent", class_="mono", data_label=label)
                for t, label in zip(types, labels)
            ]
            rows.append(
                tag(
                    "tr",
                    tag("th", name, scope="row"),
                    tag("td", kind, class_="kind"),
                    *cells,
                    class_="differing" if len(set(types)) > 1 else None,
                )
            )
    dynamic = [f"{symbol} ({', '.join(places[:_MAX_ROWS])})" for symbol, places in stats[-1]["dynamic"].items()]
    return tag(
        "section",
        tag("header", tag("h2", "Inputs and outputs")),
        _folded(["name", "", *labels], rows),
        tag("p", f"Dynamic: {', '.join(dynamic)}", class_="none") if dynamic else None,
        id="interface",
        class_="panel",
    )


def weights(data: dict[str, Any]) -> Markup:
    """Returns the largest weights of a model, or the changed weights of two models.

    Weights with changed elements alone are included.
    """
    stats, found = data["stats"], data["weights"]
    labels = _sides(stats, "type")
    rows = [_weight(scope, name, sides, labels) for scope, name, sides in found["rows"]]
    if len(stats) == 1:
        parts = [counted(len(rows) + found["left"], "constant"), "the largest first"]
    else:
        parts = [f"{counted(len(rows) + found['left'], 'constant')} that differ", f"{exact(found['same'])} the same"]
    if found["unread"]:
        parts.append(f"{exact(found['unread'])} of these in data files, which are not compared")
    left = tag("p", f"and {exact(found['left'])} more, which are smaller", class_="none") if found["left"] else None
    return tag(
        "section",
        tag("header", tag("h2", "Weights"), tag("p", ", ".join(parts))),
        _folded(["name", *(h for side in labels for h in (side, "bytes"))], rows),
        left,
        id="weights",
        class_="panel",
    )


def _weight(scope: str, name: str, sides: list[list[Any] | None], labels: list[str]) -> Markup:
    place = f" in {scope}" if scope != "main" else ""
    cells = []
    for side, label in zip(sides, labels):
        if side is None:
            cells += [tag("td", "absent", data_label=label), tag("td")]
        else:
            kind, count, elements = side
            told = f"{kind} = {elements}" if elements else kind
            cells += [tag("td", told, class_="mono", data_label=label), tag("td", size(count), class_="num")]
    return tag("tr", tag("th", name, place, scope="row"), *cells)


def _sides(stats: list[Any], heading: str) -> list[str]:
    return [heading] if len(stats) == 1 else ["before", "after"]


def _folded(headings: list[str], rows: list[Markup]) -> Markup:
    if not rows:
        return tag("p", "None.", class_="none")
    head = [tag("th", text, scope="col", class_="num" if text == "bytes" else None) for text in headings]

    def table(some: list[Markup]) -> Markup:
        return tag("div", tag("table", tag("thead", tag("tr", *head)), tag("tbody", *some)), class_="scroll stacked")

    rest = rows[_MAX_ROWS:]
    more = tag("details", tag("summary", f"{exact(len(rest))} more"), table(rest)) if rest else None
    return tag("div", table(rows[:_MAX_ROWS]), more)
