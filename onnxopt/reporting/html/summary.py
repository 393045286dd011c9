"""The head of the page (models, verdict, main figures), and the contents of the models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, Final

from onnxopt.plaintext import counted
from onnxopt.reporting.html.markup import Markup, join, link, num, panel, row, table, tag
from onnxopt.reporting.plain import size
from onnxopt.reporting.stats_text import count, exact, share
from onnxopt.reporting.verdict import MARKS, figures, grouped

_MOST: Final = 5  # properties before the rest is folded
_CLASSES: Final = {
    **dict.fromkeys(("equal", "verified", "verified in pieces"), "good"),
    **dict.fromkeys(("loads without optimizations only", "different"), "bad"),
}


def summary(data: dict[str, Any]) -> Markup:
    """Return names, verdict, notes and cards."""
    first, *second = [PurePath(s["path"]).name for s in data["stats"]]
    return tag(
        "section",
        tag("h1", first, *(part for name in second for part in (tag("span", " → ", class_="arrow"), name))),
        _verdict(data["verification"]) if data["history"] is not None else None,
        *_properties(data["properties"]),
        _facts(list(grouped(figures(found)))) if (found := data["verification"]) is not None else None,
        _notes(data),
        id="summary",
        aria_label="Summary",
    )


def cards(data: dict[str, Any]) -> Markup:
    stats = data["stats"]
    found = [
        _card("Nodes", [s["nodes"] for s in stats], exact),
        _card("Bytes on disk", [s["file_bytes"] for s in stats], size),
        _card("Parameters", [s["parameters"] for s in stats], count),
        _card("Bytes of weights", [sum(s["bytes_by_type"].values()) for s in stats], size),
        _card("Operator types", [len(s["operators"]) for s in stats], exact),
        _opsets(stats),
    ]
    if data["history"] is not None and data["times"]:
        report = data["history"]["report"]
        rounds = report["pipeline"]["rounds"]
        found.append(_fact("Time", f"{report['seconds']:.2f} s", f"{counted(rounds, 'round')}"))
    return tag("dl", *found, class_="cards")


def _opsets(stats: list[dict[str, Any]]) -> Markup:
    standard = [str(s["opsets"].get("ai.onnx", "none")) for s in stats]
    irs = [f"IR {s['ir_version']}" for s in stats]
    others = [", ".join(f"{d} {v}" for d, v in s["opsets"].items() if d != "ai.onnx") for s in stats]
    below = [" → ".join(dict.fromkeys(irs)), " → ".join(text or "no other" for text in dict.fromkeys(others))]
    return _fact("Opset", " → ".join(dict.fromkeys(standard)), ", ".join(below if any(others) else below[:1]))


def _card(name: str, figures: list[int], show: Any) -> Markup:
    before, after = figures[0], figures[-1]
    if before == after:
        return _fact(name, show(after), "unchanged" if len(figures) > 1 else "")
    style = "delta less" if after < before else "delta more"
    return _fact(name, show(after), join("from ", show(before), " ", tag("span", share(before, after), class_=style)))


def _fact(name: str, value: str, below: str) -> Markup:
    return tag("div", tag("dt", name), tag("dd", value, tag("small", below)), class_="card")


def _verdict(found: dict[str, Any] | None) -> Markup:
    if found is None:
        return tag("p", "! not verified", class_="verdict warn")
    mark, word = MARKS.get(found["status"], ("!", found["status"]))
    style = _CLASSES.get(found["status"], "warn")
    hint = f" ({found['hint']})" if found["hint"] else ""
    return tag(
        "p",
        tag("span", mark, aria_hidden="true"),
        tag("span", f"{word}: {found['message']}{hint}"),
        class_=f"verdict {style}",
    )


def _facts(rows: Sequence[tuple[str, str]]) -> Markup | None:
    parts = [tag(*part) for what, text in rows for part in (("dt", what), ("dd", text))]
    return tag("dl", *parts, class_="figures") if parts else None


def _properties(rows: Sequence[tuple[str, str]]) -> Iterator[Markup | None]:
    """Yield the metadata of the file; the first entries are visible at once."""
    yield _facts(rows[:_MOST])
    if rest := rows[_MOST:]:
        yield tag("details", tag("summary", f"{len(rest):,} more properties"), _facts(rest))


def _notes(data: dict[str, Any]) -> Markup | None:
    """Return warnings to read before the figures."""
    rows: list[tuple[object, str]] = [(text, "warn") for text in data["notes"]]
    if data["history"] is not None:
        rows += _notes_of_run(data)
    return tag("ul", *(tag("li", text, class_=style) for text, style in rows), class_="notes") if rows else None


def _notes_of_run(data: dict[str, Any]) -> Iterator[tuple[object, str]]:
    report = data["history"]["report"]
    for r, spot in zip(report["rolled_back"], data["left_out"]):
        show = join(" ", link("show it", spot)) if spot is not None else None
        name = f"{r['rule'] or r['pass_text']}{' at ' if r['value'] else ''}{r['value']}"
        yield (join(f"Left out, {r['fault']}: {name} ({r['message']})", show), "bad")
    yield from ((text, "warn") for text in report["pipeline"]["warnings"])
    for choice in report["choices"]:
        yield f"For {report['target']}: {choice['what']} ({choice['why']})", "plain"
    if report["fixed_dims"]:
        fixed = ", ".join(f"{name} = {n}" for name, n in report["fixed_dims"].items())
        yield f"The result takes these sizes only: {fixed}", "plain"


_MAX_ROWS: Final = 12  # rows before the rest is folded


def _types(name: str, kind: str, types: list[str | None], labels: list[str]) -> Markup:
    """Return the row of an input or output. `types`: by model, None if absent."""
    cells = [
        tag("td", t if t is not None else "absent", class_="mono", data_label=label) for t, label in zip(types, labels)
    ]
    return row(name, tag("td", kind, class_="kind"), *cells, style="differing" if len(set(types)) > 1 else None)


def interface(data: dict[str, Any]) -> Markup:
    """Return inputs and outputs with types; for two models, the types before and after."""
    stats = data["stats"]
    labels, rows = _sides(stats, "type"), []
    for kind in ("input", "output"):
        held = [s[f"{kind}s"] for s in stats]
        for name in dict.fromkeys(name for side in held for name in side):
            rows.append(_types(name, kind, [side.get(name) for side in held], labels))
    dynamic = [f"{symbol} ({', '.join(places[:_MAX_ROWS])})" for symbol, places in stats[-1]["dynamic"].items()]
    sizes = tag("p", f"Dynamic: {', '.join(dynamic)}", class_="none") if dynamic else None
    return panel("Inputs and outputs", None, _folded(["name", "", *labels], rows), sizes, id="interface")


def weights(data: dict[str, Any]) -> Markup:
    """Return the largest weights of a model, or those of two models that differ, if only in elements."""
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
    heads = ["name", *(head for side in labels for head in (side, "bytes"))]
    return panel("Weights", ", ".join(parts), _folded(heads, rows), left, id="weights")


def _weight(scope: str, name: str, sides: list[list[Any] | None], labels: list[str]) -> Markup:
    place = f" in {scope}" if scope != "main" else ""
    cells = []
    for side, label in zip(sides, labels):
        if side is None:
            cells += [tag("td", "absent", data_label=label), tag("td")]
        else:
            kind, count, elements = side
            told = f"{kind} = {elements}" if elements else kind
            cells += [tag("td", told, class_="mono", data_label=label), num(size(count))]
    return row(join(name, place), *cells)


def _sides(stats: list[Any], heading: str) -> list[str]:
    return [heading] if len(stats) == 1 else ["before", "after"]


def _folded(headings: list[str], rows: list[Markup]) -> Markup:
    if not rows:
        return tag("p", "None.", class_="none")
    first, rest = (table(headings, some, ["bytes"], "scroll stacked") for some in (rows[:_MAX_ROWS], rows[_MAX_ROWS:]))
    title = tag("summary", f"{exact(len(rows) - _MAX_ROWS)} more")
    return tag("div", first, tag("details", title, rest) if rows[_MAX_ROWS:] else None)
