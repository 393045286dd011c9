"""Text from models and file names, made harmless for terminals, logs and builds.

Such text must not move a cursor, end a line, change the writing direction, fill the screen, or command a build.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

_MAX_NAME_IN_LINE: Final = 44  # characters of a name in a line with others
_MAX_NAME: Final = 120  # characters of a name in a message
_LINE: Final = 2000  # characters
_LONG_WORD: Final = rf"[^\s,/()\\]{{{_MAX_NAME + 1},}}"
# "::error::" at the start of a line and "##[error]" anywhere for GitHub, "##vso[" for Azure, "##teamcity[".
_COMMAND: Final = r"(?m)^\s*:(?=:)|#(?=#\w*\[)"


def line(text: str, *, whole: bool = False) -> str:
    """Returns one line of output for any text; `whole`: without the limit of length."""
    text = printable(text)
    return harmless(text if whole else cut(text))


def printable(text: str, keep: str = "") -> str:
    r"""Returns the text with escapes such as `\x1b` for invisible characters, but for the characters in `keep`.

    Escaped are controls of terminals and of the writing direction, line ends, and halves of surrogate pairs.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def harmless(text: str) -> str:
    """Returns the text without commands to systems that run builds, in any of its lines."""
    if "::" not in text and "#" not in text:
        return text
    return re.sub(_COMMAND, lambda found: f"{found[0][:-1]}\\x{ord(found[0][-1]):02x}", text)


def cut(text: str) -> str:
    """Returns the text with long names cut in the middle, and cut itself if it has too many names."""
    if len(text) <= _MAX_NAME:
        return text
    return short(re.sub(_LONG_WORD, lambda found: short(found[0], _MAX_NAME), text), _LINE)


def cleaned(record: Any) -> Any:
    """Returns a plain record for people: all texts and keys are `printable`, and none is too long."""
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
    return f"{'an' if word[:1].lower() in tuple('aeiou') else 'a'} {word}"


def short(text: str, most: int = _MAX_NAME_IN_LINE) -> str:
    """Returns the text cut in the middle. The end, which tells names of a module apart, is kept longer."""
    if len(text) <= most:
        return text
    head = most // 3
    return f"{text[:head]}…{text[head + 1 - most :]}"
