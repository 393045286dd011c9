"""The frame around the graphs, drawn by scripts, and places of differences as links into the graphs."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Final

from onnxopt.plaintext import counted
from onnxopt.reporting import verdict as told
from onnxopt.reporting.html.markup import Markup, join, link, panel, tag, template

_CHIPS: Final = (("changed", "~"), ("merged", "⤳"), ("gone", "−"), ("new", "+"), ("kept", ""))


def graphs(data: dict[str, Any]) -> Markup:
    """Return the frame of a single graph, or of two graphs with the changes of their nodes."""
    names = ("before", "after") if len(data["stats"]) > 1 else ("",)
    matched = "; nodes are matched by names and values" if len(names) > 1 and data["history"] is None else ""
    places = len(data["places"])
    return panel(
        "Graphs" if len(names) > 1 else "Graph",
        f"click a node for its details{' and its counterpart' if len(names) > 1 else ''}{matched}",
        template(
            "graphs.html",
            chips=_chips(data["counts"]),
            differs=template("differs.html", count=f"{places:,}") if places else None,
            panes=join(*(_pane(title, s) for title, s in zip(names, data["stats"]))),
            style="" if len(names) > 1 else "single",
        ),
        id="graphs",
    )


def _chips(counts: dict[str, int]) -> Markup | None:
    """Return a button for each fate of nodes, by which the search selects; None for a single graph."""
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
    return tag("div", *chips, class_="chips", role="group", aria_label="What became of the nodes") if chips else None


def _pane(title: str, stats: dict[str, Any]) -> Markup:
    name = PurePath(stats["path"]).name
    count, shown = counted(stats["nodes"], "node"), tag("b", title) if title else None
    return template("pane.html", title=shown, name=name, count=count, called=title or name)


_MAX_ROWS: Final = 6  # nodes of a side, and rewrites, before the rest is folded
_MARKED: Final = "marked in both graphs; d goes from one to the next"


def places(data: dict[str, Any]) -> Markup | None:
    """Return the section of places, None without places."""
    found = data["verification"]
    if found is None or not found["places"]:
        return None
    rows = [_place(k, place, where) for k, (place, where) in enumerate(zip(found["places"], data["places"]))]
    return panel("Where it differs", _MARKED, tag("ol", *rows, class_="places"), id="places")


def _place(k: int, place: dict[str, Any], where: dict[str, Any]) -> Markup:
    show = tag("button", "Show", type="button", class_="show", data_place=k, aria_label=f"Show {place['value']}")
    scope = f" in {place['scope']}" if place["scope"] != "main" else ""
    rows: list[tuple[str, list[Markup]]] = []
    for i, (side, label) in enumerate(told.SIDES.items()):
        nodes = [_node(n, i, at) for n, at in zip(place[side], where["nodes"][i])]
        rows.append((label, nodes[::-1] or [tag("span", "no node")]))
    rows.append(("from", [tag("span", ", ".join(place["entries"]), class_="mono")] if place["entries"] else []))
    rows.append(("made by", [_rewrite(text, at) for text, at in zip(place["rewrites"], where["rewrites"])]))
    facts = [part for label, items in rows if items for part in (tag("dt", label), tag("dd", *_folded(items)))]
    return tag(
        "li",
        tag("div", tag("h3", tag("code", place["value"]), scope), tag("p", told.difference(place)), show),
        tag("dl", *facts),
    )


def _folded(items: list[Markup]) -> list[Markup]:
    rest = items[_MAX_ROWS:]
    more = tag("details", tag("summary", f"and {len(rest)} more"), _list(rest)) if rest else None
    return [_list(items[:_MAX_ROWS]), *([more] if more is not None else [])]


def _list(items: list[Markup]) -> Markup:
    return tag("ul", *(tag("li", item) for item in items))


def _node(side: dict[str, Any], i: int, at: int | None) -> Markup:
    """Return operator and name as a link to the node, with the inputs."""
    name = f' "{side["node"]}"' if side["node"] else ""
    spot = (i, at) if at is not None else None
    return join(link(f"{side['op']}{name}", spot), tag("span", f"({', '.join(side['inputs'])})", class_="mono"))


def _rewrite(text: str, at: tuple[int, int] | None) -> Markup:
    """Return the rule as a link to its new nodes, with a description."""
    rule, colon, rest = text.partition(": ")
    return join(link(rule, at), tag("span", colon + rest))
