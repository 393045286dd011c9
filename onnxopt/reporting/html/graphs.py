"""The frame around the graphs; scripts draw the graphs."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Final

from onnxopt.plaintext import counted
from onnxopt.reporting.html.markup import Markup, tag

_CHIPS: Final = (("changed", "~"), ("merged", "⤳"), ("gone", "−"), ("new", "+"), ("kept", ""))


def graphs(data: dict[str, Any]) -> Markup:
    """Returns the frame of a single graph, or of two graphs with the changes of their nodes."""
    names = ("before", "after") if len(data["stats"]) > 1 else ("",)
    counts = data.get("counts", {})
    chips = [
        tag(
            "button",
            tag("span", sign, aria_hidden="true") if sign else None,
            "vanished" if fate == "gone" else fate,
            tag("b", f"{counts[fate]:,}"),
            type="button",
            class_=f"chip {fate}",
            value=fate,
            aria_pressed="false",
        )
        for fate, sign in _CHIPS
        if counts.get(fate)
    ]
    return tag(
        "section",
        tag("header", tag("h2", "Graphs" if len(names) > 1 else "Graph"), tag("p", _told(data))),
        tag(
            "div",
            _search(),
            tag("div", *chips, class_="chips", role="group", aria_label="What became of the nodes") if chips else None,
            _differs(len(data["places"])),
            tag("button", "Expand all", type="button", name="expand"),
            tag("button", "Collapse all", type="button", name="collapse"),
            tag("label", tag("input", type="checkbox", name="constants"), "Constants"),
            tag("button", "Full screen", type="button", name="full"),
            class_="tools",
        ),
        tag("ul", class_="failures", role="alert", hidden=True),
        tag(
            "div",
            *(_pane(title, s) for title, s in zip(names, data["stats"])),
            tag("aside", class_="info", aria_label="Details of the selected node", aria_live="polite", hidden=True),
            class_="panes" if len(names) > 1 else "panes single",
        ),
        tag("noscript", tag("p", "The graphs are drawn by scripts, which are switched off here.", class_="none")),
        id="graphs",
        class_="panel",
    )


def _told(data: dict[str, Any]) -> str:
    if len(data["stats"]) == 1:
        return "click a node for its details"
    matched = "" if data["history"] is not None else "; nodes are matched by names and values"
    return f"click a node for its details and its counterpart{matched}"


def _differs(count: int) -> Markup | None:
    """Returns the legend of marked places, and the buttons to the next place."""
    if not count:
        return None
    return tag(
        "button",
        tag("span", aria_hidden="true", class_="ring"),
        "differs",
        tag("b", f"{count:,}"),
        type="button",
        name="differs",
        title="Go to the next place that differs ( d )",
    )


def _search() -> Markup:
    field = tag(
        "input",
        type="search",
        placeholder="Search nodes ( / )",
        aria_label="Search nodes",
        role="combobox",
        aria_expanded="false",
        aria_controls="hits",
        autocomplete="off",
        spellcheck="false",
    )
    return tag(
        "div", field, tag("ul", id="hits", role="listbox", hidden=True, aria_label="Nodes found"), class_="search"
    )


def _pane(title: str, stats: dict[str, Any]) -> Markup:
    name = PurePath(stats["path"]).name
    zoom = [("in", "+", "Enlarge"), ("out", "−", "Reduce"), ("fit", "Fit", "Show all")]
    return tag(
        "figure",
        tag("figcaption", tag("b", title) if title else None, f" {name} · {counted(stats['nodes'], 'node')}"),
        tag(
            "div",
            *(
                tag("button", text, type="button", name=n, aria_label=f"{label}: {title or name}")
                for n, text, label in zoom
            ),
            class_="zoom",
        ),
        tag(
            "svg",
            tabindex="0",
            role="group",
            aria_label=f"Graph {title or name}: arrow keys walk, Enter opens, Escape closes, plus and minus zoom",
        ),
        tag("div", "drag, or Ctrl + wheel · arrows, Enter, Escape · / finds", class_="hint"),
        class_="pane",
    )
