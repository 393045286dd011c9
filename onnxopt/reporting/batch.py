"""Outcomes of a batch: lines for logs, a table for terminals, markdown, annotations and JUnit XML for build systems."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree

from onnxopt.plaintext import cleaned, counted, harmless
from onnxopt.reporting import verdict as judged
from onnxopt.reporting.plain import data, kept_lines, left_out, nodes_change, size, warnings

if TYPE_CHECKING:
    from rich.table import Table


MARK: Final = {"failed": "✗", "would change": "!"}


def lines(outcome: dict[str, Any]) -> Iterator[str]:
    """Yield the line of an outcome (`batch.Outcome.to_dict()`), and a line for each place of a difference."""
    outcome = cleaned(outcome)
    yield _line(outcome)
    if outcome["report"] is not None:
        yield from (f"  {text}" for text in (*kept_lines(outcome["report"]), *warnings(outcome["report"])))
    yield from (f"  {text}" for text in places_of(outcome))


def _line(outcome: dict[str, Any]) -> str:
    name = outcome["destination"] or outcome["source"]
    if outcome["report"] is None:
        return f"✗ {outcome['source']}: {outcome['status']}"
    beside = data(outcome["report"]) if outcome["report"].get("destination") else ""
    parts = [f"{mark(outcome)} {name}: {nodes(outcome)}, {sizes(outcome)}{beside}, {outcome['status']}"]
    found = _found(outcome)
    if not outcome["message"]:
        parts += [verdict_text(outcome), note(outcome)]
    elif found:
        parts.append(judged.MARKS[found["status"]][1])
    return ", ".join(p for p in parts if p)


def mark(outcome: dict[str, Any]) -> str:
    found = _found(outcome)
    return MARK.get(outcome["status"], "!" if outcome["code"] else judged.MARKS[found["status"]][0] if found else "✓")


def nodes(outcome: dict[str, Any]) -> str:
    """222 → 100 nodes (-55%)."""
    report = outcome["report"]
    return nodes_change(report["pipeline"]["nodes_before"], report["pipeline"]["nodes_after"])


def sizes(outcome: dict[str, Any]) -> str:
    report = outcome["report"]
    before, after = size(report["bytes_before"]), size(report["bytes_after"])
    return before if before == after else f"{before} → {after}"


def verdict_text(outcome: dict[str, Any]) -> str:
    """Return `verified`, or a weaker verdict with its message; empty without verification."""
    found = _found(outcome)
    return judged.brief(found) if found else ""


def places_of(outcome: dict[str, Any]) -> list[str]:
    """Return a line for each place at which the result is wrong."""
    found = _found(outcome)
    if found is None:
        return []
    return [*map(judged.line, judged.shown(found)), *filter(None, [judged.more(found)])]


def _found(outcome: dict[str, Any]) -> dict[str, Any] | None:
    found: dict[str, Any] | None = (outcome["report"] or {}).get("verification")
    return found


def note(outcome: dict[str, Any]) -> str:
    """Return the rewrites left out of the result; mostly empty."""
    lines = left_out((outcome["report"] or {}).get("rolled_back", []))
    more = f"; and {len(lines) - 1} more" if len(lines) > 1 else ""
    return lines[0] + more if lines else ""


def headline(outcome: dict[str, Any]) -> str:
    """Return the failure of an outcome, the rewrites left out, or else the status."""
    status = str(outcome["status"])
    if status == "would change":
        status += f": {nodes(outcome)}"
    return outcome["message"] or note(outcome) or status


def further_lines(outcome: dict[str, Any], full: bool = False) -> list[str]:
    """Return the verdict, if it has a message, and places; `full`: any verdict, with figures of pieces and noise."""
    found = _found(outcome)
    if found is None:
        return []
    known = found["message"] in outcome["message"]  # a failure says why
    sentence = [judged.sentence(found)] if (full or not judged.is_plain(found)) and not known else []
    return [*sentence, *places_of(outcome), *(f"{what}: {text}" for what, text in judged.figures(found) if full)]


def summary(outcomes: Sequence[dict[str, Any]]) -> str:
    """3 models: 2 optimized, 1 failed; 4,321 → 1,234 nodes (-71%)."""
    counts: dict[str, int] = {}
    for o in outcomes:
        counts[o["status"]] = counts.get(o["status"], 0) + 1
    said = ", ".join(f"{n} {status}" for status, n in counts.items())
    reports = [o["report"]["pipeline"] for o in outcomes if o["report"] is not None]
    before, after = (sum(r[f"nodes_{when}"] for r in reports) for when in ("before", "after"))
    return f"{counted(len(outcomes), 'model')}: {said}{f'; {nodes_change(before, after)}' if before else ''}"


def markdown(outcomes: Sequence[dict[str, Any]]) -> str:
    """Return a table in GitHub's markdown."""
    rows = ["| | model | nodes | size | result | |", "|-|-|-|-|-|-|"]
    for o in cleaned(outcomes):
        cells = [mark(o), "`{}`".format((o["destination"] or o["source"]).replace("`", "'"))]
        cells += [nodes(o), sizes(o)] if o["report"] is not None else ["", ""]
        texts = [c.replace("|", "\\|") for c in (*cells, o["status"])]
        rows.append(f"| {' | '.join(texts)} | {'<br>'.join(_markdown(text) for text in _last(o))} |")
    return "\n".join(["### onnxopt", "", *rows, "", summary(outcomes), ""])


