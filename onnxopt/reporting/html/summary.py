"""The head of the page: what it is about, the verdict, and the figures that matter."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Final

from onnxopt.plaintext import counted
from onnxopt.reporting.html.markup import Markup, join, link, tag
from onnxopt.reporting.plain import size
from onnxopt.reporting.stats_text import count, exact, share
from onnxopt.reporting.verdict import MARKS, figures, grouped

_CLASSES: Final = {
    **dict.fromkeys(("equal", "verified", "verified in pieces"), "good"),
    **dict.fromkeys(("loads without optimizations only", "different"), "bad"),
}


def summary(data: dict[str, Any]) -> Markup:
    """Names, verdict, notes, cards."""
    before, after = data["stats"]
    names = [PurePath(s["path"]).name for s in (before, after)]
    return tag(
        "section",
        tag("h1", names[0], tag("span", " → ", class_="arrow"), names[1]),
        _verdict(data["verification"]),
        _figures(data["verification"]),
        _notes(data),
        id="summary",
        aria_label="Summary",
    )


def cards(data: dict[str, Any]) -> Markup:
    before, after = data["stats"]
    memory = [sum(s["bytes_by_type"].values()) for s in (before, after)]
    opsets = [", ".join(f"{d} {v}".removeprefix("ai.onnx ") for d, v in s["opsets"].items()) for s in (before, after)]
    irs = [f"IR {s['ir_version']}" for s in (before, after)]
    report = data["history"]["report"]
    found = [
        _card("Nodes", before["nodes"], after["nodes"], exact),
        _card("Bytes on disk", before["file_bytes"], after["file_bytes"], size),
        _card("Parameters", before["parameters"], after["parameters"], count),
        _card("Bytes of weights", memory[0], memory[1], size),
        _card("Operator types", len(before["operators"]), len(after["operators"]), exact),
        _fact("Opset", opsets[0] if opsets[0] == opsets[1] else " → ".join(opsets), " → ".join(dict.fromkeys(irs))),
    ]
    if data["times"]:
        rounds = report["pipeline"]["rounds"]
        found.append(_fact("Time", f"{report['seconds']:.2f} s", f"{counted(rounds, 'round')}"))
    return tag("dl", *found, class_="cards")


def _card(name: str, before: int, after: int, show: Any) -> Markup:
    if before == after:
        return _fact(name, show(after), "unchanged")
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


def _figures(found: dict[str, Any] | None) -> Markup | None:
    """What was seen in pieces, and what rounding alone does."""
    rows = figures(found) if found is not None else ()
    parts = [tag(*part) for what, text in grouped(rows) for part in (("dt", what), ("dd", text))]
    return tag("dl", *parts, class_="figures") if parts else None


def _name(r: dict[str, Any]) -> str:
    return f"{r['rule'] or r['pass_text']}{' at ' if r['value'] else ''}{r['value']}"


def _notes(data: dict[str, Any]) -> Markup | None:
    """What the reader has to know before the figures."""
    report = data["history"]["report"]
    rows: list[tuple[object, str]] = [(text, "warn") for text in data["notes"]]
    for r, spot in zip(report["rolled_back"], data["left_out"]):
        show = join(" ", link("show it", spot)) if spot is not None else None
        rows.append((join(f"Left out, {r['fault']}: {_name(r)} ({r['message']})", show), "bad"))
    rows += [(text, "warn") for text in report["pipeline"]["warnings"]]
    for choice in report["choices"]:
        rows.append((f"For {report['target']}: {choice['what']} ({choice['why']})", "plain"))
    if report["fixed_dims"]:
        fixed = ", ".join(f"{name} = {n}" for name, n in report["fixed_dims"].items())
        rows.append((f"The result takes these sizes only: {fixed}", "plain"))
    return tag("ul", *(tag("li", text, class_=style) for text, style in rows), class_="notes") if rows else None
