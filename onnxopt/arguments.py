"""Checks of arguments: numbers, sizes and names. A wrong type is a UsageError that names the setting."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from onnxopt.errors import UsageError


def check_number(setting: str, given: object, hint: str = "") -> None:
    """Raise UsageError unless `given` is a finite number, 0 or more."""
    _check(setting, given, Real, "a number", hint)


def check_whole(setting: str, given: object, hint: str = "") -> None:
    """Raise UsageError unless `given` is a whole number, 0 or more."""
    _check(setting, given, Integral, "a whole number", hint)


def sizes_in(given: Any, setting: str) -> dict[str, int]:
    """Returns sizes by name; none for None. Raises UsageError for other types."""
    return {name: _size(f"{setting}[{name!r}]", size) for name, size in dict_in(given, setting, "1").items()}


def shapes_in(given: Any, setting: str) -> dict[str, tuple[int, ...]]:
    """Returns shapes by name; none for None. Raises UsageError for other types."""
    shapes = {}
    for name, shape in dict_in(given, setting, "(1, 3)").items():
        whose = f"{setting}[{name!r}]"
        if isinstance(shape, str) or not hasattr(shape, "__iter__"):
            raise UsageError(f"{whose} is {_shown(shape)}, not a list of sizes", f"{setting}={{{name!r}: (1, 3)}}")
        shapes[name] = tuple(_size(whose, size) for size in shape)
    return shapes


def names_of(given: Any, setting: str) -> dict[str, str]:
    """Returns new names by old name; none for None. Raises UsageError for other types."""
    names = dict_in(given, setting, '"OTHER"')
    for name, other in names.items():
        if not isinstance(name, str) or not isinstance(other, str) or not other:
            raise UsageError(f"{setting}[{name!r}] is {_shown(other)}, not a name", f'{setting}={{"OLD": "NEW"}}')
    return dict(names)


def by_name(names: Mapping[str, str], inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, str]:
    """Returns `names` with real names in place of `input:0` and `output:1`, unless a value has this name.

    Positions that do not exist stay.
    """
    places = {f"input:{i}": name for i, name in enumerate(inputs)}
    places |= {f"output:{i}": name for i, name in enumerate(outputs)}
    for name in (*inputs, *outputs):
        places.pop(name, None)
    return {places.get(old, old): new for old, new in names.items()}


def places_in(given: Any, setting: str) -> dict[str, str]:
    """Returns names by `INPUT:AXIS`; none for None. Raises UsageError for other types."""
    found = dict_in(given, setting, '"batch"')
    for place, name in found.items():
        whose, _, axis = str(place).rpartition(":")
        if not (whose and axis.isdecimal() and isinstance(name, str) and name):
            hint = f'{setting}={{"INPUT:0": "batch"}}, or "*:0" for all inputs'
            raise UsageError(f"{setting}[{place!r}] is {_shown(name)}: a name for the dim at INPUT:AXIS", hint)
    return dict(found)


def requested_changes(
    *, dtype: str | None, int32: bool, keep_io: bool, freed: Iterable[str], strip_qdq: bool, keep: Sequence[str]
) -> dict[str, Any]:
    """Return the fields of `VerifyOptions` for changes on request; `freed`: symbols of dims made dynamic."""
    symbols, at_interface = tuple(dict.fromkeys(freed)), int32 and not keep_io
    kinds = {"dtype": dtype or "", "int32": at_interface, "inner_int32": int32}
    return kinds | {"freed": symbols, "strip_qdq": strip_qdq, "keep": keep}


def dict_in(given: Any, setting: str, value: str) -> Mapping[str, Any]:
    """Returns a mapping; empty for None. `value`: an example for the hint. Raises UsageError for other types."""
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise UsageError(f"{setting} is {_shown(given)}, not a dict", f'{setting}={{"NAME": {value}}}')
    return given


def names_in(given: Any, setting: str) -> Collection[str]:
    """Returns the names; none for None. Raises UsageError for a text, a list of letters, and for other types."""
    given = () if given is None else given
    for name in all_in(given, setting, "names"):
        if not isinstance(name, str):
            hint = f"a pass is named by its text: {name.info.name!r}" if hasattr(name, "info") else f'{setting}=["…"]'
            raise UsageError(f"{setting}: {kind(name)} is not a name", hint)
    names: Collection[str] = given
    return names


def all_in(given: Any, setting: str, what: str) -> Collection[Any]:
    """Returns the collection; `what` names its elements. Raises UsageError for a text, and for other types."""
    if isinstance(given, str):
        raise UsageError(f"{setting} is {given!r}, not a list of {what}", f"{setting}=[{given!r}]")
    if not isinstance(given, Collection):
        raise UsageError(f"{setting} is {kind(given)}, not a list of {what}", f"{setting}=[…]")
    return given


def kind(given: object) -> str:
    """Returns the name of an argument's type."""
    return "None" if given is None else type(given).__name__


def _check(setting: str, given: object, numbers: type, what: str, hint: str) -> None:
    if isinstance(given, bool) or not isinstance(given, numbers):
        raise UsageError(f"{setting} is {_shown(given)}, not {what}", hint)
    if not 0 <= float(given) < math.inf:  # type: ignore[arg-type]
        raise UsageError(f"{setting} is {given!r}", hint or "it is 0 or more, and finite")


def _size(whose: str, given: Any) -> int:
    """Returns a size as a Python int, since numpy's integers are not written as JSON."""
    if isinstance(given, bool) or not isinstance(given, Integral):
        raise UsageError(f"{whose} is {_shown(given)}, not a size", "sizes are whole numbers")
    return int(given)


def _shown(given: object) -> str:
    return repr(given) if isinstance(given, (str, int, float)) else kind(given)