def _last(outcome: dict[str, Any]) -> list[str]:
    """Return the last column of a table: the failure, the rewrites left out or the verdict, with further lines."""
    first = outcome["message"] or note(outcome)
    more = further_lines(outcome)
    if not first and not more and outcome["report"] is not None:
        return [verdict_text(outcome)]
    return [text for text in (first, *more) if text]


def _markdown(text: str) -> str:
    """Return text for a table cell of Markdown: names make no cell, tag, link or picture; code spans stay."""
    text = text.replace("|", "\\|").replace("<", "&lt;")
    return text.replace("](", "]\\(").replace("][", "]\\[")


def print_table(outcomes: Sequence[dict[str, Any]]) -> None:
    """Print a table on a terminal, without errors."""
    from onnxopt.reporting.terminal import Fitting, Text, show

    records: list[dict[str, Any]] = cleaned(outcomes)
    tables = [_table(records, with_size=True), _table(records, with_size=False)]
    listed = Text("\n").join(Text(text, _style(o)) for o in records for text in lines(o))
    show(Fitting(tables, otherwise=listed), summary(outcomes))


def _table(outcomes: Sequence[dict[str, Any]], *, with_size: bool) -> Table:
    from rich.table import Column

    from onnxopt.reporting.terminal import Name, table, whole

    heads = ("nodes", *(["size"] if with_size else []), "result")
    made = table(*whole(""), "model", *whole(*heads), Column("", overflow="fold"))
    for o in outcomes:
        shown = [nodes, *([sizes] if with_size else [])]
        cells = [show(o) if o["report"] is not None else "" for show in shown]
        more = "\n".join(further_lines(o) if o["message"] else _last(o))
        made.add_row(mark(o), Name(o["destination"] or o["source"]), *cells, o["status"], more, style=_style(o))
    return made


def _style(outcome: dict[str, Any]) -> str:
    if outcome["status"] == "failed" or outcome["code"] in (1, 2, 4):
        return "red"
    return "yellow" if outcome["code"] else ""


def workflow_commands(outcomes: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield workflow commands: an error for a failure, a warning for rewrites left out.

    See "Workflow commands for GitHub Actions". Percent signs and line ends are escaped, in properties colons and commas
    too.
    """
    for o in cleaned(outcomes):
        if not o["code"]:
            continue
        kind = "warning" if o["code"] == 3 else "error"
        text = "\n".join(filter(None, [headline(o), *further_lines(o), o["hint"]]))
        file = _data(_in_repository(o["source"])).replace(":", "%3A").replace(",", "%2C")
        yield f"::{kind} file={file},title=onnxopt::{_data(text)}"


def _in_repository(path: str) -> str:
    """Return a path relative to the root of the repository, independent of the current folder."""
    root = os.environ.get("GITHUB_WORKSPACE")
    if not root or "://" in path:
        return path
    relative = os.path.relpath(os.path.realpath(path), os.path.realpath(root))
    return path if relative.startswith(os.pardir) else relative


def _data(text: str) -> str:
    return harmless(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def junit(outcomes: Sequence[dict[str, Any]]) -> bytes:
    """Return a JUnit suite with a case for each model: a failure for a failed check (exit code 1), else an error."""
    failures = sum(o["code"] == 1 for o in outcomes)
    errors = sum(o["code"] in (2, 4) for o in outcomes)
    seconds = f"{sum(o['seconds'] for o in outcomes):.3f}"
    counts = {"tests": str(len(outcomes)), "failures": str(failures), "errors": str(errors), "time": seconds}
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "onnxopt", **counts})
    for o in cleaned(outcomes):  # XML 1.0 has no control characters
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": "onnxopt.optimize", "name": o["source"], "time": f"{o['seconds']:.3f}"}
        )
        if o["code"] in (1, 2, 4):
            kind = "failure" if o["code"] == 1 else "error"
            failed = ElementTree.SubElement(case, kind, {"message": headline(o)})
            failed.text = "\n".join(filter(None, [*further_lines(o, full=True), o["hint"]]))
        else:
            ElementTree.SubElement(case, "system-out").text = "\n".join([headline(o), *further_lines(o, full=True)])
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"
