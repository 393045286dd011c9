"""HTML from Python, safe by construction: all strings are escaped, except results of `tag`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from html import escape
from importlib.resources import files
from typing import Any, Final

from onnxopt.plaintext import printable

_VOID: Final = {"br", "col", "hr", "img", "input", "link", "meta"}


# Escapes of JSON: pairs of surrogates, which are one character; other numbers; letters.
_ESCAPES: Final = re.compile(r"\\(?:u(d[89ab]..)\\u(d[c-f]..)|u(....)|.)")


class Markup(str):
    """Text that is already HTML."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element: `tag("td", text, class_="num")`. None is left out; True is an attribute without value."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{_text(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: object) -> Markup:
    """Return the parts in order, with text escaped."""
    return Markup("".join(c if isinstance(c, Markup) else _text(c) for c in children if c is not None))


def _text(value: object) -> str:
    return escape(printable(str(value), keep="\n\t"))


def bundled(*path: str) -> str:
    """Return the text of a file of the page."""
    return files("onnxopt.reporting.html").joinpath(*path).read_text(encoding="utf-8")


def template(file: str, **parts: object) -> Markup:
    """Return the HTML of a bundled file, with parts in place of their names in braces."""
    return Markup(bundled(file).format(**{name: join(part) for name, part in parts.items()}))


def panel(title: str, told: object, *content: object, id: str) -> Markup:
    """Return a section of the page with a heading, and a remark beside it unless `told` is None."""
    header = tag("header", tag("h2", title), tag("p", told) if told is not None else None)
    return tag("section", header, *content, id=id, class_="panel")


def table(heads: Iterable[str], rows: Iterable[Markup], numeric: Collection[str] = (), style: str = "scroll") -> Markup:
    """Return a table that scrolls; columns called as in `numeric` hold numbers."""
    cells = (
        head if isinstance(head, Markup) else tag("th", head, scope="col", class_="num" if head in numeric else None)
        for head in heads
    )
    return tag("div", tag("table", tag("thead", tag("tr", *cells)), tag("tbody", *rows)), class_=style)


def row(head: object, *cells: Markup | None, style: str | None = None, **of_head: object) -> Markup:
    """Return a row of a table, named by its first cell."""
    return tag("tr", tag("th", head, scope="row", **of_head), *cells, class_=style)


def num(*figure: object) -> Markup:
    """Return a cell with a number."""
    return tag("td", *figure, class_="num")


def link(text: str, spot: tuple[int, int] | None) -> Markup:
    """Return a link to a node of a graph, or the text alone for a node in neither graph."""
    if spot is None:
        return tag("span", text, class_="mono")
    return tag("button", text, type="button", class_="link", data_side=spot[0], data_node=spot[1])


def _visible(found: re.Match[str]) -> str:
    """Return the escape of an invisible character as text: browsers obey marks of the writing direction."""
    code = found[3]
    return f"\\\\u{code}" if code is not None and not chr(int(code, 16)).isprintable() else found[0]


def json_script(data: Any, **attributes: object) -> Markup:
    """Return data for scripts, in which no text can end or extend the element (`</script`, `<!--`)."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, sort_keys=True)
    text = _ESCAPES.sub(_visible, text)
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return tag("script", Markup(safe), type="application/json", **attributes)
