"""Rewrites of each pass, and reasons of declined rules."""

from __future__ import annotations

from typing import Any

from onnxopt.reporting.html.markup import Markup, link, tag
from onnxopt.reporting.plain import change, pass_hits, statistics


def passes(data: dict[str, Any]) -> Markup:
    """Returns a row for each pass with rewrites, with its rules, and the names of all remaining passes."""
    pipeline, times = data["history"]["report"]["pipeline"], data["times"]
    did = [p for p in pipeline["passes"] if pass_hits(p) or p["nodes"] or statistics(p)]
    idle = [p["name"] for p in pipeline["passes"] if p not in did]
    longest = max([p["seconds"] for p in did], default=0) or 1.0
    head = ["pass", "runs", "rewrites", "nodes", "bytes of constants", *(["time"] if times else [])]
    cells = [tag("th", text, scope="col", class_="num" if i else None) for i, text in enumerate(head)]
    rows = [row for p in did for row in _pass(p, longest, times)]
    table = tag("div", tag("table", tag("thead", tag("tr", *cells)), tag("tbody", *rows)), class_="scroll")
    told = "the optimization was run again for this page" if data["history"]["repeated"] else "as recorded"
    return tag(
        "section",
        tag("header", tag("h2", "Passes"), tag("p", told)),
        table if did else tag("p", "No pass changed anything.", class_="none"),
        _aside(f"{len(idle)} found nothing to do", idle),
        _aside(
            f"{len(pipeline['skipped'])} did not run", [f"{name}: {why}" for name, why in pipeline["skipped"].items()]
        ),
        id="passes",
        class_="panel",
    )


def _aside(title: str, texts: list[str]) -> Markup | None:
    return tag("details", tag("summary", title), tag("p", ", ".join(texts), class_="none")) if texts else None


def _pass(p: dict[str, Any], longest: float, times: bool) -> list[Markup]:
    meter = tag("span", tag("i", style=f"width:{p['seconds'] / longest:.1%}"), class_="meter", aria_hidden="true")
    row = [
        tag("th", p["name"], scope="row"),
        tag("td", f"{p['runs']:,}", class_="num"),
        tag("td", f"{pass_hits(p):,}", class_="num"),
        _signed(-p["nodes"], f"{-p['nodes']:+,}"),
        _signed(-p["bytes"], change(-p["bytes"])),
    ]
    if times:
        row.append(tag("td", f"{p['seconds'] * 1e3:,.1f} ms", meter, class_="num"))
    rules = [
        tag(
            "tr",
            tag("th", name, scope="row"),
            tag("td"),
            tag("td", f"{rule['hits']:,}", class_="num"),
            tag("td", f"{-rule['nodes']:+,}" if rule["nodes"] else "", class_="num"),
            tag("td"),
            tag("td") if times else None,
            class_="rule",
        )
        for name, rule in p["rules"].items()
        if rule["hits"]
    ]
    return [tag("tr", *row), *rules]


def _signed(n: int, text: str) -> Markup:
    return tag("td", text if n else "", class_=f"num {'less' if n < 0 else 'more'}")


def declined(data: dict[str, Any]) -> Markup:
    """Returns each reason with its count and an example node."""
    rows = [
        (d["count"], rule, why, d["example"], p["name"])
        for p in data["history"]["report"]["pipeline"]["passes"]
        for rule, record in p["rules"].items()
        for why, d in record["declined"].items()
    ]
    rows.sort(key=lambda r: (-r[0], r[1], r[2]))
    body = [
        tag(
            "tr",
            tag("th", rule, scope="row", class_="mono", title=name),
            tag("td", why),
            tag("td", f"{n:,}", class_="num"),
            tag("td", link(example, data["examples"].get(example))),
        )
        for n, rule, why, example, name in rows
    ]
    head = [
        tag("th", text, scope="col", class_="num" if text == "times" else None)
        for text in ("rule", "why not", "times", "for example")
    ]
    table = tag("div", tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body)), class_="scroll stacked")
    return tag(
        "section",
        tag("header", tag("h2", "Declined"), tag("p", "where a rule's pattern matched, but a guard said no")),
        table if rows else tag("p", "No rule declined anything.", class_="none"),
        id="declined",
        class_="panel",
    )
