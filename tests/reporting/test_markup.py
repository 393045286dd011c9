"""Contents of a model are never markup."""

from __future__ import annotations

import json
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from onnxopt.plaintext import printable
from onnxopt.reporting.html.markup import join, json_script, tag


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


VISIBLE = st.text(st.characters(exclude_categories=["Cc"]))


@given(VISIBLE)
def test_text_and_attributes_are_escaped(text: str) -> None:
    found = read(tag("p", text, tag("b", text), title=text, class_="x", hidden=True, lang=None))
    assert [name for name, _ in found.tags] == ["p", "b"]
    shown = printable(text, keep="\n\t")
    assert found.tags[0][1] == {"title": shown, "class": "x", "hidden": None}
    assert found.text == shown * 2


@given(st.text(st.characters(exclude_categories=[])))
def test_data_stays_in_its_script(text: str) -> None:
    for name in (text, f"</script>{text}", f"<!--<script>{text}"):
        found = read(join(json_script({"name": name}, id="data"), tag("p", "after")))
        assert [t for t, _ in found.tags] == ["script", "p"]
        script = json_script({"name": name})
        assert script.count("<") == 2
        read_back = json.loads(script[script.index(">") + 1 : script.rindex("<")])["name"]
        assert read_back == "".join(
            c if c.isprintable() or c in "\b\t\n\f\r" or ord(c) > 0xFFFF else f"\\u{ord(c):04x}" for c in name
        )


def test_void_elements_have_no_end() -> None:
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'
    assert tag("p", None) == "<p></p>"
