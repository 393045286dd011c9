"""Names are what a model says, and files what somebody called them: as text they must not move a terminal's cursor, end
a line, turn the direction of writing, fill the screen, or be a command to the build that reads our output."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

_MAX_NAME_IN_LINE: Final = 44  # characters of a name in a line with others
_MAX_NAME: Final = 120  # of any name, in a message
_LINE: Final = 2000
_WORDS: Final = re.compile(rf"[^\s,/()\\]{{{_MAX_NAME + 1},}}")
# "::error::" at the start of a line and "##[error]" anywhere for GitHub, "##vso[" for Azure, "##teamcity[".
_COMMANDS: Final = re.compile(r"^\s*:(?=:)|#(?=#\w*\[)", re.MULTILINE)


def line(text: str, *, whole: bool = False) -> str:
    """One line of output, whatever is in it; `whole`: however long."""
    text = printable(text)
    return harmless(text if whole else cut(text))


def printable(text: str, keep: str = "") -> str:
    """With escapes, as in `\\x1b`, for what is not seen: controls of terminals and of the direction of writing, line
    ends, invisible characters, halves of surrogate pairs. `keep`: some that are wanted."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def harmless(text: str) -> str:
    """Without what systems that run builds take for commands, in any of its lines."""
    if "::" not in text and "#" not in text:
        return text
    return _COMMANDS.sub(lambda found: f"{found[0][:-1]}\\x{ord(found[0][-1]):02x}", text)


def cut(text: str) -> str:
    """Names that are too long are cut in the middle, and so is what has too many of them."""
    if len(text) <= _MAX_NAME:
        return text
    return short(_WORDS.sub(lambda found: short(found[0], _MAX_NAME), text), _LINE)


def cleaned(record: Any) -> Any:
    """A plain record for people: its texts, keys too, are `printable`, and none is too long."""
    if isinstance(record, str):
        return record if len(record) <= _MAX_NAME and record.isprintable() else cut(printable(record))
    if record is None or isinstance(record, (int, float)):  # most of a report
        return record
    if isinstance(record, dict):
        return {cleaned(key): cleaned(value) for key, value in record.items()}
    if isinstance(record, (list, tuple)):
        return [cleaned(value) for value in record]
    if is_dataclass(record) and not isinstance(record, type):
        return replace(record, **{f.name: cleaned(getattr(record, f.name)) for f in fields(record)})
    return record


def counted(n: int, what: str) -> str:
    """`1 node`, `1,234 nodes`, `2 matches`."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}{'es' if what.endswith(('ch', 's')) else 's'}"


def an(word: str) -> str:
    """`an int`, `a float`."""
    return f"{'an' if word[:1] in tuple('aeiou') else 'a'} {word}"


def short(text: str, most: int = _MAX_NAME_IN_LINE) -> str:
    """Cut in the middle: names begin with the module and end with what tells them apart, which is kept longer."""
    if len(text) <= most:
        return text
    head = most // 3
    return f"{text[:head]}…{text[head + 1 - most :]}"
