"""Names are what a model says: as text they must not move a terminal's cursor, end a line, or fill the screen."""

from __future__ import annotations

from typing import Any, Final

BREAKS: Final = "\t\n"  # what may stay where lines of our own are joined
_LONGEST: Final = 44  # characters of a name in a line with others


def printable(text: str, keep: str = "") -> str:
    """Without control characters, also those that turn the direction of writing; `keep`: some that are wanted."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text)


def cleaned(record: Any, keep: str = "") -> Any:
    """A plain record whose texts, keys too, are `printable`."""
    if isinstance(record, str):
        return printable(record, keep)
    if isinstance(record, dict):
        return {cleaned(key, keep): cleaned(value, keep) for key, value in record.items()}
    if isinstance(record, (list, tuple)):
        return [cleaned(value, keep) for value in record]
    return record


def short(text: str, most: int = _LONGEST) -> str:
    """Cut in the middle: names begin with the module and end with what tells them apart, which is kept longer."""
    if len(text) <= most:
        return text
    head = most // 3
    return f"{text[:head]}…{text[head + 1 - most :]}"
