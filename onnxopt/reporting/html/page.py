"""The page: a single file without external resources, with its own scripts only."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, Final

from onnxopt.reporting.html.figures import declined, operators, passes, timeline
from onnxopt.reporting.html.graphs import graphs, places
from onnxopt.reporting.html.markup import Markup, bundled, join, json_script, panel, tag
from onnxopt.reporting.html.summary import cards, interface, summary, weights
from onnxopt.reporting.verdict import difference

_SCRIPTS: Final = ("model.js", "layout.js", "view.js", "details.js", "search.js", "main.js")
_FRAME: Final = """"use strict";(() => {{{}
attempt("The graphs are not drawn", () => {{{}}});
requestAnimationFrame(() => performance.mark("ready"));
}})();"""
_UNLISTED: Final = "Figures"
_Rows = tuple[tuple[tuple[str, Callable[[dict[str, Any]], Markup | None]], ...], ...]
# The sections of the page by name, from the top down and side by side.
_OF_A_RUN: Final[_Rows] = (
    (("Summary", summary),),
    (("Places", places),),
    ((_UNLISTED, cards),),
    (("Operators", operators), ("Timeline", timeline)),
    (("Passes", passes),),
    (("Declined", declined),),
    (("Graphs", graphs),),
)
_WITHOUT: Final[_Rows] = (
    (("Summary", summary),),
    ((_UNLISTED, cards),),
    (("Graphs", graphs),),
    (("Operators", operators), ("Interface", interface)),
    (("Weights", weights),),
)


def page(data: dict[str, Any]) -> str:
    """Return the document for `Comparison.to_dict()`, with `version` and `times`.

    The same data gives the same text. Its policy allows no request at all, and only the scripts written here.
    A section that cannot be made says why in its place, and `data["failures"]` has the reason.
    """
    library = _script(bundled("vendor", "dagre.min.js").partition("\n//# sourceMappingURL")[0])
    own = _script(_FRAME.format(bundled("failures.js"), "\n".join(bundled(name) for name in _SCRIPTS)))
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (library, own))
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {hashes}"
    names = [PurePath(s["path"]).name for s in data["stats"]]
    shown = data["failures"].attempt("Graphs", lambda: json_script(_shown(data), id="data"), None)
    sections, rows = _rows(data)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{' → '.join(names)}: onnxopt"),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup(bundled("style.css"))),
    )
    links = [tag("a", name, href=f"#{name.lower()}") for name in sections]
    body = tag(
        "body",
        tag("a", "Skip to the graphs", href="#graphs", class_="skip"),
        tag("div", tag("strong", "onnxopt"), tag("nav", *links, aria_label="Sections"), class_="bar"),
        tag(
            "main",
            *rows,
            tag("footer", f"onnxopt {data['version']}. This page is one file and asks the network for nothing."),
        ),
        *((shown, tag("script", library), tag("script", own)) if "Graphs" not in data["failures"] else ()),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _rows(data: dict[str, Any]) -> tuple[list[str], list[Markup]]:
    """Return (names of sections to link, rows of sections)."""
    sections, rows = [], []
    for row in _OF_A_RUN if data["history"] is not None else _WITHOUT:
        made = [(name, part) for name, make in row if (part := _section(name, make, data)) is not None]
        sections += [name for name, _ in made if name != _UNLISTED]
        parts = [part for _, part in made]
        rows.append(tag("div", *parts, class_="columns") if len(parts) > 1 else join(*parts))
    return sections, rows


def _section(name: str, make: Callable[[dict[str, Any]], Markup | None], data: dict[str, Any]) -> Markup | None:
    """Return the section, None if empty, or the reason why the section could not be made."""
    made: Markup | None = data["failures"].attempt(name, lambda: make(data), None)
    if name not in data["failures"]:
        return made
    why = tag("p", f"This section could not be made: {data['failures'][name]}", class_="failures")
    return panel(name, None, why, id=name.lower())


def _shown(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data for scripts: the graphs, and the places of differences."""
    shown = {key: data[key] for key in ("blocks", "graphs", "pairs", "merged")}
    if data["places"]:
        shown["places"] = [
            {"value": place["value"], "how": difference(place), "nodes": where["nodes"]}
            for place, where in zip(data["verification"]["places"], data["places"])
        ]
    return shown


def _script(text: str) -> Markup:
    assert "</script" not in text.lower()
    return Markup(text)
