"""The page: one file, nothing from elsewhere, no script but its own."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import PurePath
from typing import Any, Final

from onnxopt.reporting.html.charts import operators, timeline
from onnxopt.reporting.html.graphs import graphs
from onnxopt.reporting.html.markup import Markup, json_script, tag
from onnxopt.reporting.html.places import places
from onnxopt.reporting.html.summary import cards, summary
from onnxopt.reporting.html.tables import declined, passes
from onnxopt.reporting.places import difference

_SCRIPTS: Final = ("model.js", "layout.js", "view.js", "details.js", "search.js", "main.js")
_PLACES: Final = "Places"
_SECTIONS: Final = ("Summary", _PLACES, "Operators", "Timeline", "Passes", "Declined", "Graphs")


def page(data: dict[str, Any]) -> str:
    """The whole document for `Comparison.to_dict()` with `verification`, `times` and `examples`.

    The same data gives the same text. Its policy allows no request at all, and only the scripts written here.
    """
    library = _script(_bundled("vendor", "dagre.min.js").partition("\n//# sourceMappingURL")[0])
    own = _script('"use strict";(() => {\n' + "\n".join(_bundled(name) for name in _SCRIPTS) + "})();")
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in (library, own))
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {hashes}"
    names = [PurePath(s["path"]).name for s in data["stats"]]
    shown = {key: data[key] for key in ("blocks", "graphs", "pairs", "merged")}
    parted = places(data)
    if parted is not None:
        shown["places"] = [
            {"value": place["value"], "how": difference(place), "nodes": where["nodes"]}
            for place, where in zip(data["verification"]["places"], data["places"])
        ]
    sections = [name for name in _SECTIONS if parted is not None or name != _PLACES]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{names[0]} → {names[1]}: onnxopt"),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup(_bundled("style.css"))),
    )
    links = [tag("a", name, href=f"#{name.lower()}") for name in sections]
    body = tag(
        "body",
        tag("a", "Skip to the graphs", href="#graphs", class_="skip"),
        tag("div", tag("strong", "onnxopt"), tag("nav", *links, aria_label="Sections"), class_="bar"),
        tag(
            "main",
            summary(data),
            parted,
            cards(data),
            tag("div", operators(data), timeline(data), class_="columns"),
            passes(data),
            declined(data),
            graphs(data),
            tag("footer", f"onnxopt {data['version']}. This page is one file and asks the network for nothing."),
        ),
        json_script(shown, id="data"),
        tag("script", library),
        tag("script", own),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _bundled(*path: str) -> str:
    return files("onnxopt.reporting.html").joinpath(*path).read_text(encoding="utf-8")


def _script(text: str) -> Markup:
    assert "</script" not in text.lower()
    return Markup(text)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
